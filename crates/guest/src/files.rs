//! File calls. Each runs on a thread of its own that takes on the acting user's rights and then
//! talks to the caller itself, so bulk data never passes through the event loop.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use cove_protocol::message::{ErrorCode, Request};

use crate::call::{Call, Ended};
use crate::failure::{Failure, Result};
use crate::state::State;
use crate::thread;

mod archive_in;
mod archive_out;
mod beneath;
mod change;
mod conn;
mod copy;
mod identity;
mod list;
mod open;
mod read;
mod root_links;
mod watch;
mod write;

use conn::Conn;
use identity::Identity;
pub use identity::set_file_ids;

/// File calls running at once, each with a thread.
const CALLS_MAX: u32 = 64;

/// Holds one of the places for file calls.
struct FileCallPermit(Rc<State>);

impl FileCallPermit {
    fn take(state: &Rc<State>) -> Result<Self> {
        let count: &Cell<u32> = &state.file_calls;
        if count.get() >= CALLS_MAX {
            return Err(Failure::new(
                ErrorCode::Limit,
                format!("{CALLS_MAX} file calls are open already"),
            ));
        }
        count.set(count.get() + 1);
        Ok(Self(Rc::clone(state)))
    }
}

impl Drop for FileCallPermit {
    fn drop(&mut self) {
        self.0.file_calls.set(self.0.file_calls.get() - 1);
    }
}

fn user_of(request: &Request) -> Option<&str> {
    Some(match request {
        Request::ReadFile(request) => &request.user,
        Request::WriteFile(request) => &request.user,
        Request::Stat(request) => &request.user,
        Request::List(request) => &request.user,
        Request::MakeDir(request) => &request.user,
        Request::Move(request) => &request.user,
        Request::Remove(request) => &request.user,
        Request::SetAttributes(request) => &request.user,
        Request::ArchiveOut(request) => &request.user,
        Request::ArchiveIn(request) => &request.user,
        Request::Watch(request) => &request.user,
        _ => return None,
    })
}

pub async fn serve(
    state: &Rc<State>,
    mut call: Call,
    request: Request,
) -> std::result::Result<(), cove_protocol::frame::FrameError> {
    let _place = match FileCallPermit::take(state) {
        Ok(place) => place,
        Err(failure) => return call.fail(failure).await,
    };
    let (stream, rest) = call.into_blocking()?;
    let refuse = stream.try_clone()?;
    let quiet = state.quiet.signal();
    let worked = thread::run(move || {
        let mut conn = Conn::new(stream, &rest);
        if let Err(Ended::Refused(failure)) = perform(&mut conn, request, quiet) {
            conn.fail(failure);
        }
    })
    .await;
    if let Err(failure) = worked {
        // No thread could be made: the caller still gets an answer.
        Conn::new(refuse, &[]).fail(failure);
    }
    Ok(())
}

fn perform(
    conn: &mut Conn,
    request: Request,
    quiet: Option<OwnedFd>,
) -> std::result::Result<(), Ended> {
    let who = Identity::assume(user_of(&request).unwrap_or_default())?;
    match request {
        Request::ReadFile(request) => read::serve(conn, &who, &request),
        Request::WriteFile(request) => write::serve(conn, &who, &request),
        Request::Stat(request) => list::stat(conn, &who, &request),
        Request::List(request) => list::serve(conn, &who, &request),
        Request::MakeDir(request) => change::make_dir(conn, &request),
        Request::Move(request) => change::rename(conn, &request),
        Request::Remove(request) => change::remove(conn, &request),
        Request::SetAttributes(request) => change::set_attributes(conn, &who, &request),
        Request::ArchiveOut(request) => archive_out::serve(conn, &who, &request),
        Request::ArchiveIn(request) => archive_in::serve(conn, &who, &request),
        Request::Watch(request) => watch::serve(conn, &request, quiet),
        _ => Err(Failure::new(ErrorCode::Unsupported, "not a file call").into()),
    }
}

/// Paths come without a current directory to be relative to.
fn absolute(path: &str) -> Result<&Path> {
    if !path.starts_with('/') || path.contains('\0') {
        return Err(Failure::invalid(format!(
            "{path:?} is not an absolute path"
        )));
    }
    Ok(Path::new(path))
}
