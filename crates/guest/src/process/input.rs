//! Standard input: given whole at the start, or by calls while the command runs.

use std::rc::Rc;

use crate::watched::Watched;
use bytes::Bytes;
use cove_protocol::message::{ErrorCode, InputKind, ProcessRef};
use tokio::task::{JoinHandle, spawn_local};

use super::{Input, Process, follow};
use crate::call::{Call, Ended};
use crate::failure::Failure;
use crate::state::State;

/// What a terminal takes as end of file, unless the command changed it.
const END_OF_FILE: &[u8] = &[4];

pub async fn serve(state: &Rc<State>, call: &mut Call, of: ProcessRef) -> Result<(), Ended> {
    let process = follow::find(state, &of.id)?;
    if process.exit().is_some() || matches!(*process.input.lock().await, Input::Closed) {
        return Err(gone().into());
    }
    let mut taken = 0;
    loop {
        let input = tokio::select! {
            biased;
            input = call.input() => input?,
            () = state.quiet.begun() => return leave(call, process, None, taken).await,
        };
        match input.kind {
            Some(InputKind::Data(data)) => {
                taken += data.len() as u64;
                // On a task of its own, so that it can go on when this call must end.
                let mut writing = spawn_local(write(Rc::clone(&process), data));
                let written = tokio::select! {
                    written = &mut writing => written,
                    () = call.abandoned() => {
                        writing.abort();
                        return Err(Ended::Lost);
                    }
                    () = state.quiet.begun() => {
                        return leave(call, process, Some(writing), taken).await;
                    }
                };
                written.unwrap_or_else(|_| Err(gone()))?;
            }
            Some(InputKind::Flush(_)) => call.done(taken).await?,
            Some(InputKind::End(_)) => {
                close(&process).await?;
                call.done(taken).await?;
                return Ok(());
            }
            None => return Err(Failure::invalid("an empty input frame").into()),
        }
    }
}

/// Ends the call because of a capture. What the caller has sent already is taken, and reaches the
/// process when that reads; the caller learns how much it was.
async fn leave(
    call: &mut Call,
    process: Rc<Process>,
    writing: Option<JoinHandle<Result<(), Failure>>>,
    mut taken: u64,
) -> Result<(), Ended> {
    if call.stop_input().is_err() {
        return Err(Ended::Lost);
    }
    let mut rest = Vec::new();
    // Ends with the last whole frame; half of one is sent again.
    while let Ok(input) = call.input().await {
        match input.kind {
            Some(InputKind::Data(data)) => {
                taken += data.len() as u64;
                rest.push(data);
            }
            // Asked again by the caller, who got no answer.
            _ => break,
        }
    }
    spawn_local(async move {
        if let Some(writing) = writing {
            let _ = writing.await;
        }
        for data in rest {
            if write(Rc::clone(&process), data).await.is_err() {
                return;
            }
        }
    });
    Ok(call.quiesced(taken).await?)
}

/// Writes one piece; pieces of several calls do not mix.
async fn write(process: Rc<Process>, data: Bytes) -> Result<(), Failure> {
    let input = process.input.lock().await;
    match &*input {
        Input::Closed => Err(gone()),
        Input::Pipe(pipe) => write_all(pipe, &data).await,
        Input::Terminal => {
            let terminal = process.terminal.borrow().clone();
            write_all(&*terminal.ok_or_else(gone)?, &data).await
        }
    }
}

async fn close(process: &Process) -> Result<(), Failure> {
    let mut input = process.input.lock().await;
    match &*input {
        // It ended meanwhile, perhaps because of the input just taken; there is nothing left to close.
        Input::Closed => Ok(()),
        Input::Pipe(_) => {
            *input = Input::Closed;
            Ok(())
        }
        Input::Terminal => {
            let terminal = process.terminal.borrow().clone();
            write_all(&*terminal.ok_or_else(gone)?, END_OF_FILE).await
        }
    }
}

async fn write_all(fd: &Watched, mut data: &[u8]) -> Result<(), Failure> {
    while !data.is_empty() {
        let mut ready = fd.writable().await.map_err(|_| gone())?;
        match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), data)?)) {
            Ok(Ok(count)) => data = &data[count..],
            Ok(Err(_)) => return Err(gone()),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

fn gone() -> Failure {
    Failure::new(
        ErrorCode::Gone,
        "the process has no open standard input (any more)",
    )
}

/// Hands over the whole input of a command and closes it.
pub async fn feed(pipe: Watched, data: Bytes) {
    // A command that ends without reading all of it is no failure.
    let _ = write_all(&pipe, &data).await;
}
