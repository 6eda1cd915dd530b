//! Output calls: replay from the rings, then live until the exit.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cove_protocol::frame;
use cove_protocol::message::{ErrorCode, Exit, Output, OutputFrom, Refusals, Reply, ReplyKind};
use tokio::task::spawn_local;

use super::{CHANNELS, Process};
use crate::call::{Call, Ended};
use crate::failure::Failure;
use crate::quiesce::RETURN_GRACE;
use crate::state::State;

/// How long a frame under way may take when a capture waits for it.
const STALL_LIMIT: Duration = Duration::from_secs(1);
/// Output in one frame.
const FRAME_DATA: usize = 64 * 1024;

pub async fn serve(state: &Rc<State>, call: &mut Call, from: OutputFrom) -> Result<(), Ended> {
    let process = find(state, &from.id)?;
    let offsets = [from.stdout_from, from.stderr_from];
    {
        let streams = process.streams.borrow();
        for (ring, offset) in streams.rings.iter().zip(offsets) {
            if offset > ring.end() {
                return Err(Failure::invalid(format!(
                    "offset {offset} is beyond the {} bytes written so far",
                    ring.end()
                ))
                .into());
            }
        }
    }
    let viewer = match from.resume.then(|| process.interrupted.take()).flatten() {
        Some(interrupted) => Viewer::new(process, true, interrupted.end_with_call),
        None => Viewer::new(process, false, false),
    };
    let viewer = viewer.hearing_of_refusals(from.resume);
    follow(state, call, viewer, offsets, from.follow).await
}

pub fn find(state: &State, id: &str) -> Result<Rc<Process>, Failure> {
    state.table.get(id).ok_or_else(|| {
        Failure::new(
            ErrorCode::NotFound,
            format!("there is no process {id:?} here"),
        )
    })
}

/// A call attached to a process's output.
pub struct Viewer {
    process: Rc<Process>,
    foreground: bool,
    end_with_call: bool,
    /// Is told of the first refusal, if whoever started the process asked for that.
    hears: bool,
}

/// The foreground viewer's place, kept over a capture until it comes back.
#[derive(Clone, Copy)]
pub struct Interrupted {
    end_with_call: bool,
    since: Instant,
}

impl Viewer {
    /// The foreground viewer is the one nothing may be dropped for; the process was made with its
    /// place held.
    pub fn new(process: Rc<Process>, foreground: bool, end_with_call: bool) -> Self {
        process.viewers.set(process.viewers.get() + 1);
        Self {
            process,
            foreground,
            end_with_call,
            hears: false,
        }
    }

    pub fn hearing_of_refusals(mut self, hears: bool) -> Self {
        self.hears = hears && self.process.refused_before.is_some();
        self
    }

    /// What was refused since the process started, once; addresses only when it failed.
    fn refusals(&mut self, state: &State, exit: Option<Exit>) -> Option<Refusals> {
        let mark = self.process.refused_before.filter(|_| self.hears)?;
        let found = state.refusals.name_since(mark).or_else(|| {
            let failed = exit.is_some_and(|exit| exit.code != 0);
            failed.then(|| state.refusals.addresses_since(mark))?
        });
        self.hears &= found.is_none();
        found
    }

    fn took(&self, position: [u64; CHANNELS]) {
        if self.foreground {
            self.process.streams.borrow_mut().foreground = Some(position);
            self.process.room.notify_waiters();
        }
    }
}

impl Viewer {
    /// Leaves because of a capture: what the foreground viewer has not taken is kept for it, and its
    /// process goes on.
    fn interrupt(mut self, state: &Rc<State>) {
        if self.foreground {
            let since = Instant::now();
            self.process.interrupted.set(Some(Interrupted {
                end_with_call: self.end_with_call,
                since,
            }));
            let process = Rc::clone(&self.process);
            spawn_local(wait_for_return(Rc::clone(state), process, since));
        }
        (self.foreground, self.end_with_call) = (false, false);
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.process.viewers.set(self.process.viewers.get() - 1);
        if self.foreground {
            leave_foreground(&self.process);
        }
        if self.end_with_call && self.process.running() {
            spawn_local(Rc::clone(&self.process).terminate());
        }
    }
}

pub fn leave_foreground(process: &Process) {
    process.streams.borrow_mut().foreground = None;
    process.room.notify_waiters();
}

async fn wait_for_return(state: Rc<State>, process: Rc<Process>, since: Instant) {
    state.quiet.over().await;
    tokio::time::sleep(RETURN_GRACE).await;
    // One that came back took it, and one that was interrupted again has more time.
    if let Some(interrupted) = process.interrupted.get()
        && interrupted.since == since
    {
        process.interrupted.set(None);
        leave_foreground(&process);
        if interrupted.end_with_call && process.running() {
            process.terminate().await;
        }
    }
}

pub async fn follow(
    state: &Rc<State>,
    call: &mut Call,
    mut viewer: Viewer,
    mut position: [u64; CHANNELS],
    live: bool,
) -> Result<(), Ended> {
    let process = Rc::clone(&viewer.process);
    // Where the streams ended when this viewer learnt of the exit: what survivors of the command
    // write later is not part of it.
    let mut until = None;
    loop {
        let changed = process.changed.notified();
        let refused = state.refusals.refused();
        let exit = process.exit();
        if (exit.is_some() || !live) && until.is_none() {
            let streams = process.streams.borrow();
            until = Some([streams.rings[0].end(), streams.rings[1].end()]);
        }
        let mut frames = batch(&process, &mut position, until)?;
        if state.quiet.is_on() {
            // What is not reported now is asked for again, from where the caller stands.
            let told = call.quiesced(0).await;
            viewer.interrupt(state);
            return Ok(told?);
        }
        if !frames.is_empty() {
            let told = tokio::select! {
                told = call.reply_all(&mut frames) => told,
                // A caller that takes nothing must not hold a capture up.
                () = stalled(state) => {
                    viewer.interrupt(state);
                    return Err(Ended::Lost);
                }
            };
            told?;
            viewer.took(position);
            continue;
        }
        if let Some(refusals) = viewer.refusals(state, exit) {
            call.reply(ReplyKind::Refusals(refusals)).await?;
            continue;
        }
        if let Some(exit) = exit {
            call.reply(ReplyKind::Exit(exit)).await?;
            return Ok(());
        }
        if !live {
            call.done(0).await?;
            return Ok(());
        }
        tokio::select! {
            () = changed => {}
            () = refused, if viewer.hears => {}
            () = state.quiet.begun() => {}
            () = call.hung_up() => return Err(Ended::Lost),
        }
    }
}

async fn stalled(state: &State) {
    state.quiet.begun().await;
    tokio::time::sleep(STALL_LIMIT).await;
}

/// Frames with what the rings have beyond `position`, which moves on.
fn batch(
    process: &Process,
    position: &mut [u64; CHANNELS],
    until: Option<[u64; CHANNELS]>,
) -> Result<BytesMut, Ended> {
    let streams = process.streams.borrow();
    let mut frames = BytesMut::new();
    for (channel, ring) in streams.rings.iter().enumerate() {
        let at = position[channel];
        let until = until.map_or(u64::MAX, |until| until[channel]);
        let limit = usize::try_from(until.saturating_sub(at)).unwrap_or(usize::MAX);
        let (mut offset, mut data) = ring.read(at, FRAME_DATA.min(limit));
        if offset > until {
            // Survivors overwrote the rest of what was to be reported.
            (offset, data) = (until, Bytes::new());
        }
        if offset == at && data.is_empty() {
            continue;
        }
        let end = offset + data.len() as u64;
        position[channel] = end;
        let output = Output {
            channel: channel as i32,
            offset,
            dropped: offset - at,
            times: ring.times(offset, end),
            data,
        };
        let kind = Some(ReplyKind::Output(output));
        frame::encode(&Reply { kind }, &mut frames)?;
    }
    Ok(frames)
}
