//! Texture and surface objects. Their descriptions are kept here, so that questions about them need no message.
#![allow(non_snake_case)]

use std::collections::HashMap;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{ImageObjectCreate, ImageObjectDestroy};
use parking_lot::Mutex;

use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::operation;

/// What an object was made of, with the program's own handles in it.
#[derive(Clone, Copy)]
struct Made {
    resource: CUDA_RESOURCE_DESC,
    about: CUDA_TEXTURE_DESC,
    view: CUDA_RESOURCE_VIEW_DESC,
}

/// By whether it is a surface, and number.
static OBJECTS: Mutex<Option<HashMap<(bool, u64), Made>>> = Mutex::new(None);

fn create(surface: bool, made: Made, has_view: bool) -> Cuda<u64> {
    let request = ImageObjectCreate {
        is_surface: surface,
        resource: made.resource,
        texture: made.about,
        view: has_view.then_some(made.view),
    };
    let object = operation::call(&request, |reply| reply.object)?;
    OBJECTS.lock().get_or_insert_default().insert((surface, object), made);
    Ok(object)
}

fn destroy(surface: bool, object: u64) -> Cuda {
    operation::call(&ImageObjectDestroy { is_surface: surface, object }, |()| ())?;
    OBJECTS.lock().get_or_insert_default().remove(&(surface, object));
    Ok(())
}

fn made(surface: bool, object: u64) -> Cuda<Made> {
    OBJECTS.lock().get_or_insert_default().get(&(surface, object)).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
}

pub unsafe fn cuTexObjectCreate(
    object: *mut CUtexObject,
    resource: *const CUDA_RESOURCE_DESC,
    about: *const CUDA_TEXTURE_DESC,
    view: *const CUDA_RESOURCE_VIEW_DESC,
) -> Cuda {
    not_null(object)?;
    not_null(resource)?;
    not_null(about)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let made = unsafe {
        let given = if view.is_null() { CUDA_RESOURCE_VIEW_DESC::default() } else { view.read() };
        Made { resource: resource.read(), about: about.read(), view: given }
    };
    let number = create(false, made, !view.is_null())?;
    // SAFETY: passed on.
    unsafe { put(object, number) }
}

pub unsafe fn cuTexObjectDestroy(object: CUtexObject) -> Cuda {
    destroy(false, object)
}

pub unsafe fn cuTexObjectGetResourceDesc(to: *mut CUDA_RESOURCE_DESC, object: CUtexObject) -> Cuda {
    // SAFETY: passed on.
    unsafe { put(to, made(false, object)?.resource) }
}

pub unsafe fn cuTexObjectGetTextureDesc(to: *mut CUDA_TEXTURE_DESC, object: CUtexObject) -> Cuda {
    // SAFETY: passed on.
    unsafe { put(to, made(false, object)?.about) }
}

pub unsafe fn cuTexObjectGetResourceViewDesc(to: *mut CUDA_RESOURCE_VIEW_DESC, object: CUtexObject) -> Cuda {
    // SAFETY: passed on.
    unsafe { put(to, made(false, object)?.view) }
}

pub unsafe fn cuSurfObjectCreate(object: *mut CUsurfObject, resource: *const CUDA_RESOURCE_DESC) -> Cuda {
    not_null(object)?;
    not_null(resource)?;
    let (about, view) = Default::default();
    // SAFETY: not NULL; the rest is the caller's promise.
    let made = Made { resource: unsafe { resource.read() }, about, view };
    let number = create(true, made, false)?;
    // SAFETY: passed on.
    unsafe { put(object, number) }
}

pub unsafe fn cuSurfObjectDestroy(object: CUsurfObject) -> Cuda {
    destroy(true, object)
}

pub unsafe fn cuSurfObjectGetResourceDesc(to: *mut CUDA_RESOURCE_DESC, object: CUsurfObject) -> Cuda {
    // SAFETY: passed on.
    unsafe { put(to, made(true, object)?.resource) }
}
