//! The code interpreter: contexts that keep what code defined, and runs of code in them.
//!
//! A context is a process of the guest like any other, with a small driver program in it that is
//! handed over its standard input when it starts; nothing is written to the sandbox's disk and the
//! control plane keeps nothing about it. Its id is the process's id and its language stands in the
//! process's owner, so contexts survive whatever processes survive: a restart of the server, a pause,
//! a fork.
//!
//! How each language's driver is started and what it says is `cove_code`'s; here is who may run code, in
//! which process, one run after the other. [`run`] is one run.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use cove_code::{CodeContext, Driver};
use cove_model::{Language, ProcessId};
use cove_protocol::client::{Guest, GuestError};
use cove_protocol::message::{ErrorCode as GuestCode, OutputFrom, ProcessKind, Signal};
use cove_store::Scope;
use tokio::time::timeout;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::guest::{CommandLine, CommandRequest, GuestAccess, GuestAction};
use crate::principal::Principal;

mod run;

pub use run::{CodeOutcome, CodeRun};

use cove_limits::{CODE_BYTES_MAX, CODE_CONTEXTS_MAX};

/// Output of each stream that a context keeps for a run's caller to read.
const RING_BYTES: u64 = 1024 * 1024;
/// How long a run waits for the one before it in the same context.
const TURN_WAIT: Duration = Duration::from_secs(60);
/// How long a context may take to take in what it is sent.
const INPUT_WAIT: Duration = Duration::from_secs(20);
/// How long a removed context may take to be gone, and how often that is looked at.
const REMOVAL_WAIT: Duration = Duration::from_secs(2);
const REMOVAL_POLL: Duration = Duration::from_millis(5);
/// A shell's exit code for a program that is not there.
const NO_PROGRAM: i32 = 127;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// A context to make.
#[derive(Debug, Clone, Default)]
pub struct CodeContextRequest {
    pub language: Language,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
}

/// Code to run.
#[derive(Debug, Clone, Default)]
pub struct CodeRequest {
    pub code: String,
    /// Default: that of the context; Python where neither is given.
    pub language: Option<Language>,
    /// Default: the one of the language.
    pub context: Option<String>,
    pub timeout_ms: Option<u64>,
}

impl Control {
    /// Needs `use`. Starts a context.
    #[boxed]
    pub async fn create_code_context(
        &self,
        principal: &Principal,
        which: &str,
        request: CodeContextRequest,
    ) -> Result<CodeContext, ControlError> {
        let access = self
            .guest(principal, which, GuestAction::CodeContext)
            .await?;
        self.start_context(&access, request, false).await
    }

    /// Needs `use`. Those that run.
    #[boxed]
    pub async fn code_contexts(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Vec<CodeContext>, ControlError> {
        let access = self.guest(principal, which, GuestAction::CodeList).await?;
        contexts(access.guest()).await
    }

    /// Needs `use`. Ends a context and what it started.
    #[boxed]
    pub async fn remove_code_context(
        &self,
        principal: &Principal,
        which: &str,
        context: &str,
    ) -> Result<(), ControlError> {
        let access = self
            .guest(principal, which, GuestAction::CodeContext)
            .await?;
        let found = find(access.guest(), context).await?;
        send_signal(access.guest(), &found.id, SIGKILL).await?;
        // A killed process is listed until the guest has reaped it; whoever removed a context sees it no more.
        let gone = async {
            while find(access.guest(), context).await.is_ok() {
                tokio::time::sleep(REMOVAL_POLL).await;
            }
        };
        timeout(REMOVAL_WAIT, gone).await.ok();
        Ok(())
    }

    /// Needs `use`. Ends the code a context runs now, not the context.
    #[boxed]
    pub async fn interrupt_code(
        &self,
        principal: &Principal,
        which: &str,
        context: &str,
    ) -> Result<(), ControlError> {
        let access = self
            .guest(principal, which, GuestAction::CodeInterrupt)
            .await?;
        let found = find(access.guest(), context).await?;
        self.interrupt(&access, &found).await
    }

    /// Needs `use`. Runs code in a context; dropping the run leaves the code to its end.
    #[boxed]
    pub async fn run_code(
        &self,
        principal: &Principal,
        which: &str,
        request: CodeRequest,
    ) -> Result<CodeRun, ControlError> {
        principal.require(Scope::Use)?;
        check(&request)?;
        let access = self.guest(principal, which, GuestAction::CodeRun).await?;
        let context = self.context_of(&access, &request).await?;
        let language = request.language.unwrap_or(context.language);
        let turn = timeout(
            TURN_WAIT,
            self.lock_context(key(&access, &context.id, "run")),
        )
        .await
        .map_err(|_| busy())??;
        let guest = access.guest();
        // What the context said before is not this run's.
        let before = guest.process(context.id.clone()).await?;
        let from = OutputFrom {
            id: context.id.clone(),
            stdout_from: before.stdout_bytes,
            stderr_from: before.stderr_bytes,
            follow: true,
            resume: false,
        };
        let follow = guest.follow(from).await?;
        let run = format!("{:016x}", rand::random::<u64>());
        let asked = Driver::run(&run, language, &request.code);
        let written = self.hand_over(&access, &context.id, asked);
        Ok(CodeRun::new(
            self.clone(),
            access,
            context,
            run::Begun {
                run,
                follow,
                written,
                turn,
                timeout: request.timeout_ms.map(Duration::from_millis),
            },
        ))
    }

    /// The context a run names, or the default one, made when there is none.
    async fn context_of(
        &self,
        access: &GuestAccess,
        request: &CodeRequest,
    ) -> Result<CodeContext, ControlError> {
        let guest = access.guest();
        if let Some(wanted) = &request.context {
            let found = find(guest, wanted).await?;
            let language = request.language.unwrap_or(found.language);
            if Driver::from(language) != found.driver() {
                return Err(ControlError::invalid(format!(
                    "the context runs {}, not {}",
                    found.language.as_str(),
                    language.as_str()
                )));
            }
            return Ok(found);
        }
        let language = request.language.unwrap_or_default();
        let driver = Driver::from(language);
        // Two first runs at once share one context.
        let lock = key(access, driver.name(), "default");
        let _one = self.lock_context(lock).await?;
        let found = contexts(guest)
            .await?
            .into_iter()
            .find(|context| context.default && context.driver() == driver);
        match found {
            Some(found) => Ok(found),
            None => {
                let request = CodeContextRequest {
                    language,
                    ..CodeContextRequest::default()
                };
                self.start_context(access, request, true).await
            }
        }
    }

    async fn start_context(
        &self,
        access: &GuestAccess,
        request: CodeContextRequest,
        default: bool,
    ) -> Result<CodeContext, ControlError> {
        let guest = access.guest();
        if contexts(guest).await?.len() >= CODE_CONTEXTS_MAX {
            let message = format!("a sandbox has at most {CODE_CONTEXTS_MAX} contexts");
            return Err(ControlError::new(ErrorCode::LimitReached, message)
                .hint("delete one that is no longer needed"));
        }
        let driver = Driver::from(request.language);
        let id = String::from(ProcessId::random());
        let command = CommandRequest {
            cwd: request.cwd,
            env: request.env,
            user: request.user,
            stdin_open: true,
            kind: ProcessKind::CodeContext,
            ..CommandRequest::new(driver.owner(default), CommandLine::Argv(driver.argv(&id)))
        };
        let mut start = access.command(command)?;
        start.id = id;
        start.ring_bytes = RING_BYTES;
        let process = guest.start(start).await.map_err(|error| match error {
            GuestError::Refused {
                code: GuestCode::CommandNotFound,
                ..
            } => no_interpreter(driver),
            other => other.into(),
        })?;
        let context = CodeContext::of(&process).ok_or_else(|| {
            ControlError::new(ErrorCode::GuestUnreachable, "the context was not started")
        })?;
        let source = Bytes::from_static(driver.source().as_bytes());
        match self.hand_over(access, &context.id, source).await {
            Ok(Ok(())) => Ok(context),
            Ok(Err(error)) => {
                let now = guest.process(context.id).await?;
                let missing = now.exit.is_some_and(|exit| exit.code == NO_PROGRAM);
                Err(if missing {
                    no_interpreter(driver)
                } else {
                    error
                })
            }
            Err(_) => Err(ControlError::new(
                ErrorCode::Internal,
                "the start was interrupted",
            )),
        }
    }

    async fn interrupt(
        &self,
        access: &GuestAccess,
        context: &CodeContext,
    ) -> Result<(), ControlError> {
        if let Some(word) = context.driver().interruption()
            && let Ok(Err(error)) = self.hand_over(access, &context.id, word).await
        {
            return Err(error);
        }
        Ok(send_signal(access.guest(), &context.id, SIGINT).await?)
    }

    /// Writes to a context's input, whole and one at a time, whatever becomes of the caller: half a
    /// request would spoil the next one.
    fn hand_over(
        &self,
        access: &GuestAccess,
        context: &str,
        data: Bytes,
    ) -> tokio::task::JoinHandle<Result<(), ControlError>> {
        let (control, guest) = (self.clone(), access.guest().clone());
        let (lock, context) = (key(access, context, "input"), context.to_owned());
        self.0.tasks.changes.spawn(async move {
            let _one = control.lock_context(lock).await?;
            let written = timeout(INPUT_WAIT, async {
                let mut writer = guest.stdin(context.clone()).await?;
                writer.write(data).await?;
                writer.flush().await.map(drop)
            });
            match written.await {
                Ok(result) => result.map_err(ControlError::from),
                Err(_) => {
                    // It reads nothing and has half a request: nothing good comes from it any more.
                    send_signal(&guest, &context, SIGKILL).await.ok();
                    Err(busy())
                }
            }
        })
    }
}

fn check(request: &CodeRequest) -> Result<(), ControlError> {
    if request.code.len() > CODE_BYTES_MAX {
        return Err(
            ControlError::invalid(format!("code has at most {CODE_BYTES_MAX} bytes"))
                .hint("write it into a file and run that"),
        );
    }
    if request.code.contains('\0') {
        return Err(ControlError::invalid("the code contains a NUL byte"));
    }
    Ok(())
}

fn key(access: &GuestAccess, context: &str, what: &str) -> String {
    format!("{}/{context}/{what}", access.sandbox().id)
}

async fn contexts(guest: &Guest) -> Result<Vec<CodeContext>, ControlError> {
    let all = guest.processes().await?;
    Ok(all.iter().filter_map(CodeContext::of).collect())
}

async fn find(guest: &Guest, wanted: &str) -> Result<CodeContext, ControlError> {
    let missing = || ControlError::not_found("context", wanted);
    if !ProcessId::matches(wanted) {
        return Err(missing());
    }
    match guest.process(wanted.to_owned()).await {
        Ok(process) => CodeContext::of(&process).ok_or_else(missing),
        Err(GuestError::Refused {
            code: GuestCode::NotFound | GuestCode::Gone,
            ..
        }) => Err(missing()),
        Err(error) => Err(error.into()),
    }
}

async fn send_signal(guest: &Guest, id: &str, signal: i32) -> Result<(), GuestError> {
    let request = Signal {
        id: id.to_owned(),
        signal,
        only_leader: false,
    };
    match guest.signal(request).await {
        // Somebody was quicker.
        Err(GuestError::Refused {
            code: GuestCode::Gone,
            ..
        }) => Ok(()),
        other => other,
    }
}

fn busy() -> ControlError {
    ControlError::new(ErrorCode::Conflict, "the context is busy")
        .hint("interrupt it, or run the code in a context of its own")
}

fn no_interpreter(driver: Driver) -> ControlError {
    ControlError::invalid(format!("the sandbox has no {}", driver.program()))
        .hint("install it, or use the image code-interpreter")
}
