//! Texture and surface objects. Their descriptions are kept here, so that questions about them need no message.
#![allow(non_snake_case)]

use std::collections::HashMap;

use cuda_abi::border::{In, Out};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{ImageObjectCreate, ImageObjectDestroy};
use parking_lot::Mutex;

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

fn create(surface: bool, made: Made, has_view: bool) -> CudaResult<u64> {
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

fn destroy(surface: bool, object: u64) -> CudaResult {
    operation::call(&ImageObjectDestroy { is_surface: surface, object }, |()| ())?;
    OBJECTS.lock().get_or_insert_default().remove(&(surface, object));
    Ok(())
}

fn made(surface: bool, object: u64) -> CudaResult<Made> {
    OBJECTS.lock().get_or_insert_default().get(&(surface, object)).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn cuTexObjectCreate(
    object: Out<CUtexObject>,
    resource: In<CUDA_RESOURCE_DESC>,
    about: In<CUDA_TEXTURE_DESC>,
    view: In<CUDA_RESOURCE_VIEW_DESC>,
) -> CudaResult {
    object.required()?;
    let made = Made { resource: resource.take()?, about: about.take()?, view: view.get().unwrap_or_default() };
    let number = create(false, made, !view.is_null())?;
    object.put(number)
}

pub(crate) fn cuTexObjectDestroy(object: CUtexObject) -> CudaResult {
    destroy(false, object)
}

pub(crate) fn cuTexObjectGetResourceDesc(to: Out<CUDA_RESOURCE_DESC>, object: CUtexObject) -> CudaResult {
    to.put(made(false, object)?.resource)
}

pub(crate) fn cuTexObjectGetTextureDesc(to: Out<CUDA_TEXTURE_DESC>, object: CUtexObject) -> CudaResult {
    to.put(made(false, object)?.about)
}

pub(crate) fn cuTexObjectGetResourceViewDesc(to: Out<CUDA_RESOURCE_VIEW_DESC>, object: CUtexObject) -> CudaResult {
    to.put(made(false, object)?.view)
}

pub(crate) fn cuSurfObjectCreate(object: Out<CUsurfObject>, resource: In<CUDA_RESOURCE_DESC>) -> CudaResult {
    object.required()?;
    let (about, view) = Default::default();
    let made = Made { resource: resource.take()?, about, view };
    let number = create(true, made, false)?;
    object.put(number)
}

pub(crate) fn cuSurfObjectDestroy(object: CUsurfObject) -> CudaResult {
    destroy(true, object)
}

pub(crate) fn cuSurfObjectGetResourceDesc(to: Out<CUDA_RESOURCE_DESC>, object: CUsurfObject) -> CudaResult {
    to.put(made(true, object)?.resource)
}
