//! Images that come with more than themselves: options for the compiler, and what they were linked from.

use std::ptr::null_mut;

use cuda_abi::error::*;
use cuda_abi::image::{self, Image, Wrapper};
use cuda_abi::wire::{Kind, MAX_IMAGE_PARTS, Reader, Writer};

use super::jit::Jit;
use super::module::take_upload;
use crate::{Outcome, Refusal, Worker, succeed};

struct Order {
    library: bool,
    jit: Jit,
    /// What is to be loaded, then what it was linked from; each with a byte behind it that ends text.
    images: Vec<Vec<u8>>,
}

fn read(upload: &[u8]) -> Result<Order, Refusal> {
    let mut reader = Reader::new(upload);
    let library = match reader.word()? {
        0 => false,
        1 => true,
        _ => return Err(Refusal::Malformed),
    };
    let jit = Jit::read(&mut reader)?;
    let count: usize = reader.narrow()?;
    if !(1..=1 + MAX_IMAGE_PARTS).contains(&count) {
        return Err(Refusal::Malformed);
    }
    let mut images = Vec::new();
    for _ in 0..count {
        let mut bytes = reader.bytes()?.to_vec();
        bytes.push(0);
        // Behind a wrapper there are containers.
        let fits = count == 1 || bytes.starts_with(&image::CONTAINER_MAGIC.to_le_bytes());
        if !fits || !image::is_whole(&bytes) {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_IMAGE));
        }
        images.push(bytes);
    }
    reader.end()?;
    Ok(Order { library, jit, images })
}

pub fn load(worker: &Worker, lane: u32, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let mut order = read(&take_upload(worker, lane, message)?)?;
    worker.handles.room()?;
    let bytes: usize = order.images.iter().map(Vec::len).sum();
    let charge = worker.memory.charge(bytes as u64)?;
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
    reply.words(&[u64::from(code), word]);
    order.jit.reply(reply);
    Ok(CUDA_SUCCESS)
}

/// Kind, object and context of what the driver made of it.
fn run(worker: &Worker, order: &mut Order) -> Result<(Kind, u64, u32), Refusal> {
    let image = Image { main: &order.images[0], parts: order.images[1..].iter().map(Vec::as_slice).collect() };
    let wrapper = Wrapper::new(&image);
    let code = if image.parts.is_empty() { image.main.as_ptr() } else { wrapper.as_ptr() }.cast();
    let jit = &mut order.jit;
    let (count, options, values) = (jit.options.len() as u32, jit.options.as_mut_ptr(), jit.values.as_mut_ptr());
    let mut made = null_mut();
    if order.library {
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
