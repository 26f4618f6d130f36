//! Texture and surface references: images that a module's code names, and the program binds.
//!
//! Code names a reference by its address, so what is bound is entered under that address in the tables by which kernels
//! find images. A reference that `cuTexRefCreate` made has no code that names it.

use std::sync::Arc;

use cuda_abi::constants::{address_mode, array_flag, filter_mode, resource_type, texture_reference};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;
use ptx_exec::Reference;
use ptx_exec::image::{SURFACES, TEXTURES};

use super::abi::*;
use super::array::{array, channel, mipmap};
use super::context::current;
use super::function::function;
use super::handles::{Table, of, out};
use super::{module, state, texture};

static TEXTURE_REFERENCES: Table<TextureReference> = Table::new(35);
static SURFACE_REFERENCES: Table<SurfaceReference> = Table::new(36);

const MOST_ANISOTROPY: u32 = 16;

struct TextureReference {
    /// The module, or 0, and the reference's address there.
    module: u64,
    address: u64,
    state: Mutex<State>,
}

struct SurfaceReference {
    module: u64,
    address: u64,
    array: Mutex<Option<u64>>,
}

#[derive(Clone, Copy)]
enum Bound {
    Nothing,
    Array(u64),
    Mipmapped(u64),
    Linear { address: u64, bytes: u64 },
    Rows { address: u64, width: u64, height: u64, pitch: u64 },
}

#[derive(Clone, Copy)]
struct State {
    bound: Bound,
    format: u32,
    channels: i32,
    beside: [u32; 3],
    filter: u32,
    flags: u32,
    anisotropy: u32,
    level_filter: u32,
    level_bias: f32,
    level_clamp: [f32; 2],
    border: CUborderColor,
}

impl State {
    const NEW: State = State {
        bound: Bound::Nothing,
        format: cuda_abi::constants::array_format::FLOAT,
        channels: 1,
        beside: [address_mode::WRAP; 3],
        filter: filter_mode::POINT,
        flags: 0,
        anisotropy: 0,
        level_filter: filter_mode::POINT,
        level_bias: 0.0,
        level_clamp: [0.0; 2],
        border: [0.0; 4],
    };

    /// The same as an object would be described.
    fn description(&self) -> Option<(CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC)> {
        let (mut resource, mut about) = (CUDA_RESOURCE_DESC::default(), CUDA_TEXTURE_DESC::default());
        let mut word = |at: usize, value: u32| resource.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        let long = |word: &mut dyn FnMut(usize, u32), at: usize, value: u64| {
            word(at, value as u32);
            word(at + 4, (value >> 32) as u32);
        };
        let mut memory = |kind: u32, address: u64| {
            word(0, kind);
            long(&mut word, 8, address);
            word(16, self.format);
            word(20, self.channels.cast_unsigned());
        };
        match self.bound {
            Bound::Nothing => return None,
            Bound::Array(array) => memory(resource_type::ARRAY, array),
            Bound::Mipmapped(array) => memory(resource_type::MIPMAPPED_ARRAY, array),
            Bound::Linear { address, bytes } => {
                memory(resource_type::LINEAR, address);
                long(&mut word, 24, bytes);
            }
            Bound::Rows { address, width, height, pitch } => {
                memory(resource_type::PITCH2D, address);
                long(&mut word, 24, width);
                long(&mut word, 32, height);
                long(&mut word, 40, pitch);
            }
        }
        let words = [
            self.beside[0],
            self.beside[1],
            self.beside[2],
            self.filter,
            self.flags,
            self.anisotropy,
            self.level_filter,
            self.level_bias.to_bits(),
            self.level_clamp[0].to_bits(),
            self.level_clamp[1].to_bits(),
        ];
        for (place, word) in about.0.chunks_exact_mut(4).zip(words.into_iter().chain(self.border.map(f32::to_bits))) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        Some((resource, about))
    }
}

fn texture_reference(handle: CUtexref) -> CudaResult<Arc<TextureReference>> {
    state::state()?;
    TEXTURE_REFERENCES.get(of(handle))
}

fn surface_reference(handle: CUsurfref) -> CudaResult<Arc<SurfaceReference>> {
    state::state()?;
    SURFACE_REFERENCES.get(of(handle))
}

/// Changes a reference, unless what comes of it is no texture.
fn change(handle: CUtexref, change: impl FnOnce(&mut State) -> CudaResult) -> CudaResult {
    let reference = texture_reference(handle)?;
    let mut state = reference.state.lock();
    let mut changed = *state;
    change(&mut changed)?;
    if let Some((resource, about)) = changed.description() {
        let texture = texture::texture(&resource, &about)?;
        if reference.address != 0 {
            // What was launched before reads what was bound before; its errors are for others to hear.
            let _ = current()?.synchronize();
            TEXTURES.insert(reference.address, texture);
        }
    }
    *state = changed;
    Ok(())
}

fn read<T>(handle: CUtexref, to: Out<T>, value: impl FnOnce(&State) -> CudaResult<T>) -> CudaResult {
    to.required()?;
    let found = value(&texture_reference(handle)?.state.lock())?;
    to.put(found)
}

/// Forgets the references of modules that are gone.
pub(crate) fn forget(gone: impl Fn(u64) -> bool) {
    TEXTURE_REFERENCES.retain(|reference| {
        let stays = reference.module == 0 || !gone(reference.module);
        if !stays {
            TEXTURES.remove(reference.address);
        }
        stays
    });
    SURFACE_REFERENCES.retain(|reference| {
        let stays = !gone(reference.module);
        if !stays {
            SURFACES.remove(reference.address);
        }
        stays
    });
}

fn cuModuleGetTexRef(to: Out<CUtexref>, handle: CUmodule, name: Str) -> CudaResult {
    to.required()?;
    let (module, name) = (module::module(handle)?, text(name)?);
    let address = module.reference(&name, Reference::Texture)?;
    let known = TEXTURE_REFERENCES.find(|reference| reference.address == address);
    let new = || TextureReference { module: module.handle, address, state: Mutex::new(State::NEW) };
    to.put(out(known.unwrap_or_else(|| TEXTURE_REFERENCES.insert(new()))))
}

fn cuModuleGetSurfRef(to: Out<CUsurfref>, handle: CUmodule, name: Str) -> CudaResult {
    to.required()?;
    let (module, name) = (module::module(handle)?, text(name)?);
    let address = module.reference(&name, Reference::Surface)?;
    let known = SURFACE_REFERENCES.find(|reference| reference.address == address);
    let new = || SurfaceReference { module: module.handle, address, array: Mutex::default() };
    to.put(out(known.unwrap_or_else(|| SURFACE_REFERENCES.insert(new()))))
}

fn cuTexRefCreate(to: Out<CUtexref>) -> CudaResult {
    to.required()?;
    current()?;
    let reference = TextureReference { module: 0, address: 0, state: Mutex::new(State::NEW) };
    to.put(out(TEXTURE_REFERENCES.insert(reference)))
}

fn cuTexRefDestroy(handle: CUtexref) -> CudaResult {
    // A module's own goes with the module.
    valid(texture_reference(handle)?.module == 0)?;
    TEXTURE_REFERENCES.remove(of(handle)).map(|_| ())
}

fn cuTexRefSetArray(handle: CUtexref, image: CUarray, flags: u32) -> CudaResult {
    valid(flags == texture_reference::OVERRIDE_FORMAT)?;
    let about = array(image)?.about;
    change(handle, |state| {
        (state.bound, state.format) = (Bound::Array(of(image)), about.format);
        state.channels = about.num_channels.cast_signed();
        Ok(())
    })
}

fn cuTexRefSetMipmappedArray(handle: CUtexref, image: CUmipmappedArray, flags: u32) -> CudaResult {
    valid(flags == texture_reference::OVERRIDE_FORMAT)?;
    mipmap(image)?;
    change(handle, |state| {
        state.bound = Bound::Mipmapped(of(image));
        Ok(())
    })
}

fn cuTexRefSetAddress_v2(offset: Out<usize>, handle: CUtexref, address: CUdeviceptr, bytes: usize) -> CudaResult {
    change(handle, |state| {
        state.bound = Bound::Linear { address, bytes: bytes as u64 };
        Ok(())
    })?;
    // A texture may begin anywhere.
    offset.put_if(0);
    Ok(())
}

fn cuTexRefSetAddress2D_v3(
    handle: CUtexref,
    about: In<CUDA_ARRAY_DESCRIPTOR>,
    address: CUdeviceptr,
    pitch: usize,
) -> CudaResult {
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = about.take()?;
    change(handle, |state| {
        let [width, height, pitch] = [width, height, pitch].map(|size| size as u64);
        state.bound = Bound::Rows { address, width, height, pitch };
        (state.format, state.channels) = (format, num_channels.cast_signed());
        Ok(())
    })
}

fn cuTexRefSetFormat(handle: CUtexref, format: u32, channels: i32) -> CudaResult {
    channel(format)?;
    valid(matches!(channels, 1 | 2 | 4))?;
    change(handle, |state| {
        (state.format, state.channels) = (format, channels);
        Ok(())
    })
}

fn cuTexRefSetAddressMode(handle: CUtexref, axis: i32, mode: u32) -> CudaResult {
    valid(mode <= address_mode::BORDER)?;
    change(handle, |state| {
        let axis = usize::try_from(axis).ok().and_then(|axis| state.beside.get_mut(axis));
        *axis.ok_or(CUDA_ERROR_INVALID_VALUE)? = mode;
        Ok(())
    })
}

fn cuTexRefGetAddressMode(to: Out<u32>, handle: CUtexref, axis: i32) -> CudaResult {
    read(handle, to, |state| {
        let axis = usize::try_from(axis).ok().and_then(|axis| state.beside.get(axis));
        axis.copied().ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}

fn cuTexRefGetAddress_v2(to: Out<CUdeviceptr>, handle: CUtexref) -> CudaResult {
    read(handle, to, |state| match state.bound {
        Bound::Linear { address, .. } | Bound::Rows { address, .. } => Ok(address),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn cuTexRefGetArray(to: Out<CUarray>, handle: CUtexref) -> CudaResult {
    read(handle, to, |state| match state.bound {
        Bound::Array(array) => Ok(out(array)),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn cuTexRefGetMipmappedArray(to: Out<CUmipmappedArray>, handle: CUtexref) -> CudaResult {
    read(handle, to, |state| match state.bound {
        Bound::Mipmapped(array) => Ok(out(array)),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn cuTexRefGetFormat(format: Out<u32>, channels: Out<i32>, handle: CUtexref) -> CudaResult {
    read(handle, format, |state| Ok(state.format))?;
    read(handle, channels, |state| Ok(state.channels))
}

fn cuTexRefSetBorderColor(handle: CUtexref, color: In<CUborderColor>) -> CudaResult {
    let color = color.take()?;
    change(handle, |state| {
        state.border = color;
        Ok(())
    })
}

fn cuTexRefSetMipmapLevelClamp(handle: CUtexref, least: f32, most: f32) -> CudaResult {
    change(handle, |state| {
        state.level_clamp = [least, most];
        Ok(())
    })
}

fn cuTexRefGetMipmapLevelClamp(least: Out<f32>, most: Out<f32>, handle: CUtexref) -> CudaResult {
    read(handle, least, |state| Ok(state.level_clamp[0]))?;
    read(handle, most, |state| Ok(state.level_clamp[1]))
}

macro_rules! settings {
    ($($set:ident($value:ident: $given:ty) if $fits:expr; $get:ident -> $told:ty: $field:ident;)*) => {
        $(
            fn $set(handle: CUtexref, $value: $given) -> CudaResult {
                valid($fits)?;
                change(handle, |state| {
                    state.$field = $value;
                    Ok(())
                })
            }

            fn $get(to: Out<$told>, handle: CUtexref) -> CudaResult {
                read(handle, to, |state| Ok(state.$field as $told))
            }
        )*
    };
}

settings! {
    cuTexRefSetFilterMode(mode: u32) if mode <= filter_mode::LINEAR; cuTexRefGetFilterMode -> u32: filter;
    cuTexRefSetFlags(flags: u32) if flags <= 0x7f; cuTexRefGetFlags -> u32: flags;
    cuTexRefSetMaxAnisotropy(most: u32) if most <= MOST_ANISOTROPY; cuTexRefGetMaxAnisotropy -> i32: anisotropy;
    cuTexRefSetMipmapFilterMode(mode: u32) if mode <= filter_mode::LINEAR;
        cuTexRefGetMipmapFilterMode -> u32: level_filter;
    cuTexRefSetMipmapLevelBias(bias: f32) if bias.is_finite(); cuTexRefGetMipmapLevelBias -> f32: level_bias;
}

fn cuTexRefGetBorderColor(to: Out<CUborderColor>, handle: CUtexref) -> CudaResult {
    read(handle, to, |state| Ok(state.border))
}

fn cuSurfRefSetArray(handle: CUsurfref, image: CUarray, flags: u32) -> CudaResult {
    valid(flags == 0)?;
    let (reference, bound) = (surface_reference(handle)?, array(image)?);
    valid(bound.about.flags & array_flag::SURFACE_LDST != 0)?;
    let _ = current()?.synchronize();
    SURFACES.insert(reference.address, bound.image);
    *reference.array.lock() = Some(of(image));
    Ok(())
}

fn cuSurfRefGetArray(to: Out<CUarray>, handle: CUsurfref) -> CudaResult {
    to.required()?;
    let bound = *surface_reference(handle)?.array.lock();
    to.put(out(bound.ok_or(CUDA_ERROR_INVALID_VALUE)?))
}

/// Before references belonged to modules, a function was told of those that it uses. Now it knows.
fn cuParamSetTexRef(user: CUfunction, unit: i32, handle: CUtexref) -> CudaResult {
    const BY_THE_REFERENCE: i32 = -1;
    function(user)?;
    texture_reference(handle)?;
    valid(unit == BY_THE_REFERENCE)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuModuleGetTexRef,
        cuModuleGetSurfRef,
        cuTexRefCreate,
        cuTexRefDestroy,
        cuTexRefSetArray,
        cuTexRefSetMipmappedArray,
        cuTexRefSetAddress_v2,
        cuTexRefSetAddress2D_v2 = cuTexRefSetAddress2D_v3,
        cuTexRefSetAddress2D_v3,
        cuTexRefSetFormat,
        cuTexRefSetAddressMode,
        cuTexRefSetFilterMode,
        cuTexRefSetMipmapFilterMode,
        cuTexRefSetMipmapLevelBias,
        cuTexRefSetMipmapLevelClamp,
        cuTexRefSetMaxAnisotropy,
        cuTexRefSetBorderColor,
        cuTexRefSetFlags,
        cuTexRefGetAddress_v2,
        cuTexRefGetArray,
        cuTexRefGetMipmappedArray,
        cuTexRefGetAddressMode,
        cuTexRefGetFilterMode,
        cuTexRefGetFormat,
        cuTexRefGetMipmapFilterMode,
        cuTexRefGetMipmapLevelBias,
        cuTexRefGetMipmapLevelClamp,
        cuTexRefGetMaxAnisotropy,
        cuTexRefGetBorderColor,
        cuTexRefGetFlags,
        cuSurfRefSetArray,
        cuSurfRefGetArray,
        cuParamSetTexRef
    )
}
