//! The client against guests that lie.
#![allow(
    clippy::unwrap_used,
    reason = "in a test the place of a failure is what counts"
)]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cove_protocol::client::{Connect, FollowEvent, Guest, GuestError, Stream, TEXT_MAX};
use cove_protocol::frame::{self, FRAME_MAX, FrameError};
use cove_protocol::message::{
    Change, ChangeKind, Done, Error, Exit, FileInfo, Info, ListDir, Listing, Output, OutputFrom,
    OutputTime, Process, Quiesced, ReadFile, Reply, ReplyKind, Start, Watch,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Says the same to every call, whatever it wants, and then hangs up or keeps silent.
struct Liar {
    says: Bytes,
    hangs_up: bool,
}

#[async_trait::async_trait]
impl Connect for Liar {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let (says, hangs_up) = (self.says.clone(), self.hangs_up);
        tokio::spawn(async move {
            let _ = far.write_all(&says).await;
            if !hangs_up {
                let mut sink = Vec::new();
                let _ = far.read_to_end(&mut sink).await;
            }
        });
        Ok(Box::new(near))
    }
}

fn saying(replies: impl IntoIterator<Item = ReplyKind>) -> Guest {
    let mut says = BytesMut::new();
    for kind in replies {
        frame::encode(&Reply { kind: Some(kind) }, &mut says).unwrap();
    }
    guest(says.freeze(), true)
}

fn guest(says: Bytes, hangs_up: bool) -> Guest {
    Guest::new(Arc::new(Liar { says, hangs_up })).within(Duration::from_secs(120))
}

fn output(offset: u64, dropped: u64, data: &'static [u8]) -> ReplyKind {
    ReplyKind::Output(Output {
        channel: 0,
        offset,
        dropped,
        data: Bytes::from_static(data),
        times: Vec::new(),
    })
}

async fn follow(guest: &Guest) -> Result<Vec<FollowEvent>, GuestError> {
    let mut follow = guest.follow(OutputFrom::default()).await?;
    let mut events = Vec::new();
    while let Some(event) = follow.next().await? {
        events.push(event);
    }
    Ok(events)
}

#[tokio::test]
async fn times_lie_within_their_output_and_go_forwards() {
    let time = |offset, unix_ms| OutputTime { offset, unix_ms };
    let mut times = vec![time(0, 1), time(4, i64::MIN), time(3, 3), time(4, 4)];
    times.extend([time(5, 5), time(6, 6), time(u64::MAX, 7)]);
    times.extend(vec![time(5, 8); 100_000]);
    let said = ReplyKind::Output(Output {
        offset: 1,
        dropped: 1,
        data: Bytes::from_static(b"abcde"),
        times,
        ..Output::default()
    });
    let over = ReplyKind::Exit(Exit::default());
    let events = follow(&saying(vec![said, over])).await.unwrap();
    let Some(FollowEvent::Output { times, .. }) = events.first() else {
        panic!("{events:?}");
    };
    assert_eq!(times, &[time(4, i64::MIN), time(5, 5)]);
}

#[tokio::test]
async fn output_that_does_not_join_is_refused() {
    for lies in [
        vec![output(1, 0, b"gap")],
        vec![output(0, 0, b"abc"), output(2, 0, b"again")],
        vec![output(0, 0, b"abc"), output(4, 2, b"miscounted")],
        vec![output(u64::MAX, u64::MAX, b"overflow")],
        vec![ReplyKind::Output(Output {
            channel: 7,
            ..Output::default()
        })],
    ] {
        let shown = format!("{lies:?}");
        let got = follow(&saying(lies)).await;
        assert!(
            matches!(got, Err(GuestError::Unexpected(_))),
            "{shown}: {got:?}"
        );
    }
    let honest = [
        output(0, 0, b"abc"),
        output(5, 2, b"f"),
        ReplyKind::Exit(Exit::default()),
    ];
    assert_eq!(follow(&saying(honest)).await.unwrap().len(), 3);
}

#[tokio::test]
async fn an_answer_to_another_question_is_refused() {
    let guest = saying([ReplyKind::Quiesce(Quiesced { taken: 0 })]);
    assert!(matches!(guest.info().await, Err(GuestError::Quiesced)));
    let guest = saying([ReplyKind::Done(Done::default())]);
    assert!(matches!(guest.info().await, Err(GuestError::Unexpected(_))));
    assert!(matches!(
        guest.ports().await,
        Err(GuestError::Unexpected(_))
    ));
    let read = guest.read_file(ReadFile::default()).await;
    assert!(matches!(read, Err(GuestError::Unexpected(_))));
    let exec = guest.exec(Start::default()).await;
    assert!(matches!(exec, Err(GuestError::Unexpected(_))));
    let not_ready = saying([ReplyKind::Change(Change {
        kind: ChangeKind::Written as i32,
        ..Change::default()
    })]);
    let watch = not_ready.watch(Watch::default()).await;
    assert!(matches!(watch, Err(GuestError::Unexpected(_))));
}

#[tokio::test]
async fn silence_and_hanging_up_are_errors_and_not_waited_for() {
    let silent = guest(Bytes::new(), false).within(Duration::from_millis(50));
    assert!(matches!(silent.info().await, Err(GuestError::TimedOut(_))));
    assert!(matches!(
        silent.processes().await,
        Err(GuestError::TimedOut(_))
    ));
    let start = silent.start(Start::default()).await;
    assert!(matches!(start, Err(GuestError::TimedOut(_))));
    let gone = guest(Bytes::new(), true);
    assert!(matches!(
        gone.info().await,
        Err(GuestError::Frame(FrameError::Closed))
    ));
}

#[tokio::test]
async fn a_giant_frame_is_refused_by_its_header() {
    let header = Bytes::copy_from_slice(&(FRAME_MAX as u32 + 1).to_le_bytes());
    let got = guest(header, false).info().await;
    assert!(matches!(
        got,
        Err(GuestError::Frame(FrameError::TooLarge(_)))
    ));
}

#[tokio::test]
async fn texts_are_cut_and_codes_tamed() {
    let long = "é".repeat(100_000);
    let info = saying([ReplyKind::Info(Info {
        hostname: long.clone(),
        ..Info::default()
    })]);
    assert!(info.info().await.unwrap().hostname.len() <= TEXT_MAX);
    let process = saying([ReplyKind::Process(Process {
        argv: vec![long.clone(), long.clone(), "x".to_owned()],
        ..Process::default()
    })]);
    let argv = process.process("x").await.unwrap().argv;
    assert!(argv.iter().map(String::len).sum::<usize>() <= TEXT_MAX);
    let error = saying([ReplyKind::Error(Error {
        code: 4711,
        message: long,
    })]);
    match error.info().await {
        Err(GuestError::Refused { message, .. }) => assert!(message.len() <= TEXT_MAX),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_endless_listing_is_cut() {
    let page = Listing {
        entries: vec![FileInfo::default(); 1000],
        truncated: false,
    };
    let guest = saying((0..300).map(|_| ReplyKind::Listing(page.clone())));
    let listing = guest.list(ListDir::default()).await.unwrap();
    assert!(listing.truncated);
    assert_eq!(listing.entries.len(), cove_protocol::client::LISTING_MAX);
    let few = ListDir {
        limit: 10,
        ..ListDir::default()
    };
    let listing = guest.list(few).await.unwrap();
    assert_eq!((listing.entries.len(), listing.truncated), (10, true));
}
