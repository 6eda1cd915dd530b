//! A session: one command of the sandbox, with its streams on a client's channel.

use std::time::Duration;

use bytes::Bytes;
use cove_control::{CommandRequest, Control, ControlError, Following, GuestAction, SshLogin};
use cove_protocol::client::{FollowEvent, Guest};
use cove_protocol::message::{Channel, Exit, PtySize, Resize, Signal};
use russh::ChannelWriteHalf;
use russh::server::{Handle, Msg};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::inbox::Outlet;
use crate::signals;

/// The code SSH's standard error travels under.
const STDERR: u32 = 1;
/// What a command ends with that could not be started, as OpenSSH's own failures do.
const NOT_STARTED: u32 = 255;
/// For telling a terminal's processes that it is gone.
const HANGUP_DEADLINE: Duration = Duration::from_secs(5);

/// What a client asks of a running command.
#[derive(Debug)]
pub enum Order {
    Resize(u16, u16),
    Signal(i32),
}

pub struct Session {
    pub control: Control,
    pub login: SshLogin,
    pub handle: Handle,
    pub write: ChannelWriteHalf<Msg>,
    pub inbox: Outlet,
    pub orders: mpsc::Receiver<Order>,
    pub cancel: CancellationToken,
    pub action: GuestAction,
}

impl Session {
    /// Until the command ended and all was reported, or the client is gone; then so is the command.
    pub async fn run(mut self, request: CommandRequest) {
        let terminal = request.pty.is_some();
        let cancel = self.cancel.clone();
        let started = tokio::select! {
            started = self.start(request) => started,
            () = cancel.cancelled() => return,
        };
        let (guest, following) = match started {
            Ok(started) => started,
            Err(error) => return self.refuse(&error, terminal).await,
        };
        let id = following.id.clone();
        tokio::select! {
            () = self.carry(guest.clone(), following, terminal) => {}
            () = cancel.cancelled() => {
                if terminal {
                    let hangup = guest.signal(Signal {
                        id,
                        signal: signals::HANGUP,
                        only_leader: false,
                    });
                    timeout(HANGUP_DEADLINE, hangup).await.ok();
                }
            }
        }
        self.write.close().await.ok();
    }

    async fn start(&self, request: CommandRequest) -> Result<(Guest, Started), ControlError> {
        let which = self.login.sandbox.as_str();
        let access = self
            .control
            .guest(&self.login.principal, which, self.action)
            .await?;
        let guest = access.guest().clone();
        let start = access.command(request)?;
        let id = start.id.clone();
        let mut following = Following::start(access, start).await?;
        // The first event tells that it runs, or why not.
        following.next().await?;
        Ok((guest, Started { id, following }))
    }

    async fn carry(&mut self, guest: Guest, started: Started, terminal: bool) {
        let Started { id, mut following } = started;
        let write = &self.write;
        let store = self.inbox.store();
        let output = async {
            loop {
                match following.next().await {
                    Ok(Some(FollowEvent::Output { channel, data, .. })) => {
                        let sent = match channel {
                            Channel::Stdout => store.sending(write.data_bytes(data)).await,
                            Channel::Stderr => {
                                let sending = write.extended_data_bytes(STDERR, data);
                                store.sending(sending).await
                            }
                        };
                        if sent.is_err() {
                            return Ok(None);
                        }
                    }
                    Ok(Some(FollowEvent::Exit(exit))) => return Ok(Some(exit)),
                    Ok(Some(FollowEvent::Started(_) | FollowEvent::Refused(_))) => {}
                    Ok(None) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        let input = feed(&guest, &id, &mut self.inbox);
        let orders = obey(&guest, &id, &mut self.orders);
        let ended = tokio::select! {
            ended = output => ended,
            never = async { tokio::join!(input, orders) } => match never.1 {},
        };
        match ended {
            Ok(Some(exit)) => self.tell_exit(&exit).await,
            Ok(None) => {}
            Err(error) => self.refuse(&error.into(), terminal).await,
        }
    }

    /// Before the end of its output: a client that has read all of that may close the channel, and then no
    /// status can be sent any more.
    async fn tell_exit(&self, exit: &Exit) {
        self.send_exit(exit).await;
        self.write.eof().await.ok();
    }

    async fn send_exit(&self, exit: &Exit) {
        let id = self.write.id();
        if exit.signal == 0 {
            let code = u32::try_from(exit.code).unwrap_or(NOT_STARTED);
            self.write.exit_status(code).await.ok();
            return;
        }
        let message = match exit.oom {
            true => "out of memory".to_owned(),
            false => String::new(),
        };
        let signal = signals::named(exit.signal);
        self.handle
            .exit_signal_request(id, signal, false, message, String::new())
            .await
            .ok();
    }

    /// The channel stands, so the reason goes where the client's user reads it.
    async fn refuse(&self, error: &ControlError, terminal: bool) {
        let hint = error.hint.as_deref().map(|hint| format!("; {hint}"));
        let end = if terminal { "\r\n" } else { "\n" };
        let text = format!("cove: {error}{}{end}", hint.unwrap_or_default());
        let told = async {
            let sent = self.write.extended_data_bytes(STDERR, Bytes::from(text));
            sent.await.ok();
            self.write.exit_status(NOT_STARTED).await.ok();
            self.write.eof().await.ok();
            self.write.close().await.ok();
        };
        tokio::select! {
            () = told => {}
            () = self.cancel.cancelled() => {}
        }
    }
}

struct Started {
    id: String,
    following: Following,
}

/// Nothing of this type exists: whoever promises one never ends.
enum Never {}

/// Gives the command what the client sends, and its end. Never ends by itself: the command does.
async fn feed(guest: &Guest, id: &str, inbox: &mut Outlet) {
    // A command may read its input late. The client's going ends the wait, too.
    let guest = guest.patient();
    let fed = async {
        let mut stdin = None;
        while let Some(piece) = inbox.recv().await {
            let writer = match &mut stdin {
                Some(writer) => writer,
                none => none.insert(guest.stdin(id).await?),
            };
            // Room is given back only once the guest has the bytes.
            writer.write(piece.data.clone()).await?;
        }
        let writer = match stdin {
            Some(writer) => writer,
            None => guest.stdin(id).await?,
        };
        writer.close().await.map(drop)
    };
    // A command that closed its input takes no more; what still comes is let go.
    let outcome: Result<(), cove_control::GuestError> = fed.await;
    if outcome.is_err() {
        inbox.close();
    }
}

async fn obey(guest: &Guest, id: &str, orders: &mut mpsc::Receiver<Order>) -> Never {
    while let Some(order) = orders.recv().await {
        let id = id.to_owned();
        // A command that ended meanwhile takes no orders, and the client learns of its end.
        let _ = match order {
            Order::Resize(cols, rows) => {
                let size = Some(PtySize {
                    cols: cols.into(),
                    rows: rows.into(),
                });
                guest.resize(Resize { id, size }).await
            }
            Order::Signal(signal) => {
                let only_leader = false;
                let request = Signal {
                    id,
                    signal,
                    only_leader,
                };
                guest.signal(request).await
            }
        };
    }
    std::future::pending().await
}
