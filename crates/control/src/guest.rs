//! The way into a sandbox: a client of its guest, with the sandbox's defaults and its idleness kept.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cove_limits::{ARGUMENT_BYTES_MAX, ARGV_MAX, COMMAND_BYTES_MAX, EXEC_STDIN_MAX, TAG_MAX};
use cove_model::spec::{PATH_MAX, USER_MAX, check_absolute, check_env};
use cove_model::{HostId, NetworkMode, OrgId, ProcessId, SandboxId, SandboxSpec, State};
use cove_protocol::client::{Connect, ExecResult, Follow, Guest, GuestError, Stream};
use cove_protocol::identity::{Identity, owner};
use cove_protocol::message::{
    Environment, ErrorCode as GuestCode, OutputFrom, ProcessKind, PtySize, Signal, Start,
};
use cove_runner_api::RunnerError;
use cove_store::{HostFacts, SandboxRecord, Scope};

use crate::Control;
use crate::activity::Presence;
use crate::audit::Operation;
use crate::budget::{Account, Charge};
use crate::error::{ControlError, ErrorCode, UNREACHABLE_RETRY_S};
use crate::principal::Principal;
use crate::sandboxes::{Sandbox, being_deleted, is_doomed, require_auto_resume};
use crate::secrets::{Inside, Trust};

/// Bytes of standard input that travel with the command itself; more is written while it runs.
const STDIN_AT_ONCE_MAX: usize = 512 * 1024;
/// How often whoever waits for a sandbox at rest looks again, should its event be lost.
const REST_POLL: Duration = Duration::from_secs(10);
/// How often one connection wakes a sandbox that is put to rest again and again.
const CONNECTS_MAX: u32 = 4;
const SIGKILL: i32 = 9;

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
    ServiceStart,
    ServiceRemove,
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
    /// One request to a port through its preview: too many to be audited one by one.
    PortVisit,
    Metrics,
    CodeContext,
    CodeRun,
    CodeInterrupt,
    CodeList,
}

impl GuestAction {
    /// Starts programs, which get what the sandbox's secrets put into their environment.
    fn runs_programs(self) -> bool {
        matches!(
            self,
            Self::Exec
                | Self::ProcessStart
                | Self::ServiceStart
                | Self::CodeContext
                | Self::CodeRun
        )
    }

    /// The name audit records use, for those that are audited.
    pub fn audited_as(self) -> Option<&'static str> {
        Some(match self {
            Self::Exec => "process.exec",
            Self::ProcessStart => "process.start",
            Self::ProcessInput => "process.input",
            Self::ProcessSignal => "process.signal",
            Self::ProcessResize => "process.resize",
            Self::ProcessAttach => "process.attach",
            Self::ServiceStart => "service.start",
            Self::ServiceRemove => "service.remove",
            Self::FileWrite => "file.write",
            Self::FileRemove => "file.remove",
            Self::FileMove => "file.move",
            Self::FileMkdir => "file.mkdir",
            Self::FileAttributes => "file.attributes",
            Self::ArchiveWrite => "archive.write",
            Self::PortConnect => "port.connect",
            Self::CodeContext => "code.context",
            Self::CodeRun => "code.run",
            Self::CodeInterrupt => "code.interrupt",
            Self::ProcessRead
            | Self::FileRead
            | Self::FileWatch
            | Self::PortList
            | Self::CodeList
            | Self::PortVisit
            | Self::Metrics => return None,
        })
    }
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
    /// What it is. A [`ProcessKind::Command`] keeps the sandbox from being idle as long as it runs, also
    /// after its caller went away.
    pub kind: ProcessKind,
    /// Which part of Cove asks; see [`cove_protocol::identity::owner`].
    pub owner: String,
    /// The caller's own, shown in listings.
    pub tag: Option<String>,
    /// Kill it when the connection that started it closes.
    pub kill_on_disconnect: bool,
}

impl CommandRequest {
    /// For the control plane itself.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::new(owner::CONTROL, CommandLine::Shell(command.into()))
    }

    pub fn new(owner: impl Into<String>, command: CommandLine) -> Self {
        Self {
            command,
            cwd: None,
            env: BTreeMap::new(),
            user: None,
            stdin: None,
            stdin_open: false,
            timeout_ms: None,
            pty: None,
            kind: ProcessKind::Command,
            owner: owner.into(),
            tag: None,
            kill_on_disconnect: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ControlError> {
        let (parts, empty) = match &self.command {
            CommandLine::Shell(text) => (std::slice::from_ref(text), text.trim().is_empty()),
            CommandLine::Argv(argv) => (
                argv.as_slice(),
                argv.first().is_none_or(|program| program.is_empty()),
            ),
        };
        if empty {
            return Err(ControlError::invalid("the command is empty"));
        }
        if parts.len() > ARGV_MAX {
            return Err(ControlError::invalid(format!(
                "a command has at most {ARGV_MAX} arguments"
            )));
        }
        if parts.iter().any(|part| part.len() > ARGUMENT_BYTES_MAX) {
            return Err(ControlError::invalid(format!(
                "one argument, or a shell command, has at most {ARGUMENT_BYTES_MAX} bytes"
            ))
            .hint("write a script into the sandbox and run that"));
        }
        let bytes: usize = parts.iter().map(|part| part.len() + 1).sum();
        if bytes > COMMAND_BYTES_MAX {
            return Err(ControlError::invalid(format!(
                "a command has at most {COMMAND_BYTES_MAX} bytes"
            ))
            .hint("write a script into the sandbox and run that"));
        }
        if parts.iter().any(|part| part.contains('\0')) {
            return Err(ControlError::invalid("the command contains a NUL byte"));
        }
        if let Some(tag) = &self.tag {
            crate::keys::check_label("tag", tag, TAG_MAX)?;
        }
        check_env("env", &self.env)?;
        if let Some(cwd) = &self.cwd {
            check_absolute("cwd", cwd)?;
        }
        if let Some(user) = &self.user {
            crate::keys::check_label("user", user, USER_MAX)?;
        }
        if self
            .stdin
            .as_ref()
            .is_some_and(|s| s.len() > EXEC_STDIN_MAX)
        {
            return Err(ControlError::invalid(format!(
                "stdin has at most {EXEC_STDIN_MAX} bytes in one request"
            ))
            .hint("start the process with its input open and stream to it"));
        }
        Ok(())
    }
}

/// A running sandbox, opened for one caller. While it lives the sandbox is not idle: keep it as long
/// as the call or the attached client does.
pub struct GuestAccess {
    guest: Guest,
    listener: Guest,
    sandbox: Sandbox,
    facts: HostFacts,
    /// For the secrets that it holds.
    inside: Option<Arc<Inside>>,
    /// For the authorities that the operator gives to it.
    trust: Option<Arc<Trust>>,
    control: Control,
    account: Account,
    _presence: Presence,
}

impl GuestAccess {
    /// Wakes the sandbox whenever it is put to rest meanwhile.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The name of the sandbox, or its id, if its network is off.
    pub fn without_network(&self) -> Option<&str> {
        let spec = &self.sandbox.spec;
        let name = spec.name.as_deref().unwrap_or(self.sandbox.id.as_str());
        (spec.network.mode == NetworkMode::None).then_some(name)
    }

    /// Has what the guest refused, because the network is off, put into the egress log. Nobody waits for it.
    pub(crate) fn log_refusals(&self) {
        let control = self.control.clone();
        let of = &self.sandbox;
        let (org, host, id) = (of.org.clone(), of.host.clone(), of.id.clone());
        tokio::spawn(async move { control.log_refusals(&org, &host, &id).await });
    }

    /// Who pays for what is held of its answers.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// For whoever only listens: never wakes it.
    pub fn listener(&self) -> &Guest {
        &self.listener
    }

    /// Whether a call failed because the sandbox was put to rest.
    pub fn is_at_rest(error: &GuestError) -> bool {
        let GuestError::Connect(cause) = error else {
            return false;
        };
        let told = cause.get_ref();
        matches!(
            told.and_then(|inner| inner.downcast_ref::<RunnerError>()),
            Some(RunnerError::Conflict { state, .. }) if is_at_rest(*state)
        )
    }

    /// Whether the sandbox is at rest now, by what its host says. A connection that a capture cut may
    /// fail in many ways; this tells them from a guest that is really gone.
    #[boxed]
    pub async fn rests(&self) -> bool {
        let view = async {
            let runner = self.control.runner(&self.sandbox.host).await?;
            runner.get(&self.sandbox.id).await
        };
        view.await.is_ok_and(|view| is_at_rest(view.state))
    }

    /// Starts a command, waking the sandbox if need be, and then only listens to it.
    #[boxed]
    pub async fn start_following(&self, mut start: Start) -> Result<Follow, GuestError> {
        let refused = |error| GuestError::Connect(io::Error::other(error));
        let large = start
            .input
            .take_if(|input| input.len() > STDIN_AT_ONCE_MAX)
            .map(|input| LargeInput::new(&self.account, input))
            .transpose()
            .map_err(refused)?;
        start.stdin_open |= large.is_some();
        let id = start.id.clone();
        let mut follow = match self.listener.start_following(start.clone()).await {
            Err(error) if Self::is_at_rest(&error) => {
                let woken = self.control.wake(&self.sandbox.id).await;
                woken.map_err(refused)?;
                self.listener.start_following(start).await?
            }
            outcome => outcome?,
        };
        if let Some(large) = large {
            // The guest takes input for a command that it has started.
            follow.started().await?;
            let Sandbox {
                org,
                host,
                id: sandbox,
                ..
            } = &self.sandbox;
            let guest = self.control.guest_through(org, host, sandbox, true);
            tokio::spawn(large.write(guest, id));
        }
        Ok(follow)
    }

    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Goes on with a process's output after the sandbox was captured. One that was put to rest is not
    /// woken for that: whoever only listens waits until somebody needs it.
    #[boxed]
    pub async fn follow_again(&self, from: OutputFrom) -> Result<Follow, ControlError> {
        let (control, id) = (&self.control, &self.sandbox.id);
        let mut events = control.0.listeners.watch(id);
        loop {
            let runner = control.runner(&self.sandbox.host).await?;
            if !is_at_rest(runner.get(id).await?.state) {
                match self.listener.follow(from.clone()).await {
                    Err(GuestError::Quiesced) => {}
                    Err(error) if Self::is_at_rest(&error) => {}
                    outcome => return Ok(outcome?),
                }
            }
            tokio::select! {
                () = events.changed() => {}
                () = tokio::time::sleep(REST_POLL) => {}
                () = control.0.tasks.closing.cancelled() => {
                    return Err(ControlError::internal("the control plane is shutting down"));
                }
            }
        }
    }

    /// The guest's own request for this command: environment (guest's defaults < image < secrets, trust < spec <
    /// request), user and directory filled in, with a fresh process id.
    pub fn command(&self, request: CommandRequest) -> Result<Start, ControlError> {
        request.check()?;
        let spec = &self.sandbox.spec;
        let env = entries(
            &self.facts,
            self.inside.as_deref(),
            self.trust.as_deref(),
            spec,
            &request.env,
        );
        let make_cwd = request.cwd.is_none();
        let cwd = request.cwd.or_else(|| spec.workdir.clone());
        let cwd = cwd.or_else(|| self.facts.image_workdir.clone());
        let (argv, shell) = match request.command {
            CommandLine::Shell(text) => (Vec::new(), text),
            CommandLine::Argv(argv) => (argv, String::new()),
        };
        let identity = Identity {
            kind: request.kind,
            owner: request.owner,
            tag: request.tag.unwrap_or_default(),
        };
        let mut start = Start {
            id: ProcessId::random().into(),
            argv,
            shell,
            cwd: cwd.filter(|cwd| cwd.len() <= PATH_MAX).unwrap_or_default(),
            env,
            user: request
                .user
                .unwrap_or_else(|| self.default_user().to_owned()),
            pty: request.pty.map(|(cols, rows)| PtySize {
                cols: cols.into(),
                rows: rows.into(),
            }),
            stdin_open: request.stdin_open,
            input: request.stdin,
            timeout_ms: request.timeout_ms.unwrap_or(0),
            follow: false,
            ring_bytes: 0,
            kill_on_disconnect: request.kill_on_disconnect,
            make_cwd,
            report_refusals: self.without_network().is_some(),
            ..Start::default()
        };
        identity.put_into(&mut start);
        Ok(start)
    }

    /// What services get beside what their caller gave.
    pub(crate) fn environment(&self) -> Environment {
        environment(
            &self.facts,
            self.inside.as_deref(),
            self.trust.as_deref(),
            &self.sandbox.spec,
        )
    }

    /// Who file calls act as when the request names nobody: the spec's user, else the image's. Empty
    /// means root.
    pub fn default_user(&self) -> &str {
        let spec = self.sandbox.spec.user.as_deref();
        spec.or(self.facts.image_user.as_deref()).unwrap_or("")
    }
}

/// Environment of a command: image < secrets < spec < request.
fn entries(
    facts: &HostFacts,
    inside: Option<&Inside>,
    trust: Option<&Trust>,
    spec: &SandboxSpec,
    request: &BTreeMap<String, String>,
) -> Vec<String> {
    let given = inside
        .map(|inside| inside.variables(spec))
        .unwrap_or_default();
    let mut env: BTreeMap<&str, &str> = BTreeMap::new();
    for (key, value) in &facts.image_env {
        env.insert(key, value);
    }
    for (key, value) in &given {
        env.insert(key, value);
    }
    for (key, value) in trust.iter().flat_map(|trust| &trust.variables) {
        env.insert(key, value);
    }
    for (key, value) in spec.env.iter().chain(request) {
        env.insert(key, value);
    }
    env.into_iter()
        .filter(|(key, value)| !key.contains('\0') && !value.contains('\0'))
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

/// What every command of a sandbox gets now.
pub(crate) fn environment(
    facts: &HostFacts,
    inside: Option<&Inside>,
    trust: Option<&Trust>,
    spec: &SandboxSpec,
) -> Environment {
    let cwd = spec.workdir.as_ref().or(facts.image_workdir.as_ref());
    let user = spec.user.as_ref().or(facts.image_user.as_ref());
    Environment {
        env: entries(facts, inside, trust, spec, &BTreeMap::new()),
        cwd: cwd
            .filter(|cwd| cwd.len() <= PATH_MAX)
            .cloned()
            .unwrap_or_default(),
        user: user.cloned().unwrap_or_default(),
    }
}

/// How long a command may take to read its large input.
const LARGE_INPUT_MAX: Duration = Duration::from_secs(600);

/// Standard input that is too large to travel with its command. It is written whether or not the
/// caller stays, as what travels with the command is.
struct LargeInput {
    data: Bytes,
    /// What the caller pays for it until the command has it.
    _charge: Charge,
}

impl LargeInput {
    fn new(account: &Account, data: Bytes) -> Result<Self, ControlError> {
        let mut charge = account.charge();
        charge.take(data.len())?;
        Ok(Self {
            data,
            _charge: charge,
        })
    }

    /// A command that ends without reading all of it is no failure. One that cannot get the rest is
    /// ended: it would take what it has for the whole.
    async fn write(self, guest: Guest, process: String) {
        let writing = async {
            // It may read late. Its end ends the wait, too.
            let mut stdin = guest.patient().stdin(process.clone()).await?;
            stdin.write(self.data.clone()).await?;
            stdin.close().await
        };
        // What is never read would be paid for, and wake the sandbox from each rest, for ever.
        let writing = async {
            let late = |_| GuestError::TimedOut(LARGE_INPUT_MAX);
            tokio::time::timeout(LARGE_INPUT_MAX, writing)
                .await
                .map_err(late)?
        };
        match writing.await {
            Ok(_) => {}
            Err(error) if matches!(error.code(), Some(GuestCode::Gone | GuestCode::NotFound)) => {}
            Err(error) => {
                tracing::warn!(%error, %process, "standard input was interrupted; ending the command");
                let kill = Signal {
                    id: process,
                    signal: SIGKILL,
                    ..Signal::default()
                };
                let _ = guest.signal(kill).await;
            }
        }
    }
}

/// Reaches a sandbox's guest through its host.
struct ThroughRunner {
    control: Control,
    org: OrgId,
    host: HostId,
    id: SandboxId,
    /// Whether a sandbox at rest is woken for this.
    wakes: bool,
}

#[async_trait]
impl Connect for ThroughRunner {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let place = self.control.relayed(&self.host, &self.org);
        let place = place.map_err(io::Error::other)?;
        let runner = self.control.runner(&self.host).await;
        let runner = runner.map_err(io::Error::other)?;
        for _ in 1..CONNECTS_MAX {
            match runner.connect(&self.id).await {
                // It was put to rest since somebody last looked.
                Err(RunnerError::Conflict { state, .. }) if self.wakes && is_at_rest(state) => {
                    let woken = self.control.wake(&self.id).await;
                    woken.map_err(io::Error::other)?;
                }
                outcome => return Ok(place.hold(outcome.map_err(io::Error::other)?)),
            }
        }
        let stream = runner.connect(&self.id).await;
        Ok(place.hold(stream.map_err(io::Error::other)?))
    }
}

impl Control {
    /// A client of the guest, without any check; for the control plane's own questions.
    pub(crate) fn guest_of(&self, record: &SandboxRecord) -> Guest {
        self.guest_through(&record.org, &record.host, &record.id, false)
    }

    pub(crate) fn guest_through(
        &self,
        org: &OrgId,
        host: &HostId,
        id: &SandboxId,
        wakes: bool,
    ) -> Guest {
        Guest::new(Arc::new(ThroughRunner {
            control: self.clone(),
            org: org.clone(),
            host: host.clone(),
            id: id.clone(),
            wakes,
        }))
    }

    /// Needs `use`. A sandbox that is frozen or paused is woken, unless its policy says not to; one
    /// that is stopped is a conflict.
    #[boxed]
    pub async fn guest(
        &self,
        principal: &Principal,
        which: &str,
        action: GuestAction,
    ) -> Result<GuestAccess, ControlError> {
        let outcome = self.try_guest(principal, which, action).await;
        let Some(name) = action.audited_as() else {
            return outcome;
        };
        outcome.inspect_err(|error| {
            self.note_refusal(principal, Operation::new(name, which), error);
        })
    }

    async fn try_guest(
        &self,
        principal: &Principal,
        which: &str,
        action: GuestAction,
    ) -> Result<GuestAccess, ControlError> {
        principal.require(Scope::Use)?;
        let mut record = self.find(principal, which).await?;
        // Names a node that is known not to answer, instead of waiting for it.
        if let Some(message) = self.host_of(&record.host)?.away() {
            return Err(RunnerError::Unreachable { message }.into());
        }
        // Present before the state is looked at, so that nobody puts it to rest from here on.
        let presence = self
            .0
            .in_use
            .activity
            .enter(&record.id, Arc::clone(&self.0.clocks));
        if is_doomed(&record) || matches!(record.state, State::Creating | State::Stopping) {
            record = self.await_settled(&record, which).await?;
        }
        if is_at_rest(record.state) {
            require_auto_resume(&record)?;
            self.wake(&record.id).await?;
            record = self.find(principal, record.id.as_str()).await?;
        }
        require_running(&record)?;
        if matches!(
            action,
            GuestAction::Exec
                | GuestAction::ProcessStart
                | GuestAction::ServiceStart
                | GuestAction::CodeRun
        ) {
            self.checkpoint_before_command(&record).await?;
        }
        // Before anything is asked of the guest, also by this process itself.
        let intent = match action.audited_as() {
            Some(name) => {
                let operation = Operation::new(name, record.id.as_str());
                let listens = action == GuestAction::ProcessAttach;
                Some(Arc::new(self.intend(principal, operation, listens)?))
            }
            None => None,
        };
        let inside = match self.furnish(&record).await {
            // What is in the way inside can be removed by these.
            Err(error) if !action.runs_programs() => {
                tracing::debug!(%error, sandbox = %record.id, "cannot write what its secrets need");
                None
            }
            outcome => outcome?,
        };
        let trust = self.add_authorities(&record, inside.as_ref()).await?;
        if !self.services_begun(&record)? {
            self.begin_services(&record).await;
        }
        let account = self.budget().account(principal);
        let payer = Arc::new(account.clone());
        let guest = self
            .guest_through(&record.org, &record.host, &record.id, true)
            .paid_by(payer.clone());
        let listener = self.guest_of(&record).paid_by(payer);
        let (guest, listener) = match intent {
            Some(intent) => (
                guest.observed_by(intent.clone()),
                listener.observed_by(intent),
            ),
            None => (guest, listener),
        };
        Ok(GuestAccess {
            guest,
            listener,
            facts: record.facts.clone(),
            inside,
            trust,
            sandbox: record.into(),
            control: self.clone(),
            account,
            _presence: presence,
        })
    }

    /// Needs `use`. Runs a command to its end and collects its output.
    #[boxed]
    pub async fn exec(
        &self,
        principal: &Principal,
        which: &str,
        request: CommandRequest,
    ) -> Result<ExecResult, ControlError> {
        let access = self.guest(principal, which, GuestAction::Exec).await?;
        let start = access.command(request)?;
        Ok(access.start_following(start).await?.collect().await?)
    }
}

/// Not running, and a wake away from it.
fn is_at_rest(state: State) -> bool {
    matches!(
        state,
        State::Frozen | State::Pausing | State::Paused | State::Resuming | State::Restoring
    )
}

pub(crate) fn require_running(record: &SandboxRecord) -> Result<(), ControlError> {
    if is_doomed(record) {
        return Err(being_deleted());
    }
    let conflict = |text: String| ControlError::new(ErrorCode::Conflict, text);
    match record.state {
        State::Running => Ok(()),
        State::Creating => {
            Err(conflict("the sandbox is still being created".into()).retry_after(1))
        }
        state @ (State::Frozen | State::Paused) => Err(conflict(format!("the sandbox is {state}"))
            .hint(format!("resume it first: cove resume {}", record.id))),
        state @ (State::Pausing | State::Resuming | State::Restoring | State::Stopping) => {
            Err(conflict(format!("the sandbox is {state}")).retry_after(1))
        }
        state => Err(conflict(format!("the sandbox is {state}"))
            .hint(format!("start it first: cove start {}", record.id))),
    }
}

/// What a guest's failure is called.
pub(crate) fn code_of(error: &GuestError) -> ErrorCode {
    match error {
        GuestError::Refused { code, .. } => match code {
            GuestCode::Invalid | GuestCode::NoSuchUser => ErrorCode::InvalidRequest,
            GuestCode::NotFound | GuestCode::Gone | GuestCode::CommandNotFound => {
                ErrorCode::NotFound
            }
            GuestCode::AlreadyExists => ErrorCode::AlreadyExists,
            GuestCode::PermissionDenied => ErrorCode::PermissionDenied,
            GuestCode::DiskFull => ErrorCode::DiskFull,
            GuestCode::TooManyProcesses | GuestCode::Limit => ErrorCode::LimitReached,
            GuestCode::Unsupported | GuestCode::VersionMismatch | GuestCode::MissingFeature => {
                ErrorCode::Unsupported
            }
            GuestCode::NotADirectory
            | GuestCode::IsADirectory
            | GuestCode::NotEmpty
            | GuestCode::ConnectionRefused => ErrorCode::Conflict,
            GuestCode::Internal => ErrorCode::GuestUnreachable,
        },
        GuestError::TimedOut(_) => ErrorCode::TimedOut,
        GuestError::NoRoom => ErrorCode::LimitReached,
        GuestError::Connect(_) => {
            told_below(error).map_or(ErrorCode::GuestUnreachable, |told| told.code)
        }
        GuestError::Frame(_) | GuestError::Unexpected(_) | GuestError::Quiesced => {
            ErrorCode::GuestUnreachable
        }
    }
}

/// The host, or a wake, knows better what is wrong than "cannot be reached".
fn told_below(error: &GuestError) -> Option<ControlError> {
    let GuestError::Connect(cause) = error else {
        return None;
    };
    let inner = cause.get_ref()?;
    match inner.downcast_ref::<RunnerError>() {
        Some(told) => Some(told.clone().into()),
        None => inner
            .downcast_ref::<ControlError>()
            .map(ControlError::again),
    }
}

impl From<GuestError> for ControlError {
    fn from(error: GuestError) -> Self {
        if let Some(told) = told_below(&error) {
            return told;
        }
        if matches!(error, GuestError::NoRoom) {
            return crate::budget::over();
        }
        let code = code_of(&error);
        let message = match &error {
            GuestError::Refused { message, .. } => message.clone(),
            other => other.to_string(),
        };
        let told = Self::new(code, message);
        match code {
            ErrorCode::GuestUnreachable => told.retry_after(UNREACHABLE_RETRY_S).because(error),
            _ => told,
        }
    }
}
