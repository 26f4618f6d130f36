//! Images in device memory: what textures and surfaces are made of, and the tables by which kernels find them.
//!
//! A kernel names an object by a number, which may be made up, so it is looked up. What is found is held while
//! it is used; the memory behind it may go away at any time, which is a fault like any other.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;

/// How a channel is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    U8,
    U16,
    U32,
    S8,
    S16,
    S32,
    F16,
    F32,
}

impl Channel {
    pub fn bytes(self) -> u64 {
        match self {
            Channel::U8 | Channel::S8 => 1,
            Channel::U16 | Channel::S16 | Channel::F16 => 2,
            Channel::U32 | Channel::S32 | Channel::F32 => 4,
        }
    }
}

/// Rows of elements in the window; the whole range was checked when it was made.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    pub base: u64,
    /// Elements, rows and slices (or layers); none is 0.
    pub size: [u32; 3],
    pub pitch: u64,
    pub slice: u64,
    pub channel: Channel,
    pub channels: u8,
    pub layered: bool,
    pub cube: bool,
}

impl Image {
    /// Bytes of an element.
    pub fn element(&self) -> u64 {
        self.channel.bytes() * u64::from(self.channels)
    }

    /// The address of an element that is inside.
    pub fn address(&self, x: u32, y: u32, z: u32) -> u64 {
        self.base + u64::from(z) * self.slice + u64::from(y) * self.pitch + u64::from(x) * self.element()
    }
}

/// What happens beside an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Wrap,
    Clamp,
    Mirror,
    Border,
}

#[derive(Clone, Debug)]
pub struct Texture {
    /// From the largest to the smallest; at least one.
    pub levels: Vec<Image>,
    pub beside: [Beside; 3],
    pub linear: bool,
    pub normalized: bool,
    /// Integers are read as they are, not as fractions.
    pub raw: bool,
    pub srgb: bool,
    pub border: [f32; 4],
    pub linear_levels: bool,
    pub level_bias: f32,
    pub level_clamp: [f32; 2],
    /// Plain memory instead of an array: there is nothing outside of it.
    pub plain_memory: bool,
}

/// Objects by their numbers.
pub struct Objects<T> {
    map: LazyLock<RwLock<HashMap<u64, Arc<T>>>>,
    /// Counts insertions and removals.
    changes: AtomicU64,
}

impl<T> Objects<T> {
    const fn new() -> Objects<T> {
        Objects { map: LazyLock::new(|| RwLock::new(HashMap::new())), changes: AtomicU64::new(0) }
    }

    pub fn insert(&self, number: u64, object: T) {
        self.map.write().insert(number, Arc::new(object));
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub fn remove(&self, number: u64) {
        self.map.write().remove(&number);
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub fn get(&self, number: u64) -> Option<Arc<T>> {
        self.map.read().get(&number).cloned()
    }
}

pub static TEXTURES: Objects<Texture> = Objects::new();
pub static SURFACES: Objects<Image> = Objects::new();

/// A texture that this thread has used, held.
#[derive(Clone, Copy)]
struct Recent {
    number: u64,
    /// Changes of the table when it was looked up.
    changes: u64,
    texture: *const Texture,
}

const NONE: Recent = Recent { number: 0, changes: u64::MAX, texture: std::ptr::null() };
const RECENT: usize = 8;

thread_local! {
    /// Kernels read the same few textures millions of times: looking each time would cost more than reading.
    static USED: [Cell<Recent>; RECENT] = const { [const { Cell::new(NONE) }; RECENT] };
}

/// The texture of a number. It stays until the calling thread asks for another one.
pub fn texture(number: u64) -> Option<*const Texture> {
    let changes = TEXTURES.changes.load(Ordering::Acquire);
    USED.try_with(|used| {
        // Multiplied, so that numbers with much in common have slots of their own.
        let slot = &used[(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % RECENT];
        let recent = slot.get();
        if recent.number == number && recent.changes == changes {
            return Some(recent.texture);
        }
        let found = Arc::into_raw(TEXTURES.get(number)?);
        slot.set(Recent { number, changes, texture: found });
        if !recent.texture.is_null() {
            // SAFETY: it came from `into_raw`, and by this function's contract it is no longer used.
            drop(unsafe { Arc::from_raw(recent.texture) });
        }
        Some(found)
    })
    .ok()
    .flatten()
}
