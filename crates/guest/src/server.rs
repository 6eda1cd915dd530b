//! Accepts connections, holds them to their limits, and hands each request to its module.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use cove_protocol::message::{ErrorCode, Info, Open, ReplyKind, Request};
use cove_protocol::needs::SIDE;
use cove_protocol::{OLDEST_SUPPORTED, VERSION};
use cove_wire::Side;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::call::{Call, Ended};
use crate::failure::Failure;
use crate::figures::metrics;
use crate::files;
use crate::ports;
use crate::process::{self, reap};
use crate::quiesce::{self, OpenCall};
use crate::refusals;
use crate::relay;
use crate::services;
use crate::shutdown;
use crate::standstill;
use crate::state::State;
use crate::watched;

/// Calls open at once from outside the sandbox.
const OUTSIDE_MAX: u32 = 512;
/// Calls open at once from processes inside, which must not crowd out the host.
const INSIDE_MAX: u32 = 64;
/// How long a fresh connection may take to say what it wants.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long the end of a virtual machine waits for the host to hang up, and how often it looks.
const HANG_UP_WAIT: Duration = Duration::from_secs(2);
const HANG_UP_LOOK: Duration = Duration::from_millis(5);
/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Counts {
    outside: Cell<u32>,
    inside: Cell<u32>,
}

/// Where calls come from.
pub enum Calls {
    Socket(std::os::unix::net::UnixListener),
    /// The port of a virtual machine, which carries streams of the host alone.
    Port(OwnedFd),
}

pub async fn serve(
    state: Rc<State>,
    calls: Calls,
    children: OwnedFd,
    wake: OwnedFd,
) -> io::Result<()> {
    spawn_local(reap::reap(
        Rc::clone(&state),
        watched::watch(children, Interest::READABLE)?,
    ));
    spawn_local(quiesce::wake(
        Rc::clone(&state),
        watched::watch(wake, Interest::READABLE)?,
    ));
    let counts = Rc::new(Counts::default());
    let listener = match calls {
        Calls::Socket(listener) => UnixListener::from_std(listener)?,
        Calls::Port(port) => {
            let of = Rc::clone(&state);
            let port = watched::watch(port, Interest::READABLE | Interest::WRITABLE)?;
            let (mux, carried) = cove_mux::Mux::guest(port, move |stream| {
                admit(&of, &counts, stream, Caller::Outside);
            });
            tokio::pin!(carried);
            tokio::select! {
                () = state.finished.notified() => {}
                ended = &mut carried => return ended,
            }
            // The host hangs up once it has the last words.
            let hung_up = async {
                while mux.streams() > 0 {
                    sleep(HANG_UP_LOOK).await;
                }
            };
            return tokio::select! {
                _ = timeout(HANG_UP_WAIT, hung_up) => Ok(()),
                ended = &mut carried => ended,
            };
        }
    };
    loop {
        // Whoever connects while the guest is quiet waits in the queue.
        state.quiet.over().await;
        let accepted = tokio::select! {
            biased;
            () = state.finished.notified() => return Ok(()),
            () = state.quiet.begun() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => admit(&state, &counts, stream, Caller::Unknown),
            // Out of descriptors or memory: what waits in the backlog keeps the listener ready,
            // so only a pause keeps this from spinning.
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Holds one place among the open calls.
struct CallPermit {
    state: Rc<State>,
    counts: Rc<Counts>,
    inside: bool,
}

impl CallPermit {
    fn take(state: &Rc<State>, counts: &Rc<Counts>, inside: bool) -> Option<Self> {
        let (count, limit) = counts.of(inside);
        if count.get() >= limit {
            return None;
        }
        count.set(count.get() + 1);
        state.calls.set(state.calls.get() + 1);
        Some(Self {
            state: Rc::clone(state),
            counts: Rc::clone(counts),
            inside,
        })
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let (count, _) = self.counts.of(self.inside);
        count.set(count.get() - 1);
        self.state.calls.set(self.state.calls.get() - 1);
    }
}

impl Counts {
    fn of(&self, inside: bool) -> (&Cell<u32>, u32) {
        if inside {
            (&self.inside, INSIDE_MAX)
        } else {
            (&self.outside, OUTSIDE_MAX)
        }
    }
}

/// What is known of a caller by the way it came.
enum Caller {
    /// The socket says.
    Unknown,
    /// Nobody inside comes this way.
    Outside,
}

fn admit(state: &Rc<State>, counts: &Rc<Counts>, stream: UnixStream, caller: Caller) {
    let Ok(peer) = stream.peer_cred() else {
        return;
    };
    // A peer outside our pid namespace has no pid here. One inside may use the socket only if it
    // is root already: a call could otherwise be a way to become it.
    let inside = matches!(caller, Caller::Unknown) && peer.pid().is_some_and(|pid| pid > 0);
    let own_uid = rustix::process::geteuid().as_raw();
    let refusal = if inside && peer.uid() != own_uid {
        Some(Failure::new(
            ErrorCode::PermissionDenied,
            "only root may talk to the guest",
        ))
    } else {
        None
    };
    let place = CallPermit::take(state, counts, inside);
    let refusal = match (refusal, place) {
        (None, Some(place)) => {
            let open = (!inside).then(|| OpenCall::new(state));
            spawn_local(converse(place, open, Call::new(stream)));
            return;
        }
        (Some(refusal), _) => refusal,
        (None, None) => Failure::new(ErrorCode::Limit, "too many calls are open"),
    };
    refuse_now(&stream, refusal);
}

/// Says why and hangs up, without waiting for a peer that does not listen.
fn refuse_now(stream: &UnixStream, failure: Failure) {
    let mut buffer = bytes::BytesMut::new();
    let reply = cove_protocol::message::Reply {
        kind: Some(ReplyKind::Error(failure.into_message())),
    };
    if cove_protocol::frame::encode(&reply, &mut buffer).is_ok() {
        // A fresh socket takes a small frame at once; if not, hanging up says enough.
        let _ = stream.try_write(&buffer);
    }
}

async fn converse(place: CallPermit, listed: Option<OpenCall>, mut call: Call) {
    let Ok(Ok(open)) = timeout(HANDSHAKE_LIMIT, call.open()).await else {
        return;
    };
    // Errors of these last words have nobody left to hear of them.
    let _ = match check(&SIDE, open) {
        Ok(
            Request::Quiesce(_)
            | Request::Refresh(_)
            | Request::Flush(_)
            | Request::TakeRefusals(_)
            | Request::Renew(_),
        ) if place.inside => {
            let refusal = "only the host may ask for that";
            call.fail(Failure::new(ErrorCode::PermissionDenied, refusal))
                .await
        }
        Ok(request) => {
            if let Some(listed) = &listed {
                listed.named(describe(&request));
            }
            dispatch(&place.state, call, request).await
        }
        Err(failure) => call.fail(failure).await,
    };
}

/// The request, if a guest that is `side` can do all that it asks for.
fn check(side: &Side, open: Open) -> Result<Request, Failure> {
    side.accept_version(open.version)
        .map_err(|refusal| Failure::new(ErrorCode::VersionMismatch, refusal.to_string()))?;
    side.accept_needs(open.needs.iter().map(String::as_str))
        .map_err(|missing| Failure::new(ErrorCode::MissingFeature, missing.to_string()))?;
    open.request.ok_or_else(|| {
        Failure::new(
            ErrorCode::Unsupported,
            "this guest does not know the request",
        )
    })
}

/// What a call does, for whoever has to wait for it.
fn describe(request: &Request) -> String {
    match request {
        Request::ReadFile(read) => format!("reading {}", read.path),
        Request::WriteFile(write) => format!("writing {}", write.path),
        Request::ArchiveOut(archive) => format!("packing {}", archive.path),
        Request::ArchiveIn(archive) => format!("unpacking into {}", archive.path),
        Request::Remove(remove) => format!("removing {}", remove.path),
        Request::Start(_) | Request::Output(_) => "following output".into(),
        Request::Stdin(_) => "writing standard input".into(),
        Request::Watch(watch) => format!("watching {}", watch.path),
        Request::ConnectPort(connect) => format!("a connection to port {}", connect.port),
        Request::Shutdown(_) => "shutting down".into(),
        _ => "a short call".into(),
    }
}

async fn dispatch(
    state: &Rc<State>,
    mut call: Call,
    request: Request,
) -> Result<(), cove_protocol::frame::FrameError> {
    let result: Result<(), Ended> = match request {
        Request::Info(_) => call
            .reply(ReplyKind::Info(info(state)))
            .await
            .map_err(Ended::from),
        Request::Start(start) => process::start::serve(state, &mut call, start).await,
        Request::Output(from) => process::follow::serve(state, &mut call, from).await,
        Request::Stdin(of) => process::input::serve(state, &mut call, of).await,
        Request::Signal(signal) => process::control::signal(state, &mut call, signal).await,
        Request::Resize(resize) => process::control::resize(state, &mut call, resize).await,
        Request::Processes(_) => process::list::all(state, &mut call).await,
        Request::Process(of) => process::list::one(state, &mut call, of).await,
        Request::Metrics(_) => metrics::serve(state, &mut call).await,
        Request::Shutdown(request) => shutdown::serve(state, &mut call, request).await,
        Request::Ports(_) => ports::serve(&mut call).await,
        Request::ConnectPort(request) => relay::serve(state, &mut call, request).await,
        Request::Quiesce(request) => quiesce::serve(state, &mut call, request).await,
        Request::Refresh(_) => quiesce::refresh(state, &mut call).await,
        Request::TakeRefusals(_) => refusals::serve(state, &mut call).await,
        Request::Flush(_) => shutdown::flush_only(&mut call).await,
        Request::Renew(request) => standstill::renew(state, &mut call, request).await,
        Request::StartService(request) => services::calls::start(state, &mut call, request).await,
        Request::Services(_) => services::calls::list(state, &mut call).await,
        Request::RemoveService(of) => services::calls::remove(state, &mut call, of).await,
        Request::BeginServices(with) => services::calls::begin(state, &mut call, with).await,
        request => return files::serve(state, call, request).await,
    };
    match result {
        Ok(()) | Err(Ended::Lost) => Ok(()),
        Err(Ended::Refused(failure)) => call.fail(failure).await,
    }
}

fn info(state: &State) -> Info {
    Info {
        version: VERSION,
        oldest_supported: OLDEST_SUPPORTED,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        started_unix_ms: state.started_unix_ms,
        hostname: crate::state::hostname(),
        features: SIDE.names(),
    }
}

#[cfg(test)]
mod tests {
    use cove_protocol::message::{
        ArchiveIn, Empty, Environment, ListDir, MakeDir, ReadFile, ServiceRef, SetAttributes,
        Start, StartService, WriteFile,
    };

    use super::*;

    const LACKING: Side = Side {
        features: &[],
        ..SIDE
    };

    #[test]
    fn a_guest_without_a_feature_refuses_every_request_that_needs_it() {
        let user = || "agent".to_owned();
        let restricting = [
            Request::Start(Start {
                user: user(),
                ..Start::default()
            }),
            Request::Start(Start {
                timeout_ms: 1,
                ..Start::default()
            }),
            Request::Start(Start {
                ring_bytes: 1,
                ..Start::default()
            }),
            Request::Start(Start {
                kill_on_disconnect: true,
                ..Start::default()
            }),
            Request::WriteFile(WriteFile {
                mode: Some(0o600),
                ..WriteFile::default()
            }),
            Request::WriteFile(WriteFile {
                root_links_only: true,
                ..WriteFile::default()
            }),
            Request::ReadFile(ReadFile {
                root_links_only: true,
                ..ReadFile::default()
            }),
            Request::MakeDir(MakeDir {
                mode: Some(0o700),
                ..MakeDir::default()
            }),
            Request::SetAttributes(SetAttributes {
                owner: user(),
                ..SetAttributes::default()
            }),
            Request::StartService(StartService::default()),
            Request::Services(Empty {}),
            Request::RemoveService(ServiceRef::default()),
            Request::BeginServices(Environment::default()),
            Request::List(ListDir {
                user: user(),
                ..ListDir::default()
            }),
            Request::ArchiveIn(ArchiveIn {
                user: user(),
                ..ArchiveIn::default()
            }),
        ];
        for request in restricting {
            let open = Open::new(request.clone());
            check(&SIDE, open.clone()).expect("this guest has all features");
            let refusal = check(&LACKING, open).expect_err("it would be weakened");
            let refusal = refusal.into_message();
            assert_eq!(refusal.code, ErrorCode::MissingFeature as i32);
            for feature in request.needs().names() {
                assert!(refusal.message.contains(&feature), "{refusal:?}");
            }
        }
    }

    #[test]
    fn what_restricts_nothing_is_done_by_a_guest_without_features() {
        let request = Request::Start(Start::default());
        check(&LACKING, Open::new(request)).expect("it needs nothing");
    }
}
