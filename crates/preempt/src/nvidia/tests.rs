//! Against an RM of the test's own, which keeps to the rules that the driver has.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use zerocopy::FromBytes;

use super::*;
use crate::rm::Status;

const CLIENT: u32 = 0xc1d0_0001;
const DRIVER: KnownDriver = KnownDriver::ALL[4];

#[derive(Default)]
struct Rm {
    /// Of the descriptor's own client.
    objects: BTreeMap<u32, (u32, u32)>,
    disabled: RefCell<BTreeSet<u32>>,
    slices: RefCell<BTreeMap<u32, u64>>,
    calls: RefCell<Vec<usize>>,
    /// Disabling this one is refused.
    stubborn: Option<u32>,
}

fn refused(control: u32, status: Status) -> RmError {
    RmError::Refused { control, status }
}

impl Calls for Rm {
    fn call(&self, (client, object): (u32, u32), command: u32, bytes: &mut [u8]) -> Result<(), RmError> {
        if client != CLIENT {
            return Err(refused(command, Status::INVALID_CLIENT));
        }
        if object != CLIENT && !self.objects.contains_key(&object) {
            return Err(refused(command, Status::OBJECT_NOT_FOUND));
        }
        if command == DRIVER.handle_info {
            let info = HandleInfo::mut_from_bytes(bytes).unwrap();
            let found = match info.handle {
                CLIENT => Some((0, 0x41)),
                handle => self.objects.get(&handle).copied(),
            };
            let (parent, class) = found.ok_or_else(|| refused(command, Status::OBJECT_NOT_FOUND))?;
            info.result = if info.index == HandleInfo::PARENT { parent } else { class }.into();
        } else if command == DRIVER.set_timeslice {
            let microseconds = u64::read_from_bytes(bytes).unwrap();
            self.slices.borrow_mut().insert(object, microseconds);
        } else if command == DRIVER.disable_channels {
            let message = DisableChannels::read_from_bytes(bytes).unwrap();
            let channels = &message.channels[..message.count as usize];
            self.calls.borrow_mut().push(channels.len());
            assert!(
                message.clients[..channels.len()].iter().all(|client| *client == CLIENT),
                "RM does not check these"
            );
            assert_eq!((self.objects[&object].1, message.event), (0x2080, 0));
            if message.disable == 1 && self.stubborn.is_some_and(|handle| channels.contains(&handle)) {
                return Err(refused(command, Status(0x65)));
            }
            let mut disabled = self.disabled.borrow_mut();
            for channel in channels {
                if message.disable == 1 {
                    disabled.insert(*channel)
                } else {
                    disabled.remove(channel)
                };
            }
        } else {
            panic!("control 0x{command:x} is not one of ours");
        }
        Ok(())
    }
}

fn object(handle: u32, parent: u32, class: u32, engine: u32) -> Object {
    Object { client: CLIENT, parent, handle, class, engine, descriptor: 5 }
}

/// A compute group with so many channels, and a copy engine's with one.
fn worker(channels: u32, stubborn: Option<u32>) -> Nvidia<Rm> {
    let mut objects = vec![object(2, 1, 0x2080, 0), object(0x10, 1, 0xa06c, 1), object(0x11, 1, 0xa06c, 9)];
    objects.extend((0..channels).map(|at| object(0x100 + at, 0x10, 0xc86f, 0)));
    objects.push(object(0x90, 0x11, 0xc86f, 9));
    let known = objects.iter().map(|object| (object.handle, (object.parent, object.class))).collect();
    let mut worker = Nvidia::new(DRIVER, Rm { objects: known, stubborn, ..Rm::default() });
    worker.add(Object { handle: CLIENT, parent: 0, class: 0x41, ..object(0, 0, 0, 0) }).unwrap();
    objects.into_iter().for_each(|object| worker.add(object).unwrap());
    worker
}

impl Nvidia<Rm> {
    fn rm(&mut self) -> &mut Rm {
        self.file.as_mut().unwrap()
    }
}

#[test]
fn a_worker_keeps_its_memory_from_nobody_while_it_runs() {
    let mut worker = worker(2, None);
    worker.release();
    assert!(worker.file.is_none());
    // Nothing is believed of what is told meanwhile.
    worker.add(object(0x999, 0x10, 0xc86f, 0)).unwrap();
    assert!(matches!(worker.stop(), Err(PreemptError::NoDescriptor)));
    let known = [(2, (1, 0x2080)), (0x10, (1, 0xa06c)), (0x100, (0x10, 0xc86f))];
    worker.lend(Rm { objects: known.into(), ..Rm::default() });
    worker.stop().unwrap();
    assert_eq!(*worker.rm().disabled.borrow(), [0x100].into());
    worker.release();
    assert!(worker.file.is_some(), "else nobody could resume it");
    worker.resume().unwrap();
    worker.release();
    assert!(worker.file.is_none());
}

#[test]
fn kernels_stop_and_copies_go_on() {
    let mut worker = worker(8, None);
    worker.stop().unwrap();
    assert_eq!(worker.rm().disabled.borrow().len(), 8);
    assert!(!worker.rm().disabled.borrow().contains(&0x90), "a copy engine's channel");
    worker.set_slice(Duration::from_micros(200)).unwrap();
    assert_eq!(*worker.rm().slices.borrow(), [(0x10, 200)].into());
    worker.resume().unwrap();
    assert!(worker.rm().disabled.borrow().is_empty());
}

#[test]
fn as_many_calls_as_the_channels_need() {
    let mut worker = worker(130, None);
    worker.stop().unwrap();
    assert_eq!((worker.rm().calls.take(), worker.rm().disabled.borrow().len()), (vec![64, 64, 2], 130));
}

#[test]
fn what_is_made_meanwhile_is_stopped_too() {
    let mut worker = worker(1, None);
    worker.stop().unwrap();
    worker.rm().objects.insert(0x200, (0x10, 0xc86f));
    worker.add(object(0x200, 0x10, 0xc86f, 0)).unwrap();
    assert!(worker.rm().disabled.borrow().contains(&0x200));
}

#[test]
fn a_worker_without_channels_is_stopped_before_it_has_any() {
    let mut later = worker(2, None);
    let channels = later.objects.split_off(2);
    later.stop().unwrap();
    later.set_slice(Duration::from_micros(300)).unwrap();
    assert!(later.rm().disabled.borrow().is_empty() && later.rm().slices.borrow().is_empty());
    channels.into_iter().for_each(|object| later.add(object).unwrap());
    assert_eq!(*later.rm().disabled.borrow(), [0x100, 0x101].into());
    assert_eq!(*later.rm().slices.borrow(), [(0x10, 300)].into());
}

#[test]
fn a_half_stopped_worker_goes_on() {
    let mut worker = worker(70, Some(0x100 + 69));
    assert!(matches!(worker.stop(), Err(PreemptError::Driver(_))));
    assert!(worker.rm().disabled.borrow().is_empty());
}

#[test]
fn objects_that_are_gone_are_not_named_again() {
    let mut worker = worker(3, None);
    worker.rm().objects.remove(&0x101);
    worker.stop().unwrap();
    assert_eq!(*worker.rm().disabled.borrow(), [0x100, 0x102].into());
    worker.rm().objects.clear();
    worker.resume().unwrap();
}

#[test]
fn nobody_names_objects_of_others() {
    let mut worker = worker(1, None);
    let foreign = Object { client: CLIENT + 1, ..object(0x100, 0x10, 0xc86f, 1) };
    let error = worker.add(foreign).unwrap_err();
    assert!(matches!(&error, NotTaken::Unknown(error) if error.status() == Some(Status::INVALID_CLIENT)), "{error}");
    // Another class, another parent, an object that is not there, and one of no use.
    assert!(matches!(worker.add(object(0x90, 0x11, 0xa06c, 1)), Err(NotTaken::Another { handle: 0x90 })));
    assert!(matches!(worker.add(object(0x90, 0x10, 0xc86f, 1)), Err(NotTaken::Another { handle: 0x90 })));
    assert!(matches!(worker.add(object(0x999, 0x10, 0xc86f, 1)), Err(NotTaken::Unknown(_))));
    assert!(matches!(worker.add(object(0x100, 0x10, 0x3e, 1)), Err(NotTaken::Class(0x3e))));
}

/// Each look drops what is gone, so contexts that come and go take no places of those that are there.
#[test]
fn dead_handles_hide_no_channels() {
    const LOOK_AFTER: usize = 1024;
    let known = [(2, (1, 0x2080)), (0x10, (1, 0xa06c)), (0x100, (0x10, 0xc86f))];
    let rm = || Rm { objects: known.into(), ..Rm::default() };
    let mut worker = worker(1, None);
    worker.release();
    let mut refused = 0;
    for at in 0..MAX_OBJECTS + LOOK_AFTER {
        // Nobody can say yet that these are not there.
        let dead = object(0x10_0000 + at as u32, 0x10, 0xc86f, 0);
        refused += usize::from(worker.add(dead).is_err());
        if at % LOOK_AFTER == 0 {
            worker.lend(rm());
            worker.set_slice(Duration::from_millis(2)).unwrap();
            worker.release();
        }
    }
    assert_eq!(refused, 0);
    worker.add(object(0x100, 0x10, 0xc86f, 0)).unwrap();
    worker.lend(rm());
    worker.stop().unwrap();
    assert_eq!(*worker.rm().disabled.borrow(), [0x100].into());
}
