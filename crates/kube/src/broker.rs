//! Asking the broker, over its admin socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use control::admin::{AdminClient, AdminError, Answer, CardStatus, Request, Status};
use control::grant::Grant;
use control::zone::{ZoneChange, ZoneSettings};
use control::{ZoneLimits, ZoneName};

/// How long a request waits for a broker that is being replaced: a restart takes a fraction of that.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("{error}{}", why(.error))]
    Asking { error: AdminError },
    #[error("the proxy refuses: {0}")]
    Refused(String),
    #[error("the proxy has no space left: {0}")]
    NoSpace(String),
    #[error("the proxy has no zone {0}")]
    UnknownZone(ZoneName),
    #[error("the proxy's answer makes no sense; is it another version?")]
    Nonsense,
}

fn why(error: &AdminError) -> String {
    std::error::Error::source(error).map(|source| format!(" ({source})")).unwrap_or_default()
}

/// Where the broker answers. Every request has a connection of its own: brokers come and go.
#[derive(Debug, Clone)]
pub struct Broker {
    socket: PathBuf,
    patience: Duration,
}

impl Broker {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, patience: PATIENCE }
    }

    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    async fn once(&self, request: &Request) -> Result<Answer, AdminError> {
        let (socket, request) = (self.socket.clone(), request.clone());
        // The socket blocks, so a thread waits, and whatever else kubelet asks goes on.
        let asked = tokio::task::spawn_blocking(move || AdminClient::connect(&socket)?.ask(&request)).await;
        asked.unwrap_or_else(|error| Err(AdminError::Gone(std::io::Error::other(error))))
    }

    /// Asks until somebody answers, for a while. Every request of ours means the same when it is repeated.
    async fn ask(&self, request: Request) -> Result<Answer, BrokerError> {
        let until = tokio::time::Instant::now() + self.patience;
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

    /// How the broker stands. Asked once: who watches asks again anyway.
    pub async fn status(&self) -> Result<Status, BrokerError> {
        match self.once(&Request::Status).await {
            Ok(Answer::Status(status)) => Ok(status),
            Ok(_) => Err(BrokerError::Nonsense),
            Err(error) => Err(BrokerError::Asking { error }),
        }
    }

    /// The GPUs; none while the broker looks at them.
    pub async fn cards(&self) -> Result<Option<Vec<CardStatus>>, BrokerError> {
        match self.once(&Request::Cards).await {
            Ok(Answer::Cards { cards }) => Ok(cards),
            Ok(Answer::Failed { reason, .. }) => Err(BrokerError::Refused(reason)),
            Ok(_) => Err(BrokerError::Nonsense),
            Err(error) => Err(BrokerError::Asking { error }),
        }
    }

    /// Makes a zone, or finds that it is there already. Answers whether it was made.
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
            // A broker that died after it had made the zone, before it said so.
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

    /// Ends a grant; one that is not there is fine.
    pub async fn revoke(&self, from: &ZoneName, to: &ZoneName) -> Result<(), BrokerError> {
        match self.ask(Request::Revoke { from: from.clone(), to: to.clone() }).await {
            Ok(_) | Err(BrokerError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends a zone and its workers; one that is not there is fine.
    pub async fn remove(&self, name: &ZoneName) -> Result<(), BrokerError> {
        match self.ask(Request::RemoveZone { name: name.clone(), force: true }).await? {
            Answer::Removed | Answer::UnknownZone { .. } => Ok(()),
            _ => Err(BrokerError::Nonsense),
        }
    }
}
