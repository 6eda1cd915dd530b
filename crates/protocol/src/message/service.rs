//! Services: commands that the guest keeps running, and starts again whenever their sandbox is started.

use super::Exit;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Service {
    /// Unique in the sandbox. The guest names a file after it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Program and arguments; or empty, and then `shell` is given to the user's login shell.
    #[prost(string, repeated, tag = "2")]
    pub argv: Vec<String>,
    #[prost(string, tag = "3")]
    pub shell: String,
    /// Empty: [`Environment::cwd`].
    #[prost(string, tag = "4")]
    pub cwd: String,
    /// `KEY=VALUE`, only what the caller gave: it is kept on the sandbox's disk. Reports leave it out.
    #[prost(string, repeated, tag = "5")]
    pub env: Vec<String>,
    /// Empty: [`Environment::user`].
    #[prost(string, tag = "6")]
    pub user: String,
    #[prost(enumeration = "Restart", tag = "7")]
    pub restart: i32,
}

/// What happens when a service ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Restart {
    No = 0,
    OnFailure = 1,
    Always = 2,
}

/// What commands of a sandbox get beside what their caller gives. Never written to its disk: it may hold secrets.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Environment {
    #[prost(string, repeated, tag = "1")]
    pub env: Vec<String>,
    /// Made when it is missing.
    #[prost(string, tag = "2")]
    pub cwd: String,
    #[prost(string, tag = "3")]
    pub user: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StartService {
    #[prost(message, optional, tag = "1")]
    pub service: Option<Service>,
    /// Of its process; the same for all its runs. `prc_…`
    #[prost(string, tag = "2")]
    pub id: String,
    #[prost(message, optional, tag = "3")]
    pub environment: Option<Environment>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ServiceRef {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Services {
    #[prost(message, repeated, tag = "1")]
    pub services: Vec<ServiceStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ServiceStatus {
    #[prost(message, optional, tag = "1")]
    pub service: Option<Service>,
    /// Id of its process.
    #[prost(string, tag = "2")]
    pub process: String,
    #[prost(enumeration = "ServiceState", tag = "3")]
    pub state: i32,
    /// Since the sandbox was started.
    #[prost(uint64, tag = "4")]
    pub restarts: u64,
    /// How its last run ended.
    #[prost(message, optional, tag = "5")]
    pub last_exit: Option<Exit>,
    /// Why it could not be started the last time.
    #[prost(string, tag = "6")]
    pub error: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ServiceState {
    /// Not started yet: the host has not said what commands get.
    Pending = 0,
    Running = 1,
    /// It ended and will be started again.
    Waiting = 2,
    /// It ended, and its policy does not start it again.
    Ended = 3,
}
