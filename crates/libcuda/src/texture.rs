//! Texture and surface objects, and references. Descriptions of objects, and which array a reference is bound to, are kept
//! here, so that questions about them need no message.
#![allow(non_snake_case)]

use std::collections::HashMap;

use cuda_abi::border::{In, Out};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;
use cuda_abi::wire::ops::{ImageObjectCreate, ImageObjectDestroy};
use parking_lot::Mutex;

use crate::copy::answer;
use crate::{exports, handles, operation};

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

/// The array that each reference is bound to.
static BOUND: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// Remembers what a reference is bound to; 0 is plain memory.
pub(crate) fn bind(reference: u64, array: u64) {
    let mut bound = BOUND.lock();
    let bound = bound.get_or_insert_default();
    if array == 0 {
        bound.remove(&reference)
    } else {
        bound.insert(reference, array)
    };
}

/// The array that a reference is bound to, if it is one of this kind that is there still.
fn bound(reference: u64, kind: Kind) -> CudaResult<u64> {
    let array = BOUND.lock().as_ref().and_then(|bound| bound.get(&reference).copied());
    handles::check(kind, array.unwrap_or(0)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn cuTexRefGetArray(to: Out<CUarray>, reference: CUtexref) -> CudaResult {
    to.required()?;
    let reference = handles::check(Kind::TexRef, reference as u64)?;
    to.put(bound(reference, Kind::Array)? as CUarray)
}

pub(crate) fn cuTexRefGetMipmappedArray(to: Out<CUmipmappedArray>, reference: CUtexref) -> CudaResult {
    to.required()?;
    let reference = handles::check(Kind::TexRef, reference as u64)?;
    to.put(bound(reference, Kind::MipmappedArray)? as CUmipmappedArray)
}

pub(crate) fn cuSurfRefGetArray(to: Out<CUarray>, reference: CUsurfref) -> CudaResult {
    to.required()?;
    let reference = handles::check(Kind::SurfRef, reference as u64)?;
    to.put(bound(reference, Kind::Array)? as CUarray)
}

pub(crate) fn cuTexRefSetAddress2D_v2(
    reference: CUtexref,
    about: In<CUDA_ARRAY_DESCRIPTOR>,
    address: CUdeviceptr,
    pitch: usize,
) -> CudaResult {
    let about = about.take()?;
    // SAFETY: the description is a local.
    answer(unsafe { exports::cuTexRefSetAddress2D_v3(reference, &about, address, pitch) })
}
