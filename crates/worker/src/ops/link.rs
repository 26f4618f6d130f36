//! Linking: the inputs come in one upload, the result is fetched by parts.

use std::ptr::null_mut;

use cuda_abi::constants::jit_input;
use cuda_abi::error::*;
use cuda_abi::image;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{self, LinkInput, LinkOrder, LinkPart, LinkResult, Linked};
use cuda_abi::wire::{self, MAX_IMAGE, Raw};

use super::Reply;
use super::jit::Jit;
use super::module::take_upload;
use crate::{Outcome, Refusal, Worker, succeed};

/// Ends with the link it is for.
struct Link<'a> {
    worker: &'a Worker,
    state: CUlinkState,
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the driver, and nobody else knows it.
        unsafe { (self.worker.driver.cuLinkDestroy)(self.state) };
    }
}

/// What the client uploaded: options, and kind and bytes of each input.
type Order = (Jit, Vec<(u32, Vec<u8>)>);

fn read(upload: &[u8]) -> Result<Order, Refusal> {
    let order: LinkOrder<'_> = wire::decode(upload)?;
    let jit = Jit::new(order.options)?;
    let mut inputs = Vec::new();
    for LinkInput { kind, image } in order.inputs.iter() {
        let mut bytes = image.to_vec();
        // PTX is text that ends with a NUL; for the others one more byte does no harm.
        bytes.push(0);
        if kind > jit_input::OBJECT || !image::is_whole(&bytes) {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_IMAGE));
        }
        inputs.push((kind, bytes));
    }
    Ok((jit, inputs))
}

pub(super) fn link(worker: &Worker, lane: u32, request: ops::Link, reply: Reply<'_, '_, ops::Link>) -> Outcome {
    let (mut jit, inputs) = read(&take_upload(worker, lane, request.order)?)?;
    worker.uploads().results.remove(&lane);
    let linked = run(worker, &inputs, &mut jit).and_then(|result| {
        // Results wait until they are fetched, one for each lane; all together are no more than one image may be.
        let waiting: usize = worker.uploads().results.values().map(Vec::len).sum();
        if waiting + result.len() > MAX_IMAGE {
            return Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY));
        }
        Ok(result)
    });
    let code = match &linked {
        Ok(_) => CUDA_SUCCESS,
        Err(Refusal::Code(code)) => *code,
        Err(_) => CUDA_ERROR_UNKNOWN,
    };
    let result = linked.unwrap_or_default();
    let linked = reply.send(&Linked { code, logs: jit.logs(), bytes: result.len() });
    if !result.is_empty() {
        worker.uploads().results.insert(lane, result);
    }
    linked
}

fn run(worker: &Worker, inputs: &[(u32, Vec<u8>)], jit: &mut Jit) -> Result<Vec<u8>, Refusal> {
    let driver = &worker.driver;
    let bytes: usize = inputs.iter().map(|(_, bytes)| bytes.len()).sum();
    // What the linker makes of them is charged while it works.
    let _charge = worker.memory.charge(worker.gpu(), bytes as u64)?;
    let mut state = null_mut();
    let (count, options, values) = (jit.options.len() as u32, jit.options.as_mut_ptr(), jit.values.as_mut_ptr());
    // SAFETY: options and values are as many as said, and outlive the link.
    succeed(unsafe { (driver.cuLinkCreate_v2)(count, options, values, &mut state) })?;
    let link = Link { worker, state };
    for (kind, bytes) in inputs {
        // Text counts up to its NUL, whatever comes behind.
        let text = bytes.iter().position(|byte| *byte == 0).map_or(bytes.len(), |end| end + 1);
        let len = if *kind == jit_input::PTX { text } else { bytes.len() - 1 };
        let data = bytes.as_ptr().cast_mut().cast();
        // SAFETY: a whole image of that length; the driver copies it.
        succeed(unsafe {
            (driver.cuLinkAddData_v2)(link.state, *kind, data, len, c"input".as_ptr(), 0, null_mut(), null_mut())
        })?;
    }
    let (mut image, mut size) = (null_mut(), 0usize);
    // SAFETY: outputs are locals.
    succeed(unsafe { (driver.cuLinkComplete)(link.state, &mut image, &mut size) })?;
    if image.is_null() || size > MAX_IMAGE {
        return Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY));
    }
    // SAFETY: the driver's own image, of that size, which lives as long as the link.
    Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
}

pub(super) fn result(worker: &Worker, lane: u32, request: LinkResult, reply: Reply<'_, '_, LinkResult>) -> Outcome {
    let mut uploads = worker.uploads();
    let whole = uploads.results.get(&lane).ok_or(Refusal::Code(CUDA_ERROR_INVALID_VALUE))?;
    let rest = whole.get(request.start..).ok_or(Refusal::Code(CUDA_ERROR_INVALID_VALUE))?;
    let part = &rest[..rest.len().min(reply.room())];
    let sent = reply.send(&LinkPart { part: Raw(part) });
    if part.len() == rest.len() {
        uploads.results.remove(&lane);
    }
    sent
}
