//! What becomes of a call: pure, on a copy of its arguments.

use std::collections::BTreeSet;
use std::io;

use super::Branch;
use super::image::{Image, Memory};
use super::requests::{self, number};
use super::rules::{self, ClassRule, ControlRule, Length, at};

/// Answers of the resource manager, as it would give them itself.
pub mod status {
    pub const INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
    pub const INVALID_ARGUMENT: u32 = 0x1f;
    pub const INVALID_CLIENT: u32 = 0x23;
    pub const NOT_SUPPORTED: u32 = 0x56;
}

/// A slice as long as a driver library gives its own groups, in microseconds.
const MAX_TIMESLICE: u64 = 2048;
/// Groups of channels that are made under supervision and live at a time. A context has four.
const MAX_GROUPS: usize = 256;

/// What becomes of a call.
#[derive(Debug)]
pub enum Decision {
    /// It is made on the copy.
    Perform(Performance),
    /// It is answered without being made, and that is no news: the copy goes back.
    Answer(Image),
    /// It is answered with a status, which goes back with the arguments.
    Refuse(Image, u32),
    /// It gets an error number.
    Fail(i32),
}

/// A call to be made.
#[derive(Debug)]
pub struct Performance {
    /// Its arguments.
    pub image: Image,
    /// Clients that must be the worker's own, by the word of the driver; the driver asks nobody about them.
    pub confirm: Vec<u32>,
    /// The block with the number of a descriptor of the worker's, and where that is in it.
    pub descriptor: Option<(usize, usize)>,
}

/// What is known of a worker under supervision.
#[derive(Debug)]
pub struct Rules {
    branch: Branch,
    /// Groups whose slice has not been set; and all that were made.
    unset: BTreeSet<(u32, u32)>,
    groups: BTreeSet<(u32, u32)>,
    /// Clients for which the driver has made a call through a file of the worker's: it compares the two.
    own: BTreeSet<u32>,
}

/// Why a call is not made.
enum Refusal {
    Status(u32),
    Errno(i32),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Errno(error.raw_os_error().unwrap_or(libc::EINVAL))
    }
}

/// Where the arguments have what.
mod field {
    pub(super) const CLIENT: usize = 0;
    pub(super) const HANDLE: usize = 8;
    pub(super) const CLASS: usize = 12;
    pub(super) const ALLOC_PARAMETERS: usize = 16;
    pub(super) const ALLOC_RIGHTS: usize = 24;
    pub(super) const ALLOC_FLAGS: usize = 36;
    pub(super) const COMMAND: usize = 8;
    pub(super) const CONTROL_FLAGS: usize = 12;
    pub(super) const CONTROL_PARAMETERS: usize = 16;
    pub(super) const CONTROL_SIZE: usize = 24;
    pub(super) const DUP_SOURCE: usize = 12;
    pub(super) const SHARE_POLICY: usize = 8;
    pub(super) const HEAP_FUNCTION: usize = 8;
    /// Of a sharing policy: with whom, and of which kind they are.
    pub(super) const POLICY_TARGET: usize = 0;
    pub(super) const POLICY_TYPE: usize = 8;
}

/// Kinds of sharing policies: with nobody, and with a client.
const SHARE_NONE: u32 = 0;
const SHARE_CLIENT: u32 = 3;
/// Allocates; the others pin a caller's memory, or ask about the whole heap.
const HEAP_ALLOC_SIZE: u32 = 2;

/// Where the arguments of a request have the status; none if there is no such place.
fn status_at(number: u8, size: usize) -> Option<usize> {
    Some(match (number, size) {
        (number::FREE | number::ALLOC_OS_EVENT | number::FREE_OS_EVENT, 16) => 12,
        (number::CONTROL, 32) | (number::ALLOC, 32) => 28,
        (number::ALLOC, 48) => 40,
        (number::DUP_OBJECT, 28) => 24,
        (number::SHARE, 24) => 20,
        (number::VID_HEAP_CONTROL, 184) => 20,
        _ => return None,
    })
}

impl Rules {
    /// Of a worker that is ours until now.
    pub fn new(branch: Branch) -> Self {
        Self { branch, unset: BTreeSet::new(), groups: BTreeSet::new(), own: BTreeSet::new() }
    }

    /// Whether a client is known to be the worker's own. Events of the system come through files of GPUs, which the driver
    /// answers no questions through.
    pub fn is_known(&self, client: u32) -> bool {
        self.own.contains(&client)
    }

    /// Decides about a request whose arguments are at this address.
    pub fn decide(&self, request: u32, address: u64, memory: &mut impl Memory) -> Decision {
        let Some((number, size)) = requests::parts(request) else { return Decision::Fail(libc::EPERM) };
        let mut image = match Image::copy(memory, address, size) {
            Ok(image) => image,
            Err(error) => return Decision::Fail(error.raw_os_error().unwrap_or(libc::EINVAL)),
        };
        match self.judge(number, size, &mut image, memory) {
            Ok(Judged::Perform { confirm, descriptor }) => {
                Decision::Perform(Performance { image, confirm, descriptor })
            }
            Ok(Judged::Answer(status)) => {
                set_status(&mut image, number, size, status);
                Decision::Answer(image)
            }
            Err(Refusal::Status(status)) if status_at(number, size).is_some() => {
                set_status(&mut image, number, size, status);
                Decision::Refuse(image, status)
            }
            Err(Refusal::Status(_)) => Decision::Fail(libc::EPERM),
            Err(Refusal::Errno(errno)) => Decision::Fail(errno),
        }
    }

    fn judge(&self, number: u8, size: usize, image: &mut Image, memory: &mut impl Memory) -> Result<Judged, Refusal> {
        let client = image.word(0, field::CLIENT).ok_or(Refusal::Errno(libc::EINVAL))?;
        match (number, size) {
            (number::FREE, 16) => Ok(Judged::perform()),
            (number::CONTROL, 32) => self.control(client, image, memory),
            (number::ALLOC, 32 | 48) => self.alloc(client, size, image, memory),
            (number::DUP_OBJECT, 28) => Ok(Judged::confirming(own(client, image.word(0, field::DUP_SOURCE)))),
            (number::SHARE, 24) => share(client, image, (0, field::SHARE_POLICY)),
            (number::VID_HEAP_CONTROL, 184) => match image.word(0, field::HEAP_FUNCTION) {
                Some(HEAP_ALLOC_SIZE) => Ok(Judged::perform()),
                _ => Err(Refusal::Status(status::NOT_SUPPORTED)),
            },
            // Found by client and number in a list of all processes, without a look at who asks.
            (number::ALLOC_OS_EVENT | number::FREE_OS_EVENT, 16) => Ok(Judged::confirming(vec![client])),
            // Settings of the whole machine, and whatever else is not a worker's to ask for any more.
            _ => Err(Refusal::Errno(libc::EPERM)),
        }
    }

    fn control(&self, client: u32, image: &mut Image, memory: &mut impl Memory) -> Result<Judged, Refusal> {
        let word = |image: &Image, at| image.word(0, at).ok_or(Refusal::Errno(libc::EINVAL));
        let control = rules::control(word(image, field::COMMAND)?).ok_or(Refusal::Status(status::NOT_SUPPORTED))?;
        // Packed parameters, or calls as others.
        if word(image, field::CONTROL_FLAGS)? != 0 {
            return Err(Refusal::Status(status::INVALID_ARGUMENT));
        }
        match control.rule {
            ControlRule::Answer => return Ok(Judged::Answer(0)),
            ControlRule::Decline => return Ok(Judged::Answer(status::NOT_SUPPORTED)),
            _ => {}
        }
        let size = word(image, field::CONTROL_SIZE)? as usize;
        image.follow(memory, (0, field::CONTROL_PARAMETERS), size)?;
        // The parameters are block 1, where there are any.
        let present = image.bytes(1).len();
        let needs = |at: usize| if present > at { Ok(1) } else { Err(Refusal::Status(status::INVALID_ARGUMENT)) };
        match control.rule {
            ControlRule::Plain | ControlRule::Answer | ControlRule::Decline => Ok(Judged::perform()),
            ControlRule::Pointers(pointers) => {
                for pointer in pointers {
                    let block = needs(pointer.at + 7)?;
                    let len = length(image, block, pointer.length).ok_or(Refusal::Errno(libc::EINVAL))?;
                    image.follow(memory, (block, pointer.at), len)?;
                }
                Ok(Judged::perform())
            }
            ControlRule::WithoutPointer(at) => {
                let block = needs(at + 7)?;
                image.set(block, at, &[0; 8]);
                Ok(Judged::perform())
            }
            ControlRule::Descriptor(at) => {
                Ok(Judged::Perform { confirm: Vec::new(), descriptor: Some((needs(at + 3)?, at)) })
            }
            ControlRule::Timeslice => {
                let block = needs(7)?;
                let group = (client, word(image, 4)?);
                let is_short = image.address(block, 0).is_some_and(|slice| slice <= MAX_TIMESLICE);
                if self.unset.contains(&group) && is_short {
                    Ok(Judged::perform())
                } else {
                    Err(Refusal::Status(status::INSUFFICIENT_PERMISSIONS))
                }
            }
            ControlRule::Share(at) => share(client, image, (needs(at + field::POLICY_TYPE + 3)?, at)),
            ControlRule::PreemptionMode => {
                let block = needs(at::PREEMPTION_COMPUTE + 3)?;
                let sets = image.word(block, at::PREEMPTION_FLAGS).is_none_or(|flags| flags & at::SETS_COMPUTE != 0);
                if sets && image.word(block, at::PREEMPTION_COMPUTE) != Some(at::BY_INSTRUCTION) {
                    return Err(Refusal::Status(status::INSUFFICIENT_PERMISSIONS));
                }
                Ok(Judged::perform())
            }
        }
    }

    fn alloc(
        &self,
        client: u32,
        size: usize,
        image: &mut Image,
        memory: &mut impl Memory,
    ) -> Result<Judged, Refusal> {
        let number = image.word(0, field::CLASS).ok_or(Refusal::Errno(libc::EINVAL))?;
        let class = rules::class(self.branch, number).ok_or(Refusal::Status(status::NOT_SUPPORTED))?;
        if size == 48 {
            // Packed parameters.
            if image.word(0, field::ALLOC_FLAGS) != Some(0) {
                return Err(Refusal::Status(status::INVALID_ARGUMENT));
            }
            image.follow(memory, (0, field::ALLOC_RIGHTS), 4)?;
        }
        let block = image.count();
        // The driver takes as many bytes as the class has, not as many as the call says.
        image.follow(memory, (0, field::ALLOC_PARAMETERS), class.size)?;
        let has_parameters = image.count() > block && class.size > 0;
        let word = |at: usize| match has_parameters {
            true => image.word(block, at).ok_or(Refusal::Status(status::INVALID_ARGUMENT)),
            // Without them everything is 0.
            false => Ok(0),
        };
        let denied = Err(Refusal::Status(status::INSUFFICIENT_PERMISSIONS));
        match class.rule {
            ClassRule::Plain => Ok(Judged::perform()),
            ClassRule::OwnClients(offsets) => {
                let mut confirm = Vec::new();
                for at in offsets {
                    confirm.extend(own(client, Some(word(*at)?)));
                }
                Ok(Judged::confirming(confirm))
            }
            ClassRule::Device if word(at::DEVICE_TARGET)? != 0 => denied,
            ClassRule::Device => Ok(Judged::confirming(own(client, Some(word(at::DEVICE_SHARE)?)))),
            ClassRule::ChannelGroup if self.groups.len() >= MAX_GROUPS => denied,
            ClassRule::ChannelGroup => Ok(Judged::perform()),
            ClassRule::Channel if word(at::CHANNEL_FLAGS)? & at::CHANNEL_PRIVILEGED != 0 => denied,
            ClassRule::Channel => Ok(Judged::perform()),
            ClassRule::Event if word(at::EVENT_CLASS)? != at::OS_EVENT => denied,
            ClassRule::Event => Ok(Judged::confirming(own(client, Some(word(at::EVENT_CLIENT)?)))),
        }
    }

    /// Learns from a call that was made, and to which the driver has said yes.
    pub fn made(&mut self, request: u32, image: &Image) {
        let Some((number, size)) = requests::parts(request) else { return };
        let ok = status_at(number, size).and_then(|at| image.word(0, at)) == Some(0);
        let (Some(client), Some(handle)) = (image.word(0, field::CLIENT), image.word(0, field::HANDLE)) else {
            return;
        };
        if ok && matches!(number, number::ALLOC | number::CONTROL) {
            self.own.insert(client);
        }
        match number {
            _ if !ok => {}
            number::ALLOC => {
                let class = image.word(0, field::CLASS).and_then(|number| rules::class(self.branch, number));
                if class.is_some_and(|class| class.rule == ClassRule::ChannelGroup) {
                    self.groups.insert((client, handle));
                    self.unset.insert((client, handle));
                }
            }
            number::FREE => {
                let goes = |group: &(u32, u32)| group.0 == client && (group.1 == handle || handle == client);
                self.groups.retain(|group| !goes(group));
                self.unset.retain(|group| !goes(group));
                if handle == client {
                    self.own.remove(&client);
                }
            }
            number::CONTROL => {
                let is_slice = image.word(0, field::COMMAND).and_then(rules::control);
                if is_slice.is_some_and(|control| control.rule == ControlRule::Timeslice)
                    && let Some(group) = image.word(0, 4)
                {
                    self.unset.remove(&(client, group));
                }
            }
            _ => {}
        }
    }
}

/// What the rules say, before the copy moves on.
enum Judged {
    Perform {
        confirm: Vec<u32>,
        descriptor: Option<(usize, usize)>,
    },
    /// With a status.
    Answer(u32),
}

impl Judged {
    fn perform() -> Self {
        Self::confirming(Vec::new())
    }

    fn confirming(confirm: Vec<u32>) -> Self {
        Self::Perform { confirm, descriptor: None }
    }
}

/// Whose word it takes that a client inside of a call is own. That of the call itself the driver compares with the file.
fn own(client: u32, other: Option<u32>) -> Vec<u32> {
    other.filter(|other| *other != 0 && *other != client).into_iter().collect()
}

/// Who may use an object: nobody else, or another client of the worker's own.
fn share(client: u32, image: &Image, (block, at): (usize, usize)) -> Result<Judged, Refusal> {
    let kind = image.word(block, at + field::POLICY_TYPE).map(|word| word & 0xffff);
    match (kind, image.word(block, at + field::POLICY_TARGET)) {
        (Some(SHARE_NONE), _) => Ok(Judged::perform()),
        (Some(SHARE_CLIENT), target @ Some(_)) => Ok(Judged::confirming(own(client, target))),
        _ => Err(Refusal::Status(status::INSUFFICIENT_PERMISSIONS)),
    }
}

fn length(image: &Image, block: usize, length: Length) -> Option<usize> {
    let number = |at| image.word(block, at).and_then(|word| usize::try_from(word).ok());
    match length {
        Length::Times(at, each) => number(at)?.checked_mul(each),
        Length::Square(at, each) => number(at)?.checked_mul(number(at)?)?.checked_mul(each),
    }
}

/// Writes the resource manager's answer.
pub(super) fn set_status(image: &mut Image, number: u8, size: usize, status: u32) {
    if let Some(at) = status_at(number, size) {
        image.set(0, at, &status.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests;
