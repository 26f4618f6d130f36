//! Texture and surface objects.
//!
//! A kernel is given an object as a number among its parameters, so the client gets the driver's own number. What the
//! driver is asked about it afterwards must be one that this client was given, in this context.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::constants::resource_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;
use cuda_abi::wire::ops::{ImageObjectCreate, ImageObjectCreated, ImageObjectDestroy};
use parking_lot::{Mutex, MutexGuard};

use super::Reply;
use crate::handles::Object;
use crate::{Outcome, Refusal, Worker, succeed};

/// Bytes of a channel at most, and channels of an element.
const MAX_ELEMENT: u64 = 16;
/// A flood of objects ends here; a GPU has room for fewer.
const MOST_OBJECTS: usize = 1 << 20;

/// By whether it is a surface, and number: the context, and the array that the object keeps.
type Known = HashMap<(bool, u64), (u32, Option<Arc<Object>>)>;

/// Objects that the client was given.
#[derive(Default)]
pub(crate) struct Images(Mutex<Known>);

impl Images {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// Destroys the objects of a context, which is current.
    pub(crate) fn close_context(&self, driver: &Driver, index: u32) {
        self.known().retain(|(surface, object), (context, _)| {
            let keep = *context != index;
            if !keep {
                // SAFETY: the driver made it in this context, and it is destroyed once.
                unsafe { destroy_object(driver, *surface, *object) };
            }
            keep
        });
    }
}

/// A description whose fields are read and written by their place, as the C structs have them.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn word(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }

    fn set_long(&mut self, at: usize, value: u64) {
        if let Some(bytes) = self.0.get_mut(at..at + 8) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Puts the driver's own handle into a resource, or checks its memory. Answers what the object must keep.
fn resolve(worker: &Worker, resource: &mut CUDA_RESOURCE_DESC) -> Result<Option<Arc<Object>>, Refusal> {
    // SAFETY: the struct is an array of words without padding, and every bit pattern is one of its values.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::from_mut(resource).cast::<u8>(), size_of::<CUDA_RESOURCE_DESC>())
    };
    let mut fields = Fields(bytes);
    let invalid = Refusal::Code(CUDA_ERROR_INVALID_VALUE);
    match fields.word(0) {
        kind @ (resource_type::ARRAY | resource_type::MIPMAPPED_ARRAY) => {
            let kind = if kind == resource_type::ARRAY { Kind::Array } else { Kind::MipmappedArray };
            let array = worker.handles.pin(kind, fields.long(8))?;
            fields.set_long(8, array.raw);
            Ok(Some(array))
        }
        resource_type::LINEAR => {
            worker.memory.check(fields.long(8), fields.long(24).max(1))?;
            Ok(None)
        }
        resource_type::PITCH2D => {
            let (width, height, pitch) = (fields.long(24), fields.long(32), fields.long(40));
            let row = width.checked_mul(MAX_ELEMENT).map(|row| row.min(pitch)).ok_or(invalid)?;
            let rows = height.checked_sub(1).and_then(|rows| rows.checked_mul(pitch)).ok_or(invalid)?;
            worker.memory.check(fields.long(8), rows.checked_add(row).ok_or(invalid)?.max(1))?;
            Ok(None)
        }
        _ => Err(invalid),
    }
}

pub(crate) fn create(
    worker: &Worker,
    request: ImageObjectCreate,
    reply: Reply<'_, '_, ImageObjectCreate>,
) -> Outcome {
    let ImageObjectCreate { is_surface: surface, mut resource, texture, view } = request;
    if worker.images.known().len() >= MOST_OBJECTS {
        return Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY));
    }
    let array = resolve(worker, &mut resource)?;
    let mut object = 0;
    // SAFETY: all are locals; what the resource names was checked and is held.
    succeed(unsafe {
        if surface {
            (worker.driver.cuSurfObjectCreate)(&mut object, &resource)
        } else {
            let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            (worker.driver.cuTexObjectCreate)(&mut object, &resource, &texture, view)
        }
    })?;
    worker.images.known().insert((surface, object), (worker.context_tag(), array));
    reply.send(&ImageObjectCreated { object })
}

/// # Safety
/// The object must be one of the driver's, and be used by nobody.
unsafe fn destroy_object(driver: &Driver, surface: bool, object: u64) -> CUresult {
    // SAFETY: as promised.
    unsafe { if surface { (driver.cuSurfObjectDestroy)(object) } else { (driver.cuTexObjectDestroy)(object) } }
}

pub(crate) fn destroy(worker: &Worker, request: ImageObjectDestroy) -> Outcome {
    let ImageObjectDestroy { is_surface: surface, object } = request;
    let mut known = worker.images.known();
    if known.get(&(surface, object)).is_none_or(|(context, _)| *context != worker.context_tag()) {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
    }
    let kept = known.remove(&(surface, object));
    drop(known);
    // SAFETY: the driver made it in this context, and nobody has destroyed it.
    let code = unsafe { destroy_object(&worker.driver, surface, object) };
    // The array may go only now.
    drop(kept);
    Ok(code)
}
