//! A WebSocket on a process: everybody attached sees its output, and may type.
//!
//! Output goes out as binary messages with their offsets, so that a client whose connection broke
//! comes back for exactly what it lacks. Input and output move independently: a process that does
//! not read its input still gets its output.

use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use cove_api::process::{
    AttachEvent, AttachFrame, AttachQuery, AttachRequest, Process, Stream, TerminalSize,
    parse_signal,
};
use cove_control::{Account, GuestAction};
use cove_dialect::{Kind, READ_BUFFER, StreamPermit, Wire};
use cove_limits::WS_MESSAGE_MAX;
use cove_protocol::client::{FollowEvent, Guest, StdinWriter};
use cove_protocol::message::{Channel, OutputFrom, PtySize, Resize, Signal};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::Answer;
use super::exec::terminal;
use super::processes::{process_failure, process_id};
use crate::convert;
use crate::extract::{Caller, Names, Query};
use crate::failure::Failure;
use crate::following::Following;
use crate::state::App;
use crate::streaming::Counted;

/// A ping goes out this often; a client silent for three of them is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// Refusals waiting to be reported.
const REFUSALS: usize = 16;

pub async fn attach(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<AttachQuery>,
    Names((id, process)): Names<(String, String)>,
    request: Request,
) -> Answer {
    let (mut parts, _) = request.into_parts();
    let wire = parts.extensions.get::<Wire>().cloned().unwrap_or_default();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app)
        .await
        .map_err(|_| Failure::invalid("this route is for WebSockets").hint("use `cove shell`"))?;
    let seat = app.front.seat(&caller.principal, Kind::Live)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessAttach)
        .await?;
    let id = process_id(&process)?;
    let process = access
        .guest()
        .process(id.clone())
        .await
        .map_err(process_failure)?;
    let from = OutputFrom {
        id: id.clone(),
        stdout_from: query.stdout_from,
        stderr_from: query.stderr_from,
        follow: true,
        resume: false,
    };
    let guest = access.guest().clone();
    let account = access.account().clone();
    let following = Following::attach(access, from).await?;
    wire.pay(&account);
    let session = Session {
        app: app.clone(),
        seat,
        guest,
        account,
        wire,
        id,
        following,
        process: convert::process(process),
    };
    let tracked = app.clone();
    Ok(upgrade
        .max_message_size(WS_MESSAGE_MAX)
        .max_frame_size(WS_MESSAGE_MAX)
        .read_buffer_size(READ_BUFFER)
        .on_upgrade(move |socket| tracked.sessions.track_future(session.run(socket))))
}

struct Session {
    app: App,
    seat: StreamPermit,
    guest: Guest,
    account: Account,
    wire: Wire,
    id: String,
    /// Keeps the sandbox from being idle while somebody is attached.
    following: Following,
    process: Process,
}

impl Session {
    async fn run(self, socket: WebSocket) {
        let _counted = Counted::new(&self.app);
        let guest = self.guest;
        let (sink, stream) = socket.split();
        let (refuse, refusals) = mpsc::channel(REFUSALS);
        let output = Output {
            sink,
            following: self.following,
            refusals,
            account: self.account,
        };
        let mut input = Input {
            stream,
            guest,
            id: self.id,
            stdin: None,
            refuse,
            wire: self.wire,
        };
        tokio::select! {
            () = output.run(self.process) => {}
            () = input.run() => {}
            () = self.app.draining.cancelled() => {}
            () = self.seat.ended() => {}
        }
    }
}

struct Output {
    sink: SplitSink<WebSocket, Message>,
    following: Following,
    refusals: mpsc::Receiver<String>,
    account: Account,
}

impl Output {
    /// Until the process ended and all was reported, or the client is gone.
    async fn run(mut self, process: Process) {
        let attached = AttachEvent::Attached {
            process: Box::new(process),
        };
        if self.tell(&attached).await.is_err() {
            return;
        }
        let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let sent = tokio::select! {
                event = self.following.next() => match event {
                    Ok(Some(FollowEvent::Exit(exit))) => {
                        self.tell(&AttachEvent::Exit(convert::exit(&exit))).await.ok();
                        break;
                    }
                    Ok(Some(event)) => self.output(event).await,
                    Ok(None) | Err(_) => break,
                },
                Some(message) = self.refusals.recv() => {
                    self.tell(&AttachEvent::Refused { message }).await
                }
                _ = pings.tick() => self.sink.send(Message::Ping(Default::default())).await,
            };
            if sent.is_err() {
                return;
            }
        }
        self.sink.close().await.ok();
    }

    async fn tell(&mut self, event: &AttachEvent) -> Result<(), axum::Error> {
        let text = serde_json::to_string(event).expect("wire types are always JSON");
        self.sink.send(Message::text(text)).await
    }

    async fn output(&mut self, event: FollowEvent) -> Result<(), axum::Error> {
        let FollowEvent::Output {
            channel,
            offset,
            data,
            dropped,
            ..
        } = event
        else {
            return Ok(());
        };
        let stream = match channel {
            Channel::Stdout => Stream::Stdout,
            Channel::Stderr => Stream::Stderr,
        };
        if dropped > 0 {
            self.tell(&AttachEvent::Dropped {
                channel: stream,
                bytes: dropped,
            })
            .await?;
        }
        if data.is_empty() {
            return Ok(());
        }
        let frame = AttachFrame {
            stream,
            offset,
            data: &data,
        };
        let bytes = frame.encode();
        // Held until the socket took it.
        let mut held = self.account.charge();
        held.force(bytes.len());
        self.sink.send(Message::binary(bytes)).await
    }
}

struct Input {
    stream: SplitStream<WebSocket>,
    guest: Guest,
    id: String,
    /// Opened by the first input.
    stdin: Option<StdinWriter>,
    refuse: mpsc::Sender<String>,
    wire: Wire,
}

impl Input {
    /// Until the client leaves or falls silent.
    async fn run(&mut self) {
        loop {
            let message = match timeout(SILENCE_MAX, self.stream.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(_)) | None) | Err(_) => return,
            };
            let length = size(&message);
            let result = match message {
                Message::Binary(bytes) => self.type_in(bytes).await,
                Message::Text(text) => match crate::strict::from_slice(text.as_bytes()) {
                    Ok(request) => self.obey(request).await,
                    Err((path, error)) => {
                        let told = cove_dialect::wording::plain(&path, &error);
                        Err(Failure::invalid(format!("the message is invalid: {told}")))
                    }
                },
                Message::Close(_) => return,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
            };
            if let Err(failure) = result {
                // When even refusals pile up unread, this one is not worth waiting for.
                self.refuse.try_send(failure.message).ok();
            }
            self.wire.taken(length);
        }
    }

    async fn type_in(&mut self, bytes: bytes::Bytes) -> Result<(), Failure> {
        if self.stdin.is_none() {
            let opened = self
                .guest
                .stdin(self.id.clone())
                .await
                .map_err(process_failure)?;
            self.stdin = Some(opened);
        }
        let Some(stdin) = &mut self.stdin else {
            return Ok(());
        };
        let written = async {
            stdin.write(bytes).await?;
            stdin.flush().await
        };
        match written.await {
            Ok(_) => Ok(()),
            Err(error) => {
                self.stdin = None;
                Err(process_failure(error))
            }
        }
    }

    async fn obey(&mut self, request: AttachRequest) -> Result<(), Failure> {
        let id = self.id.clone();
        match request {
            AttachRequest::Resize { cols, rows } => {
                let (cols, rows) = terminal(TerminalSize { cols, rows })?;
                let size = Some(PtySize {
                    cols: cols.into(),
                    rows: rows.into(),
                });
                self.guest
                    .resize(Resize { id, size })
                    .await
                    .map_err(process_failure)
            }
            AttachRequest::Signal { signal } => {
                let signal = parse_signal(&signal)
                    .ok_or_else(|| Failure::invalid("there is no such signal"))?;
                let request = Signal {
                    id,
                    signal,
                    only_leader: false,
                };
                self.guest.signal(request).await.map_err(process_failure)
            }
            AttachRequest::CloseStdin => {
                let stdin = match self.stdin.take() {
                    Some(stdin) => stdin,
                    None => self.guest.stdin(id).await.map_err(process_failure)?,
                };
                stdin.close().await.map(drop).map_err(process_failure)
            }
        }
    }
}

fn size(message: &Message) -> usize {
    match message {
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Text(text) => text.len(),
        Message::Close(_) => 0,
    }
}
