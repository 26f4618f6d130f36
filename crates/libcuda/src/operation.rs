//! The protocol's own operations, as this side sends them: `cuda_abi::wire::ops` says what a request and its reply hold.
//!
//! How a request goes out is said in [`carry`]: posted, called or blocking, here as there.

use cuda_abi::error::*;
use cuda_abi::wire::{Decode, Malformed, Operation, Reader, Writer, encode_into};

use crate::carry;
use crate::session::Session;

/// Posts a request that nobody waits for.
pub(crate) fn post<R: Operation>(request: &R) -> CudaResult {
    carry::post(R::CODE, write(request))
}

/// As `post`, written straight into the ring. The caller has seen to it that it keeps to its bounds.
#[inline]
pub(crate) fn post_in_place<R: Operation>(request: &R) -> CudaResult {
    carry::post_sized(R::CODE, request.size(), |slot| encode_into(request, slot))
}

/// As `post_in_place`; then `fill` puts the rest where the request's last field has reserved room for it.
#[inline]
pub(crate) fn post_and_fill<R: Operation>(request: &R, fill: impl FnOnce(&mut [u8])) -> CudaResult {
    carry::post_sized(R::CODE, request.size(), |slot| {
        encode_into(request, slot);
        fill(slot);
    })
}

/// Posts a request in a context that need not be this thread's own; answers the ring position after it.
pub(crate) fn post_in<R: Operation>(session: &Session, tag: u32, request: &R) -> CudaResult<u64> {
    carry::post_sized_in(session, tag, R::CODE, request.size(), |slot| encode_into(request, slot))
}

/// Asks and waits for the answer, in order with everything posted.
pub(crate) fn call<R: Operation, T>(request: &R, read: impl FnOnce(R::Reply<'_>) -> T) -> CudaResult<T> {
    let mut answer = None;
    carry::call(R::CODE, write(request), reading::<R, T>(&mut answer, read))?;
    answer.ok_or(CUDA_ERROR_UNKNOWN)
}

/// As `call`, in a context that need not be this thread's own.
pub(crate) fn call_in<R: Operation, T>(
    session: &Session,
    tag: u32,
    request: &R,
    read: impl FnOnce(R::Reply<'_>) -> T,
) -> CudaResult<T> {
    let mut answer = None;
    carry::call_with(session, R::CODE, tag, write(request), reading::<R, T>(&mut answer, read))?;
    answer.ok_or(CUDA_ERROR_UNKNOWN)
}

/// Asks something that may take long: it is executed after everything posted so far, without holding up others.
pub(crate) fn block<R: Operation, T>(request: &R, read: impl FnOnce(R::Reply<'_>) -> T) -> CudaResult<T> {
    let mut answer = None;
    carry::block(R::CODE, write(request), reading::<R, T>(&mut answer, read))?;
    answer.ok_or(CUDA_ERROR_UNKNOWN)
}

/// As `block`, in a context that need not be this thread's own.
pub(crate) fn block_in<R: Operation, T>(
    session: &Session,
    tag: u32,
    request: &R,
    read: impl FnOnce(R::Reply<'_>) -> T,
) -> CudaResult<T> {
    block_after(session, tag, session.client.position(), request, read)
}

/// As `block_in`, after what was posted before a position of the ring: 0 for what comes after nothing.
pub(crate) fn block_after<R: Operation, T>(
    session: &Session,
    tag: u32,
    after: u64,
    request: &R,
    read: impl FnOnce(R::Reply<'_>) -> T,
) -> CudaResult<T> {
    let mut answer = None;
    carry::block_after(session, R::CODE, tag, after, write(request), reading::<R, T>(&mut answer, read))?;
    answer.ok_or(CUDA_ERROR_UNKNOWN)
}

/// As `block`, of what takes longer than an answer mostly does, and not long.
pub(crate) fn block_briefly<R: Operation, T>(request: &R, read: impl FnOnce(R::Reply<'_>) -> T) -> CudaResult<T> {
    let mut answer = None;
    carry::block_briefly(R::CODE, write(request), reading::<R, T>(&mut answer, read))?;
    answer.ok_or(CUDA_ERROR_UNKNOWN)
}

/// Uploads what is too long for a message, by parts, then asks what is to be done with it.
pub(crate) fn upload<R: Operation, T>(
    image: &[u8],
    request: &R,
    read: impl FnOnce(R::Reply<'_>) -> T,
) -> CudaResult<T> {
    let mut answer = None;
    carry::upload(image, R::CODE, write(request), reading::<R, T>(&mut answer, read))?;
    answer.ok_or(CUDA_ERROR_UNKNOWN)
}

fn write<R: Operation>(request: &R) -> impl FnOnce(&mut Writer<'_>) {
    |writer| request.encode(writer)
}

/// Reads a whole reply, and leaves in `answer` what `read` makes of it.
fn reading<R: Operation, T>(
    answer: &mut Option<T>,
    read: impl FnOnce(R::Reply<'_>) -> T,
) -> impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed> {
    move |reader| {
        let reply = Decode::decode(reader)?;
        reader.end()?;
        *answer = Some(read(reply));
        Ok(())
    }
}
