//! What workers share with each other goes through the broker: it alone says who may have what.
//!
//! An export is known to the broker that was told of it and to no other: its [`epoch`](BrokerLink::epoch) says which that
//! was. An import outlives the broker; what this worker pays for it stays on its account until it is closed.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::super::messages::{Shared, ToBroker, ToWorker, Token, account, code, shared, to_broker};
use super::{BrokerLink, State, send_now};

/// What an import brought.
pub struct Imported {
    /// As its exporter described it.
    pub details: Shared,
    /// For an event: the page that it is in.
    pub page: Token,
    /// What there is to map.
    pub fd: OwnedFd,
    /// The index of the GPU whose memory it is, as its exporter says.
    pub gpu: u32,
}

/// An import that is open.
pub(super) struct Import {
    /// What this worker pays for it.
    paid: u64,
    /// From which account.
    account: u32,
    /// The broker that knows of it.
    epoch: u64,
}

/// Why nothing was shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NotShared {
    #[error("not exported, or not any more")]
    Unknown,
    #[error("exported by this worker itself")]
    Own,
    #[error("no grant from the zone that exports it")]
    Denied,
    #[error("the zone's memory limit is reached")]
    OverLimit,
    #[error("too many exports or imports")]
    TooMany,
    #[error("no connection to the broker")]
    NoBroker,
}

impl NotShared {
    fn from_code(code: u32) -> Self {
        match code {
            code::UNKNOWN => Self::Unknown,
            code::OWN => Self::Own,
            code::DENIED => Self::Denied,
            code::OVER_LIMIT => Self::OverLimit,
            _ => Self::TooMany,
        }
    }
}

impl BrokerLink {
    /// Must what is allocated share no page with anything else? Then another zone may see it.
    pub fn isolates(&self) -> bool {
        self.shared.lock().isolated
    }

    /// Which broker this is, counted from 1.
    pub fn epoch(&self) -> u64 {
        self.shared.lock().epoch
    }

    /// Offers something to other workers; answers with the token that names it. `gpu`: the index of the GPU whose memory
    /// it is; `page` is that of an event.
    pub fn export(
        &self,
        gpu: u32,
        details: Shared,
        page: Token,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Token, NotShared> {
        let mut message = ToBroker::new(to_broker::EXPORT);
        (message.account, message.details, message.token) = (account::of_gpu(gpu), details, page);
        let answer = self.shared.request(message, fd).ok_or(NotShared::NoBroker)?;
        match answer.message.code {
            code::GRANTED => Ok(answer.message.token),
            code => Err(NotShared::from_code(code)),
        }
    }

    /// Takes an export back: when this returns, nobody can open it any more. A broker that is away takes it along.
    pub fn withdraw(&self, token: Token) {
        self.tell(to_broker::WITHDRAW, token);
    }

    /// Asks for what a token stands for.
    pub fn import(&self, token: Token, kind: u64) -> Result<Imported, NotShared> {
        let mut message = ToBroker::new(to_broker::IMPORT);
        (message.token, message.value) = (token, kind);
        let mut answer = self.shared.request(message, None).ok_or(NotShared::NoBroker)?;
        let reply = &answer.message;
        match (reply.code, answer.fds.pop()) {
            (code::GRANTED, Some(fd)) => {
                let gpu = account::gpu(reply.account).and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
                Ok(Imported { details: reply.details, page: reply.token, fd, gpu })
            }
            (code::GRANTED, None) => Err(NotShared::TooMany),
            (code, _) => Err(NotShared::from_code(code)),
        }
    }

    /// Tells that an import is unmapped.
    pub fn close_import(&self, token: Token) {
        {
            let mut state = self.shared.lock();
            let Some(Import { paid, account, epoch }) = state.imports.remove(&token) else { return };
            if epoch != state.epoch {
                // A new broker knows what this worker pays, and not for what.
                state.give_back(account, paid);
                return;
            }
            // The broker takes it off the account itself, when it hears of it. Nobody waits for that: what is asked later
            // is asked after it.
            if let Some(account) = state.account_mut(account) {
                account.charged = account.charged.saturating_sub(paid);
            }
            let mut message = ToBroker::new(to_broker::CLOSE);
            message.token = token;
            if state.socket.as_ref().is_some_and(|socket| send_now(socket, &message, None).is_ok()) {
                return;
            }
        }
        self.tell(to_broker::CLOSE, token);
    }

    fn tell(&self, kind: u32, token: Token) {
        if self.shared.lock().socket.is_some() {
            let mut message = ToBroker::new(kind);
            message.token = token;
            self.shared.request(message, None);
        }
    }
}

/// The token, if a message asks for memory.
pub(super) fn memory_asked_for(message: &ToBroker) -> Option<Token> {
    (message.kind == to_broker::IMPORT && shared::is_memory(message.value)).then_some(message.token)
}

impl State {
    /// An import was granted: from now on it may become this worker's to pay. Called as the answer comes in, for what
    /// makes it so may be the next message. One that nobody waits for any more is given back.
    pub(super) fn note_import(&mut self, token: Token, account: u32, paid: u64, abandoned: bool) {
        if abandoned {
            let mut message = ToBroker::new(to_broker::CLOSE);
            message.token = token;
            let _ = self.socket.as_ref().map(|socket| send_now(socket, &message, None));
            return;
        }
        if self.imports.contains_key(&token) {
            return;
        }
        self.imports.insert(token, Import { paid, account, epoch: self.epoch });
        if let Some(account) = self.account_mut(account) {
            account.charged += paid;
        }
    }

    /// The broker has put an import on this worker's account.
    pub(super) fn take_over(&mut self, message: &ToWorker) {
        // One that is closed by now comes off the account when the broker hears of that.
        if let Some(import) = self.imports.get_mut(&message.token) {
            import.paid += message.value;
            let account = import.account;
            if let Some(account) = self.account_mut(account) {
                account.charged += message.value;
            }
        }
    }
}
