//! Objects of the application's that graphs keep alive.

use std::sync::Arc;

use cuda_abi::constants::{retain_flag, user_object_flag};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::graph;
use crate::abi::*;
use crate::handles::{Table, of, out};
use crate::state;

static OBJECTS: Table<UserObject> = Table::new(23);

pub(super) struct UserObject {
    handle: u64,
    destroy: unsafe extern "C" fn(*mut c_void),
    user: u64,
    references: Mutex<u64>,
}

impl UserObject {
    fn retain(&self, count: u64) {
        *self.references.lock() += count;
    }

    /// Gives up references; the last one ends the object.
    fn release(&self, count: u64) -> CudaResult {
        if count == 0 {
            return Ok(());
        }
        let mut references = self.references.lock();
        valid(count <= *references)?;
        *references -= count;
        if *references == 0 {
            drop(references);
            let _ = OBJECTS.remove(self.handle);
            // SAFETY: the application's own function and argument.
            state::in_callback(|| unsafe { (self.destroy)(out(self.user)) });
        }
        Ok(())
    }
}

/// References that a graph has.
pub(super) struct Kept {
    object: Arc<UserObject>,
    count: u64,
}

impl Clone for Kept {
    fn clone(&self) -> Self {
        self.object.retain(self.count);
        Kept { object: self.object.clone(), count: self.count }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.object.release(self.count);
    }
}

fn object(handle: CUuserObject) -> CudaResult<Arc<UserObject>> {
    state::state()?;
    OBJECTS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

fn cuUserObjectCreate(
    made: Out<CUuserObject>,
    user: *mut c_void,
    destroy: CUhostFn,
    references: u32,
    flags: u32,
) -> CudaResult {
    state::state()?;
    made.required()?;
    let destroy = destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    valid(references > 0 && flags == user_object_flag::NO_DESTRUCTOR_SYNC)?;
    let references = Mutex::new(u64::from(references));
    let (handle, _) = OBJECTS.insert_with(|handle| UserObject { handle, destroy, user: of(user), references });
    made.put(out(handle))
}

fn cuUserObjectRetain(handle: CUuserObject, count: u32) -> CudaResult {
    valid(count > 0)?;
    object(handle)?.retain(count.into());
    Ok(())
}

fn cuUserObjectRelease(handle: CUuserObject, count: u32) -> CudaResult {
    valid(count > 0)?;
    object(handle)?.release(count.into())
}

fn cuGraphRetainUserObject(handle: CUgraph, what: CUuserObject, count: u32, flags: u32) -> CudaResult {
    let (graph, object) = (graph(handle)?, object(what)?);
    valid(count > 0 && flags & !retain_flag::MOVE == 0)?;
    let count = u64::from(count);
    if flags & retain_flag::MOVE == 0 {
        object.retain(count);
    }
    graph.inner.lock().objects.push(Kept { object, count });
    Ok(())
}

fn cuGraphReleaseUserObject(handle: CUgraph, what: CUuserObject, count: u32) -> CudaResult {
    let (graph, object) = (graph(handle)?, object(what)?);
    let mut left = u64::from(count);
    let mut gone = Vec::new();
    let mut inner = graph.inner.lock();
    let held = inner.objects.iter().filter(|kept| Arc::ptr_eq(&kept.object, &object));
    valid(count > 0 && held.map(|kept| kept.count).sum::<u64>() >= left)?;
    for kept in inner.objects.iter_mut().filter(|kept| Arc::ptr_eq(&kept.object, &object)) {
        let now = left.min(kept.count);
        kept.count -= now;
        left -= now;
        gone.push(Kept { object: object.clone(), count: now });
    }
    inner.objects.retain(|kept| kept.count > 0);
    drop(inner);
    drop(gone);
    Ok(())
}

pub(super) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuUserObjectCreate,
        cuUserObjectRetain,
        cuUserObjectRelease,
        cuGraphRetainUserObject,
        cuGraphReleaseUserObject
    )
}
