//! Images that come with more than themselves: options for the compiler, and what they were linked from.

use std::ptr::null_mut;

use cuda_abi::error::*;
use cuda_abi::image::{self, Image, Wrapper};
use cuda_abi::wire::ops::{ImageLoad, ImageLoaded, ImageOrder};
use cuda_abi::wire::{self, Kind, Typed};

use super::Reply;
use super::jit::Jit;
use super::module::take_upload;
use crate::{Outcome, Refusal, Worker, succeed};

struct Order {
    into_library: bool,
    jit: Jit,
    /// What is to be loaded, then what it was linked from; each with a byte behind it that ends text.
    images: Vec<Vec<u8>>,
}

fn read(upload: &[u8]) -> Result<Order, Refusal> {
    let ImageOrder { into_library, options, images: given } = wire::decode(upload)?;
    let jit = Jit::new(options)?;
    if given.is_empty() {
        return Err(Refusal::Malformed);
    }
    let mut images = Vec::new();
    for image in given.iter() {
        let mut bytes = image.to_vec();
        bytes.push(0);
        // Behind a wrapper there are containers.
        let fits = given.len() == 1 || bytes.starts_with(&image::CONTAINER_MAGIC.to_le_bytes());
        if !fits || !image::is_whole(&bytes) {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_IMAGE));
        }
        images.push(bytes);
    }
    Ok(Order { into_library, jit, images })
}

pub(super) fn load(worker: &Worker, lane: u32, request: ImageLoad, reply: Reply<'_, '_, ImageLoad>) -> Outcome {
    let mut order = read(&take_upload(worker, lane, request.order)?)?;
    worker.handles.room()?;
    let bytes: usize = order.images.iter().map(Vec::len).sum();
    let charge = worker.memory.charge(worker.gpu(), bytes as u64)?;
    let loaded = run(worker, &mut order);
    let word = match loaded {
        Ok((kind, raw, context)) => {
            let word = worker.handles.open(kind, raw, context)?;
            worker.handles.pays(word, charge);
            word
        }
        Err(_) => 0,
    };
    let code = match loaded {
        Ok(_) => CUDA_SUCCESS,
        Err(Refusal::Code(code)) => code,
        Err(other) => return Err(other),
    };
    reply.send(&ImageLoaded { code, object: Typed(word), logs: order.jit.logs() })
}

/// Kind, object and context of what the driver made of it.
fn run(worker: &Worker, order: &mut Order) -> Result<(Kind, u64, u32), Refusal> {
    let image = Image { main: &order.images[0], parts: order.images[1..].iter().map(Vec::as_slice).collect() };
    let wrapper = Wrapper::new(&image);
    let code = if image.parts.is_empty() { image.main.as_ptr() } else { wrapper.as_ptr() }.cast();
    let jit = &mut order.jit;
    let (count, options, values) = (jit.options.len() as u32, jit.options.as_mut_ptr(), jit.values.as_mut_ptr());
    let mut made = null_mut();
    if order.into_library {
        let (no_options, no_values) = (null_mut(), null_mut());
        // SAFETY: all images are whole; without BINARY_IS_PRESERVED the driver makes its own copy. Options are as many as
        // said.
        succeed(unsafe {
            (worker.driver.cuLibraryLoadData)(&mut made, code, options, values, count, no_options, no_values, 0)
        })?;
        return Ok((Kind::Library, made as u64, 0));
    }
    // SAFETY: as above.
    succeed(unsafe { (worker.driver.cuModuleLoadDataEx)(&mut made, code, count, options, values) })?;
    Ok((Kind::Module, made as u64, worker.context_tag()))
}
