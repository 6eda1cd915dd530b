#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream as StdStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::*;

/// Long enough for a machine that stood still for a while.
const LONG: Duration = Duration::from_secs(120);

fn pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = StdStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    (one.into(), other.into())
}

#[allow(deprecated)]
fn watch(port: OwnedFd) -> AsyncFd<OwnedFd> {
    AsyncFd::new(port).unwrap()
}

fn host(port: OwnedFd) -> (Mux, Rc<Notify>) {
    let found = Rc::new(Notify::new());
    let told = Rc::clone(&found);
    (Mux::host(watch(port), move || told.notify_one()), found)
}

/// What comes back on a new stream.
async fn call(mux: &Mux, sent: Vec<u8>) -> Vec<u8> {
    try_call(mux, sent).await.unwrap()
}

async fn try_call(mux: &Mux, sent: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mux = mux.clone();
    spawn_local(async move { mux.open(theirs).await });
    let (mut read, mut write) = ours.split();
    let writing = async {
        write.write_all(&sent).await?;
        write.shutdown().await
    };
    let mut got = Vec::new();
    let reading = async { read.read_to_end(&mut got).await };
    let (written, read) = timeout(LONG, async { tokio::join!(writing, reading) })
        .await
        .expect("it comes to an end");
    written?;
    read?;
    Ok(got)
}

fn echo(mut stream: UnixStream) {
    spawn_local(async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
}

#[tokio::test]
async fn streams_are_carried_beside_each_other_and_one_that_nobody_reads_holds_up_none() {
    LocalSet::new()
        .run_until(async {
            let (one, other) = pair();
            let (mux, found) = host(one);
            spawn_local(Mux::guest(watch(other), echo).1);
            timeout(LONG, found.notified()).await.unwrap();
            // Its answer is never read.
            let (mut stuck, theirs) = UnixStream::pair().unwrap();
            let of = mux.clone();
            spawn_local(async move { of.open(theirs).await });
            spawn_local(async move {
                let _ = stuck.write_all(&vec![1; 4 << 20]).await;
                std::future::pending::<()>().await;
            });
            for length in [0, 1, 5, WINDOW, 1 << 20] {
                let sent: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
                assert!(call(&mux, sent.clone()).await == sent, "{length}");
            }
            // An end is heard here before the other side has noted it.
            let noted = async {
                while mux.streams() > 1 {
                    tokio::task::yield_now().await;
                }
            };
            timeout(LONG, noted).await.expect("the others are gone");
            assert_eq!(mux.streams(), 1);
        })
        .await;
}

#[tokio::test]
async fn garbage_and_broken_promises_end_the_streams_and_both_sides_find_each_other_again() {
    let too_much = {
        let frame = Frame::new(Kind::Data, 1, vec![7; frame::CONTENT_MAX].into());
        let one = [&frame.header()[..], &frame.content].concat();
        // More than the socket of whoever does not read takes.
        one.repeat(64)
    };
    let open = Frame::empty(Kind::Open, 9).header().to_vec();
    let widen = {
        let frame = Frame::new(Kind::Window, 1, u32::MAX.to_le_bytes().to_vec().into());
        [&frame.header()[..], &frame.content].concat()
    };
    let noise: Vec<u8> = (0..100_000_u32).map(|at| (at * 31 % 257) as u8).collect();
    for wrong in [noise, too_much, open, widen] {
        LocalSet::new()
            .run_until(async {
                let (one, other) = pair();
                let bare = std::fs::File::from(other.try_clone().unwrap());
                let (mux, found) = host(one);
                let guest = spawn_local(Mux::guest(watch(other), echo).1);
                timeout(LONG, found.notified()).await.unwrap();
                assert_eq!(call(&mux, b"before".to_vec()).await, b"before");
                // One stream that is open and does not read, for frames that need one.
                let (held, theirs) = UnixStream::pair().unwrap();
                let of = mux.clone();
                mux.shared.next.set(1);
                spawn_local(async move { of.open(theirs).await });
                tokio::time::sleep(Duration::from_millis(50)).await;
                use std::io::Write;
                let mut at = 0;
                while at < wrong.len() {
                    match (&bare).write(&wrong[at..]) {
                        Ok(written) => at += written,
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
                timeout(LONG, found.notified()).await.expect("found again");
                // What is left of the garbage may end streams once more.
                let after = async {
                    while try_call(&mux, b"after".to_vec()).await.ok().as_deref() != Some(b"after")
                    {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                timeout(LONG, after).await.expect("calls work again");
                drop(held);
                guest.abort();
            })
            .await;
    }
}

#[tokio::test]
async fn what_a_guest_left_in_the_port_before_is_not_taken_for_frames() {
    LocalSet::new()
        .run_until(async {
            let (one, other) = pair();
            use std::io::Write;
            let mut bare = std::fs::File::from(other.try_clone().unwrap());
            let stale = Frame::new(Kind::Found, 0, vec![1; frame::GREETING].into());
            bare.write_all(&[&stale.header()[..], &stale.content, &[9; 100]].concat())
                .unwrap();
            let (mux, found) = host(one);
            spawn_local(Mux::guest(watch(other), echo).1);
            timeout(LONG, found.notified()).await.unwrap();
            assert_eq!(call(&mux, b"hello".to_vec()).await, b"hello");
        })
        .await;
}

#[tokio::test]
async fn a_stream_opened_while_the_sides_look_for_each_other_answers_or_ends() {
    LocalSet::new()
        .run_until(async {
            let (one, other) = pair();
            let bare = std::fs::File::from(other.try_clone().unwrap());
            let (mux, found) = host(one);
            spawn_local(Mux::guest(watch(other), echo).1);
            timeout(LONG, found.notified()).await.unwrap();
            use std::io::Write;
            (&bare)
                .write_all(&Frame::empty(Kind::Open, 9).header())
                .unwrap();
            // Some of these fall into the pause before the next greeting, others come after it.
            let mut opened = Vec::new();
            while timeout(AGAIN / 20, found.notified()).await.is_err() {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let of = mux.clone();
                spawn_local(async move { of.open(theirs).await });
                opened.push(ours);
            }
            for mut stream in opened {
                let _ = stream.write_all(b"x").await;
                let _ = stream.shutdown().await;
                let mut got = Vec::new();
                let read = timeout(LONG, stream.read_to_end(&mut got)).await;
                assert!(read.is_ok(), "it neither ends nor answers");
            }
            assert_eq!(call(&mux, b"after".to_vec()).await, b"after");
        })
        .await;
}

#[tokio::test]
async fn a_guest_that_lost_its_place_alone_is_found_again() {
    LocalSet::new()
        .run_until(async {
            let (one, other) = pair();
            use std::io::Write;
            let bare = std::fs::File::from(one.try_clone().unwrap());
            let (mux, found) = host(one);
            spawn_local(Mux::guest(watch(other), echo).1);
            timeout(LONG, found.notified()).await.unwrap();
            // The host does not see what goes wrong on the way to the guest.
            (&bare).write_all(&[9; 100]).unwrap();
            timeout(LONG, found.notified()).await.expect("found again");
            assert_eq!(call(&mux, b"after".to_vec()).await, b"after");
        })
        .await;
}

#[tokio::test]
async fn a_guest_that_waits_for_the_rest_of_a_frame_is_found() {
    LocalSet::new()
        .run_until(async {
            let (one, other) = pair();
            use std::io::Write;
            // What a host that is gone had begun to write.
            let begun = Frame::new(Kind::Data, 1, vec![7; frame::CONTENT_MAX].into());
            let number = [3; frame::GREETING];
            let greeting = Frame::new(Kind::Greet, 0, number.to_vec().into());
            let mut bare = std::fs::File::from(one.try_clone().unwrap());
            bare.write_all(&[&greeting.header()[..], &number, &begun.header(), &[7; 100]].concat())
                .unwrap();
            spawn_local(Mux::guest(watch(other), echo).1);
            let (mux, found) = host(one);
            timeout(LONG, found.notified()).await.unwrap();
            assert_eq!(call(&mux, b"hello".to_vec()).await, b"hello");
        })
        .await;
}
