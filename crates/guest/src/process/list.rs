//! Descriptions of processes, with what their sessions use now.

use std::collections::HashMap;
use std::rc::Rc;

use cove_protocol::message::{self, ProcessRef, Processes, ReplyKind};

use super::{Process, follow};
use crate::call::{Call, Ended};
use crate::figures::sessions::{self, Usage};
use crate::state::State;

/// Processes in one frame: with every text cut, a frame stays under its limit.
const PER_FRAME: usize = 64;
/// Bytes shown of a command line.
const ARGUMENTS_MAX: usize = 4096;
/// As many as the host shows.
const ARGUMENTS_SHOWN: usize = 256;

pub fn describe(process: &Process) -> message::Process {
    let streams = process.streams.borrow();
    message::Process {
        id: process.id.clone(),
        pid: process.pid(),
        argv: cut(&process.argv),
        cwd: cut(std::slice::from_ref(&process.cwd)).concat(),
        user: process.user.clone(),
        pty: process.size.get(),
        started_unix_ms: process.run.get().started_unix_ms,
        exit: streams.exit,
        stdout_bytes: streams.rings[0].end(),
        stderr_bytes: streams.rings[1].end(),
        kind: process.kind,
        owner: process.owner.clone(),
        tag: process.tag.clone(),
        sees_refusals: process.sees_refusals,
        mark: process.mark.clone(),
        viewers: process.viewers.get(),
        cpu_ms: 0,
        memory_bytes: 0,
        stdout_oldest: streams.rings[0].oldest(),
        stderr_oldest: streams.rings[1].oldest(),
    }
}

pub fn cut(argv: &[String]) -> Vec<String> {
    let mut left = ARGUMENTS_MAX;
    let mut shown = Vec::new();
    for argument in argv.iter().take(ARGUMENTS_SHOWN) {
        let end = argument.floor_char_boundary(argument.len().min(left));
        shown.push(argument[..end].to_owned());
        left -= end;
        if left == 0 || end < argument.len() {
            break;
        }
    }
    shown
}

fn with_usage(process: &Process, usage: &HashMap<i32, Usage>) -> message::Process {
    let mut told = describe(process);
    if let Some(usage) = usage.get(&process.pid()) {
        told.cpu_ms = usage.cpu_ms;
        told.memory_bytes = usage.memory_bytes;
    }
    told
}

pub async fn all(state: &Rc<State>, call: &mut Call) -> Result<(), Ended> {
    let usage = sessions::measure().await?;
    let processes = state.table.all();
    for part in processes.chunks(PER_FRAME) {
        let processes = part
            .iter()
            .map(|process| with_usage(process, &usage))
            .collect();
        call.reply(ReplyKind::Processes(Processes { processes }))
            .await?;
    }
    call.done(0).await?;
    Ok(())
}

pub async fn one(state: &Rc<State>, call: &mut Call, of: ProcessRef) -> Result<(), Ended> {
    let process = follow::find(state, &of.id)?;
    let usage = sessions::measure().await?;
    call.reply(ReplyKind::Process(with_usage(&process, &usage)))
        .await?;
    Ok(())
}
