//! What broker and worker say to each other of suspending.

use std::time::Duration;

use super::{BrokerLink, Shared};
use crate::checkpoint::Move;
use crate::messages::{
    MOVES_ITSELF, ToBroker, ToWorker, account, code, moved, refusal, suspend_by, to_broker, to_worker,
};
use crate::suspend::{Inside, Suspension};

/// No broker lets a worker wait longer.
const MOST_WAIT: Duration = Duration::from_secs(60);

/// What a broker wants of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Keep threads out of the driver.
    Suspend {
        /// It will be asked to move its memory itself.
        itself: bool,
        /// For calls and work that are under way.
        timeout: Duration,
    },
    /// Move the memory.
    Move(Move),
    /// Let threads call the driver again.
    Resume,
    /// Another broker has taken over, and must be told how things stand.
    Rejoined,
}

impl Order {
    /// None where a message is no order, or one of a later version.
    pub(super) fn of(message: &ToWorker) -> Option<Self> {
        match (message.kind, message.value) {
            (to_worker::SUSPEND, wait) => Some(Self::Suspend {
                itself: message.code == suspend_by::WORKER,
                timeout: Duration::from_millis(wait).min(MOST_WAIT),
            }),
            (to_worker::MOVE, 0) => Some(Self::Move(Move::Out)),
            (to_worker::MOVE, 1) => Some(Self::Move(Move::Back)),
            (to_worker::RESUME, _) => Some(Self::Resume),
            _ => None,
        }
    }
}

/// What a move came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// One of [`moved`].
    pub outcome: u32,
    /// That went to where they should.
    pub bytes: u64,
    /// It took so long.
    pub time: Duration,
}

impl MoveReport {
    /// One that failed.
    pub fn failed(outcome: u32) -> Self {
        Self { outcome, ..Self::default() }
    }

    /// As a worker says it.
    pub fn to_message(&self, which: Move) -> ToBroker {
        let mut message = ToBroker::new(to_broker::MOVED);
        (message.version, message.value) = (self.outcome, self.bytes);
        message.details.kind = u64::from(which == Move::Back);
        message.details.len = u64::try_from(self.time.as_micros()).unwrap_or(u64::MAX);
        message
    }

    /// What [`to_message`](Self::to_message) was given; whatever an unknown worker says becomes something.
    pub fn of_message(message: &ToBroker) -> (Move, Self) {
        let which = if message.details.kind == 0 { Move::Out } else { Move::Back };
        let outcome = if message.version <= moved::FAILED { message.version } else { moved::FAILED };
        let time = Duration::from_micros(message.details.len);
        (which, Self { outcome, bytes: message.value, time })
    }
}

/// Has an order done, or noted: nobody waits for it here.
pub(super) type Orders = Box<dyn Fn(Order) + Send + Sync>;

impl BrokerLink {
    /// Says who does what a broker orders. It must not wait: the broker's answers come through the same thread.
    pub fn on_order(&self, orders: impl Fn(Order) + Send + Sync + 'static) {
        let _ = self.shared.orders.set(Box::new(orders));
    }

    /// What keeps threads out of the driver.
    pub fn suspension(&self) -> &Suspension {
        &self.shared.suspension
    }

    /// Before the driver is called, for as long as it is: not while this worker's memory is elsewhere.
    #[inline]
    pub fn enter_driver(&self) -> Inside {
        self.shared.suspension.enter(|| self.say(&ToBroker::new(to_broker::BUSY)))
    }

    /// The same for who can do without.
    #[inline]
    pub fn try_enter_driver(&self) -> Option<Inside> {
        self.shared.suspension.try_enter()
    }

    /// None of this worker's threads calls the driver. `itself`: how many bytes it can move itself; `away`: they are in host
    /// memory already.
    pub fn tell_suspended(&self, itself: Option<u64>, away: bool) {
        let mut message = ToBroker::new(to_broker::SUSPENDED);
        if let Some(bytes) = itself {
            (message.version, message.value) = (MOVES_ITSELF, bytes);
        }
        message.details.kind = away.into();
        self.say(&message);
    }

    /// It goes on instead, for one of the reasons in [`refusal`].
    pub fn tell_not_suspended(&self, why: u64) {
        let mut message = ToBroker::new(to_broker::NOT_SUSPENDED);
        message.value = why;
        self.say(&message);
    }

    /// Its client waits to go on.
    pub fn tell_busy(&self) {
        self.say(&ToBroker::new(to_broker::BUSY));
    }

    /// A move has ended.
    pub fn tell_moved(&self, which: Move, report: &MoveReport) {
        self.say(&report.to_message(which));
    }

    /// A GPU, by its index, has no memory for `bytes`; true if there will be some, because somebody is being suspended.
    pub fn need_room(&self, gpu: u32, bytes: u64) -> bool {
        let mut message = ToBroker::new(to_broker::NEED_ROOM);
        (message.account, message.value) = (account::of_gpu(gpu), bytes);
        self.shared.request(message, None).is_some_and(|answer| answer.message.code == code::GRANTED)
    }

    /// What is lost with its broker is said to the next one.
    fn say(&self, message: &ToBroker) {
        self.shared.say(message);
    }
}

impl Shared {
    pub(super) fn order(&self, order: Order) {
        match self.orders.get() {
            Some(orders) => orders(order),
            None => {
                let mut message = ToBroker::new(to_broker::NOT_SUSPENDED);
                message.value = refusal::NOT_READY;
                self.say(&message);
            }
        }
    }

    fn say(&self, message: &ToBroker) {
        let socket = self.lock().socket.clone();
        if let Some(socket) = socket {
            let _ = crate::packet::send(&socket, zerocopy::IntoBytes::as_bytes(message), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_a_later_version_are_none() {
        let order = |kind, code, value| {
            let mut message = ToWorker::new(kind);
            (message.code, message.value) = (code, value);
            Order::of(&message)
        };
        let timeout = Duration::from_millis(50);
        assert_eq!(order(to_worker::SUSPEND, 0, 50), Some(Order::Suspend { itself: false, timeout }));
        assert_eq!(order(to_worker::SUSPEND, 1, 50), Some(Order::Suspend { itself: true, timeout }));
        let bounded = Some(Order::Suspend { itself: true, timeout: MOST_WAIT });
        assert_eq!(order(to_worker::SUSPEND, 1, u64::MAX), bounded);
        assert_eq!(order(to_worker::MOVE, 0, 0), Some(Order::Move(Move::Out)));
        assert_eq!(order(to_worker::MOVE, 0, 1), Some(Order::Move(Move::Back)));
        assert_eq!((order(to_worker::MOVE, 0, 2), order(to_worker::ISOLATE, 0, 0)), (None, None));
    }

    #[test]
    fn a_report_says_the_same_on_the_other_side() {
        let report = MoveReport { outcome: moved::NO_ROOM, bytes: 7, time: Duration::from_micros(9) };
        assert_eq!(MoveReport::of_message(&report.to_message(Move::Back)), (Move::Back, report));
        let mut odd = report.to_message(Move::Out);
        odd.version = 99;
        assert_eq!(MoveReport::of_message(&odd).1.outcome, moved::FAILED);
    }
}
