//! `cove-fetcher`: fetches one image from a registry for the parent on standard input, confined.
//!
//! Called by [`cove_fetcher::driver`] with one argument, the uid it becomes. Everything else, the login
//! included, comes over the socket.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use cove_fetcher::confine::{self, Stage};
use cove_fetcher::wire::{HEADER_BYTES, Header, Order, Request};
use cove_fetcher::work;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cove-fetcher: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<bool> {
    let uid = std::env::args().nth(1).and_then(|text| text.parse().ok());
    cove_confine::rights::close_other_descriptors()?;
    let uid: u32 = uid.ok_or_else(|| io::Error::other("one argument expected, a uid"))?;
    let mut parent = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    let cell = match confine::enter(parent.as_fd(), uid)? {
        Stage::Over(well) => return Ok(well),
        Stage::Inside(cell) => cell,
    };
    confine::lock(cell)?;
    // From here on this is nobody. The order is the parent's; only certificates and names in it are files.
    let order = read_order(&mut parent)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    confine::filter()?;
    parent.set_nonblocking(true)?;
    runtime.block_on(work::run(parent, order))?;
    Ok(true)
}

fn read_order(parent: &mut UnixStream) -> io::Result<Order> {
    let mut header = [0; HEADER_BYTES];
    parent.read_exact(&mut header)?;
    let header = Header::of_request(header).map_err(io::Error::other)?;
    let mut payload = vec![0; header.length];
    parent.read_exact(&mut payload)?;
    match Request::decode(header, &payload).map_err(io::Error::other)? {
        Request::Start(order) => Ok(*order),
        Request::Blob { .. } => Err(io::Error::other("an order was expected")),
    }
}
