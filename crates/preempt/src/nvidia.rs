//! The work of a worker on NVIDIA's driver.
//!
//! Stopping disables the channels of its compute groups: RM takes them off the runlist and has the engine switch away, in
//! the middle of a kernel, for the driver library asks for instruction-level preemption itself. Groups of copy engines
//! are left alone: a copy ends by itself, and holds no multiprocessor.
//!
//! A handle is only a number. Before every call each one is looked up through the worker's descriptor: a client of another
//! process is refused by RM, an object that was freed is dropped, and one that is not what it was said to be is not used.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::preemptor::{Costs, PreemptError, Preemptor};
use crate::rm::{Calls, Class, DisableChannels, HandleInfo, KnownDriver, MAX_CHANNELS, Object, RmError, Timeslice};

/// As many objects as are kept of one worker: more than contexts that fit on any GPU have. Those of contexts that are gone are dropped
/// at the next look, which the broker sees to.
pub const MAX_OBJECTS: usize = 16_384;

/// A worker's objects, and the descriptor that gives a right over them.
pub struct Nvidia<F = OwnedFd> {
    driver: KnownDriver,
    /// None while nobody lends any: a duplicate keeps the GPU's memory from coming back, and has the driver clean up after a
    /// process in another one, of which it complains.
    file: Option<F>,
    objects: Vec<Object>,
    /// What was asked for, which counts for what is made later, too.
    is_stopped: bool,
    slice: Option<Duration>,
}

/// Why an object of a worker is not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// Preemption has no use for such objects.
    #[error("class 0x{0:x} is not one of a channel")]
    Class(u32),
    /// More than any driver library makes.
    #[error("too many objects")]
    TooMany,
    /// RM knows no such object of this worker.
    #[error(transparent)]
    Unknown(#[from] RmError),
    /// It could not be given what its worker has.
    #[error(transparent)]
    Late(#[from] PreemptError),
    /// RM says that it is another.
    #[error("RM knows 0x{handle:x} as another object")]
    Another { handle: u32 },
}

impl<F: Calls> Nvidia<F> {
    /// With a duplicate of the worker's `/dev/nvidiactl`.
    pub fn new(driver: KnownDriver, file: F) -> Self {
        Self { driver, file: Some(file), objects: Vec::new(), is_stopped: false, slice: None }
    }

    /// With another duplicate.
    pub fn lend(&mut self, file: F) {
        self.file = Some(file);
    }

    /// Closes the duplicate, unless the worker is stopped: whoever resumes it needs one.
    pub fn release(&mut self) {
        if !self.is_stopped {
            self.file = None;
        }
    }

    /// Adds an object that its recorder told of, if RM knows it as such; without a duplicate that is asked before its first
    /// use. What is made while the worker is stopped is stopped, too.
    pub fn add(&mut self, object: Object) -> Result<(), NotTaken> {
        if object.kind().is_none() {
            return Err(NotTaken::Class(object.class));
        }
        if self.objects.contains(&object) {
            return Ok(());
        }
        if self.objects.len() >= MAX_OBJECTS {
            return Err(NotTaken::TooMany);
        }
        if let Some(file) = &self.file {
            self.check(file, &object)?;
        }
        self.objects.push(object);
        if self.file.is_none() {
            return Ok(());
        }
        match (object.kind(), self.slice) {
            (Some(Class::Channel), _) if self.is_stopped => self.disable(true)?,
            (Some(Class::ChannelGroup), Some(slice)) => self.give_slice(slice)?,
            _ => {}
        }
        Ok(())
    }

    /// What is added later is stopped, and has this slice.
    pub fn follow(&mut self, is_stopped: bool, slice: Option<Duration>) {
        (self.is_stopped, self.slice) = (is_stopped, slice);
    }

    /// The objects that are known.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    fn check(&self, file: &F, object: &Object) -> Result<(), NotTaken> {
        let ask = |index| {
            let mut info = HandleInfo { handle: object.handle, index, result: 0 };
            let whom = (object.client, object.client);
            file.control(whom, self.driver.handle_info, &mut info).map(|()| info.result)
        };
        let class = ask(HandleInfo::CLASS)? as u32;
        let same = match object.kind() {
            // The library may ask for it by another of its numbers.
            Some(Class::Client) => Class::of(class) == Some(Class::Client) && object.handle == object.client,
            _ => class == object.class && ask(HandleInfo::PARENT)? as u32 == object.parent,
        };
        if same { Ok(()) } else { Err(NotTaken::Another { handle: object.handle }) }
    }

    /// Forgets what is gone by now, and what never was.
    fn look_again(&mut self) -> Result<(), PreemptError> {
        let objects = std::mem::take(&mut self.objects);
        let Some(file) = &self.file else {
            self.objects = objects;
            return Err(PreemptError::NoDescriptor);
        };
        self.objects = objects.into_iter().filter(|object| self.check(file, object).is_ok()).collect();
        Ok(())
    }

    fn of(&self, class: Class) -> impl Iterator<Item = &Object> {
        self.objects.iter().filter(move |object| object.kind() == Some(class))
    }

    /// Groups whose channels run kernels.
    fn groups(&self) -> Vec<Object> {
        let computes = |group: &&Object| group.computes() || self.channels(group).any(|channel| channel.computes());
        self.of(Class::ChannelGroup).filter(computes).copied().collect()
    }

    fn channels(&self, group: &Object) -> impl Iterator<Item = &Object> {
        let (client, handle) = (group.client, group.handle);
        self.of(Class::Channel).filter(move |channel| channel.client == client && channel.parent == handle)
    }

    /// The GPU that a group was made on: groups and subdevices lie below the same device.
    fn subdevice(&self, group: &Object) -> Option<u32> {
        let same = |subdevice: &&Object| subdevice.client == group.client && subdevice.parent == group.parent;
        self.of(Class::Subdevice).find(same).map(|subdevice| subdevice.handle)
    }

    /// Disables or enables the channels of all compute groups.
    fn disable(&mut self, disable: bool) -> Result<(), PreemptError> {
        self.look_again()?;
        let file = self.file.as_ref().ok_or(PreemptError::NoDescriptor)?;
        for group in self.groups() {
            let channels: Vec<u32> = self.channels(&group).map(|channel| channel.handle).collect();
            let Some(subdevice) = self.subdevice(&group) else { continue };
            for some in channels.chunks(MAX_CHANNELS) {
                let mut message = DisableChannels::new(disable, group.client, some);
                let whom = (group.client, subdevice);
                file.control(whom, self.driver.disable_channels, &mut message)?;
            }
        }
        Ok(())
    }

    fn give_slice(&mut self, slice: Duration) -> Result<(), PreemptError> {
        self.look_again()?;
        let file = self.file.as_ref().ok_or(PreemptError::NoDescriptor)?;
        let microseconds = u64::try_from(slice.as_micros()).unwrap_or(u64::MAX).max(1);
        for group in self.groups() {
            let mut message = Timeslice { microseconds };
            let whom = (group.client, group.handle);
            file.control(whom, self.driver.set_timeslice, &mut message)?;
        }
        Ok(())
    }
}

impl<F: Calls> Preemptor for Nvidia<F> {
    /// On an H200 with driver 580.159.04, beside a neighbour whose kernel fills the GPU.
    fn costs(&self) -> Costs {
        Costs {
            slice: Duration::from_micros(700),
            stop: Duration::from_micros(900),
            stop_endless: Duration::from_millis(10),
            resume: Duration::from_millis(20),
        }
    }

    fn set_slice(&mut self, slice: Duration) -> Result<(), PreemptError> {
        self.slice = Some(slice);
        self.give_slice(slice)
    }

    fn stop(&mut self) -> Result<(), PreemptError> {
        self.is_stopped = true;
        // Some may be stopped when another is refused: none is left so.
        self.disable(true).inspect_err(|_| {
            self.is_stopped = false;
            let _ = self.disable(false);
        })
    }

    fn resume(&mut self) -> Result<(), PreemptError> {
        self.disable(false)?;
        self.is_stopped = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
