//! Output calls: replay from the rings, then live until the exit.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use cove_protocol::frame;
use cove_protocol::message::{ErrorCode, Output, OutputFrom, Reply, ReplyKind};
use tokio::task::spawn_local;

use super::{CHANNELS, Process};
use crate::call::{Call, Ended};
use crate::failure::Failure;
use crate::state::State;

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
    let viewer = Viewer::new(process, false, false);
    follow(call, viewer, offsets, from.follow).await
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
        }
    }

    fn took(&self, position: [u64; CHANNELS]) {
        if self.foreground {
            self.process.streams.borrow_mut().foreground = Some(position);
            self.process.room.notify_waiters();
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.process.viewers.set(self.process.viewers.get() - 1);
        if self.foreground {
            self.process.streams.borrow_mut().foreground = None;
            self.process.room.notify_waiters();
        }
        if self.end_with_call && self.process.running() {
            spawn_local(Rc::clone(&self.process).terminate());
        }
    }
}

pub async fn follow(
    call: &mut Call,
    viewer: Viewer,
    mut position: [u64; CHANNELS],
    live: bool,
) -> Result<(), Ended> {
    let process = Rc::clone(&viewer.process);
    // Where the streams ended when this viewer learnt of the exit: what survivors of the command
    // write later is not part of it.
    let mut until = None;
    loop {
        let changed = process.changed.notified();
        let exit = process.exit();
        if (exit.is_some() || !live) && until.is_none() {
            let streams = process.streams.borrow();
            until = Some([streams.rings[0].end(), streams.rings[1].end()]);
        }
        let mut frames = batch(&process, &mut position, until)?;
        if !frames.is_empty() {
            call.reply_all(&mut frames).await?;
            viewer.took(position);
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
            () = call.hung_up() => return Err(Ended::Lost),
        }
    }
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
            // Survivors overwrote the rest of what was to be told.
            (offset, data) = (until, Bytes::new());
        }
        if offset == at && data.is_empty() {
            continue;
        }
        position[channel] = offset + data.len() as u64;
        let output = Output {
            channel: channel as i32,
            offset,
            dropped: offset - at,
            data,
        };
        let kind = Some(ReplyKind::Output(output));
        frame::encode(&Reply { kind }, &mut frames)?;
    }
    Ok(frames)
}
