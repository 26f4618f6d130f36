//! The client of the broker's admin socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use control::admin::{AdminClient, AdminError, Answer, CardStatus, Request, Status};
use control::grant::Grant;
use control::zone::{ZoneChange, ZoneSettings};
use control::{ZoneLimits, ZoneName};

/// How long a request waits for a broker that is restarting, which takes a fraction of that.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("{error}{}", why(.error))]
    Asking { error: AdminError },
    #[error("refused by the proxy: {0}")]
    Refused(String),
    #[error("the proxy has no space left: {0}")]
    NoSpace(String),
    #[error("zone {0} does not exist")]
    UnknownZone(ZoneName),
    #[error("unexpected answer from the proxy; is it a different version?")]
    Nonsense,
}

fn why(error: &AdminError) -> String {
    std::error::Error::source(error).map(|source| format!(" ({source})")).unwrap_or_default()
}

/// The broker's address. Every request has a connection of its own, because brokers are restarted.
#[derive(Debug, Clone)]
pub struct Broker {
    socket: PathBuf,
    timeout: Duration,
}

impl Broker {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, timeout: TIMEOUT }
    }

    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn once(&self, request: &Request) -> Result<Answer, AdminError> {
        let (socket, request) = (self.socket.clone(), request.clone());
        // The socket blocks, so a thread waits, and other requests of kubelet's go on.
        let asked = tokio::task::spawn_blocking(move || AdminClient::connect(&socket)?.ask(&request)).await;
        asked.unwrap_or_else(|error| Err(AdminError::Gone(std::io::Error::other(error))))
    }

    /// Retries until the timeout. All our requests are idempotent.
    async fn ask(&self, request: Request) -> Result<Answer, BrokerError> {
        let until = tokio::time::Instant::now() + self.timeout;
        loop {
            match self.once(&request).await {
                Err(AdminError::Nonsense(_)) => return Err(BrokerError::Nonsense),
                Err(error) if tokio::time::Instant::now() >= until => return Err(BrokerError::Asking { error }),
                Err(_) => tokio::time::sleep(PAUSE).await,
                Ok(Answer::Failed { reason, no_space: true }) => return Err(BrokerError::NoSpace(reason)),
                Ok(Answer::Failed { reason, .. }) => return Err(BrokerError::Refused(reason)),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// The broker's status. Not retried: callers poll.
    pub async fn status(&self) -> Result<Status, BrokerError> {
        match self.once(&Request::Status).await {
            Ok(Answer::Status(status)) => Ok(status),
            Ok(_) => Err(BrokerError::Nonsense),
            Err(error) => Err(BrokerError::Asking { error }),
        }
    }

    /// The GPUs; none until the broker has probed them.
    pub async fn cards(&self) -> Result<Option<Vec<CardStatus>>, BrokerError> {
        match self.once(&Request::Cards).await {
            Ok(Answer::Cards { cards }) => Ok(cards),
            Ok(Answer::Failed { reason, .. }) => Err(BrokerError::Refused(reason)),
            Ok(_) => Err(BrokerError::Nonsense),
            Err(error) => Err(BrokerError::Asking { error }),
        }
    }

    /// Creates a zone unless it exists. Returns whether it was created.
    pub async fn ensure(&self, name: &ZoneName, settings: &ZoneSettings) -> Result<bool, BrokerError> {
        match self.ask(Request::FindZone { name: name.clone() }).await? {
            Answer::Zone { .. } => Ok(false),
            _ => self.create(name, settings).await.map(|()| true),
        }
    }

    pub async fn create(&self, name: &ZoneName, settings: &ZoneSettings) -> Result<(), BrokerError> {
        match self.ask(Request::CreateZone { name: name.clone(), settings: settings.clone() }).await {
            Ok(Answer::Zone { .. }) => Ok(()),
            Ok(_) => Err(BrokerError::Nonsense),
            // The broker may have died after it created the zone, before it answered.
            Err(BrokerError::Refused(reason)) => match self.ask(Request::FindZone { name: name.clone() }).await? {
                Answer::Zone { .. } => Ok(()),
                _ => Err(BrokerError::Refused(reason)),
            },
            Err(error) => Err(error),
        }
    }

    pub async fn change(&self, name: &ZoneName, change: ZoneChange) -> Result<ZoneLimits, BrokerError> {
        match self.ask(Request::ChangeZone { name: name.clone(), change }).await? {
            Answer::Zone { limits, .. } => Ok(limits),
            Answer::UnknownZone { .. } => Err(BrokerError::UnknownZone(name.clone())),
            _ => Err(BrokerError::Nonsense),
        }
    }

    pub async fn budgets(&self) -> Result<BTreeMap<String, u64>, BrokerError> {
        match self.ask(Request::Budgets).await? {
            Answer::Budgets { budgets } => Ok(budgets),
            _ => Err(BrokerError::Nonsense),
        }
    }

    pub async fn set_budget(&self, name: &str, memory: Option<u64>) -> Result<(), BrokerError> {
        self.ask(Request::SetBudget { name: name.to_owned(), memory }).await.map(drop)
    }

    pub async fn grants(&self) -> Result<Vec<Grant>, BrokerError> {
        match self.ask(Request::Grants).await? {
            Answer::Grants { grants } => Ok(grants),
            _ => Err(BrokerError::Nonsense),
        }
    }

    pub async fn allow(&self, grant: Grant) -> Result<(), BrokerError> {
        self.ask(Request::Allow { grant }).await.map(drop)
    }

    /// Revokes a grant; one that does not exist is fine.
    pub async fn revoke(&self, from: &ZoneName, to: &ZoneName) -> Result<(), BrokerError> {
        match self.ask(Request::Revoke { from: from.clone(), to: to.clone() }).await {
            Ok(_) | Err(BrokerError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a zone and ends its workers; one that does not exist is fine.
    pub async fn remove(&self, name: &ZoneName) -> Result<(), BrokerError> {
        match self.ask(Request::RemoveZone { name: name.clone(), force: true }).await? {
            Answer::Removed | Answer::UnknownZone { .. } => Ok(()),
            _ => Err(BrokerError::Nonsense),
        }
    }
}
