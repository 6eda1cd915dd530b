//! Standard input: given whole at the start, or by calls while the command runs.

use std::rc::Rc;

use crate::watched::Watched;
use bytes::Bytes;
use cove_protocol::message::{ErrorCode, InputKind, ProcessRef};

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
        match call.input().await?.kind {
            Some(InputKind::Data(data)) => {
                let written = tokio::select! {
                    written = write(&process, &data) => written,
                    () = call.abandoned() => return Err(Ended::Lost),
                };
                written?;
                taken += data.len() as u64;
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

/// Writes one piece; pieces of several calls do not mix.
async fn write(process: &Process, data: &[u8]) -> Result<(), Failure> {
    let input = process.input.lock().await;
    match &*input {
        Input::Closed => Err(gone()),
        Input::Pipe(pipe) => write_all(pipe, data).await,
        Input::Terminal => {
            let terminal = process.terminal.borrow().clone();
            write_all(&*terminal.ok_or_else(gone)?, data).await
        }
    }
}

async fn close(process: &Process) -> Result<(), Failure> {
    let mut input = process.input.lock().await;
    match &*input {
        Input::Closed => Err(gone()),
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
