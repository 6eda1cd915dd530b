//! Signals and terminal sizes.

use std::rc::Rc;

use cove_protocol::message::{ErrorCode, Resize, Signal};

use super::{follow, terminal};
use crate::call::{Call, Ended};
use crate::failure::{Failure, code_of};
use crate::state::State;

pub async fn signal(state: &Rc<State>, call: &mut Call, request: Signal) -> Result<(), Ended> {
    let process = follow::find(state, &request.id)?;
    if !(1..=libc::SIGRTMAX()).contains(&request.signal) {
        return Err(Failure::invalid(format!("{} is not a signal", request.signal)).into());
    }
    if !process.running() {
        return Err(Failure::new(ErrorCode::Gone, "the process has ended").into());
    }
    if request.signal == libc::SIGKILL {
        process.killed.set(true);
    }
    let target = if request.only_leader {
        process.pid()
    } else {
        -process.pid()
    };
    // SAFETY: the leader is not reaped yet, so its number is still its own.
    if unsafe { libc::kill(target, request.signal) } < 0 {
        let error = std::io::Error::last_os_error();
        let code = code_of(error.raw_os_error().unwrap_or(0));
        return Err(Failure::new(code, format!("cannot signal: {error}")).into());
    }
    call.done(0).await?;
    Ok(())
}

pub async fn resize(state: &Rc<State>, call: &mut Call, request: Resize) -> Result<(), Ended> {
    let process = follow::find(state, &request.id)?;
    let size = request
        .size
        .ok_or_else(|| Failure::invalid("a resize needs a size"))?;
    let terminal =
        process.terminal.borrow().clone().ok_or_else(|| {
            Failure::new(ErrorCode::Gone, "the process has no terminal (any more)")
        })?;
    terminal::set_size(terminal.get_ref(), size)?;
    process.size.set(Some(size));
    call.done(0).await?;
    Ok(())
}
