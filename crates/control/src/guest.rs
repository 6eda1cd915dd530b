//! The way into a sandbox: a client of its guest, with the sandbox's defaults and its idleness kept.

use std::collections::BTreeMap;

use bytes::Bytes;
use cove_protocol::client::{ExecResult, Guest, GuestError};
use cove_protocol::message::Start;

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;
use crate::sandboxes::Sandbox;

/// What a caller is about to do inside. Those that change something are audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GuestAction {
    Exec,
    ProcessStart,
    ProcessInput,
    ProcessSignal,
    ProcessResize,
    /// Attach to a terminal: output and input.
    ProcessAttach,
    /// List processes or read their output.
    ProcessRead,
    /// Read, list, stat or archive files.
    FileRead,
    FileWrite,
    FileRemove,
    FileMove,
    FileMkdir,
    FileAttributes,
    ArchiveWrite,
    FileWatch,
    PortList,
    PortConnect,
    Metrics,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    /// Given to the user's login shell.
    Shell(String),
    Argv(Vec<String>),
}

/// A command as a caller asks for it; the sandbox's defaults fill the rest.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    pub command: CommandLine,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    /// The whole of standard input.
    pub stdin: Option<Bytes>,
    /// Keep standard input open for later.
    pub stdin_open: bool,
    pub timeout_ms: Option<u64>,
    /// Columns and rows of a terminal.
    pub pty: Option<(u16, u16)>,
    /// Keeps the sandbox from being idle as long as it runs, also after its caller went away.
    pub foreground: bool,
    /// Kill it when the connection that started it closes.
    pub kill_on_disconnect: bool,
}

impl CommandRequest {
    pub fn shell(command: impl Into<String>) -> Self {
        Self::new(CommandLine::Shell(command.into()))
    }

    pub fn new(command: CommandLine) -> Self {
        Self {
            command,
            cwd: None,
            env: BTreeMap::new(),
            user: None,
            stdin: None,
            stdin_open: false,
            timeout_ms: None,
            pty: None,
            foreground: true,
            kill_on_disconnect: false,
        }
    }
}

/// A running sandbox, opened for one caller. While it lives the sandbox is not idle: keep it as long
/// as the call or the attached client does.
pub struct GuestAccess {
    guest: Guest,
    sandbox: Sandbox,
}

impl GuestAccess {
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The guest's own request for this command: environment (guest's defaults < image < spec <
    /// request), user and directory filled in, with a fresh process id.
    pub fn command(&self, request: CommandRequest) -> Result<Start, ControlError> {
        let _ = request;
        todo!()
    }

    /// Who file calls act as when the request names nobody: the spec's user, else the image's.
    pub fn default_user(&self) -> &str {
        todo!()
    }
}

impl Control {
    /// Needs `use`. A sandbox that does not run is a conflict.
    pub async fn guest(
        &self,
        principal: &Principal,
        which: &str,
        action: GuestAction,
    ) -> Result<GuestAccess, ControlError> {
        let _ = (principal, which, action);
        todo!()
    }

    /// Needs `use`. Runs a command to its end and collects its output.
    pub async fn exec(
        &self,
        principal: &Principal,
        which: &str,
        request: CommandRequest,
    ) -> Result<ExecResult, ControlError> {
        let access = self.guest(principal, which, GuestAction::Exec).await?;
        let start = access.command(request)?;
        Ok(access.guest().exec(start).await?)
    }
}

impl From<GuestError> for ControlError {
    fn from(error: GuestError) -> Self {
        let _ = error;
        todo!()
    }
}
