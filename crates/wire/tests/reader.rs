//! Every way in which frames may arrive, for every layout and every reader.
#![allow(clippy::unwrap_used)]

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use cove_wire::frame::{GATEWAY_CALL, GATEWAY_REPLY, GUEST, RUNNER};
use cove_wire::stream::{self, FrameReader};
use cove_wire::{FrameError, Layout, blocking};
use proptest::prelude::*;
use tokio::io::{AsyncRead, ReadBuf};

const LAYOUTS: [Layout; 4] = [GUEST, RUNNER, GATEWAY_CALL, GATEWAY_REPLY];
const HAS_KIND: Layout = RUNNER;

/// A stream that gives its bytes in these pieces and then ends.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    lengths: Vec<usize>,
    piece: usize,
}

impl Pieces {
    fn new(bytes: &[u8], lengths: &[usize]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            at: 0,
            lengths: lengths.to_vec(),
            piece: 0,
        }
    }

    fn next(&mut self, room: usize) -> &[u8] {
        let length = match self.lengths.is_empty() {
            true => usize::MAX,
            false => self.lengths[self.piece % self.lengths.len()].max(1),
        };
        self.piece += 1;
        let from = self.at;
        self.at = from + length.min(room).min(self.bytes.len() - from);
        &self.bytes[from..self.at]
    }
}

impl Read for Pieces {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let piece = self.next(room.len());
        room[..piece.len()].copy_from_slice(piece);
        Ok(piece.len())
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let piece = self.next(room.remaining()).to_vec();
        room.put_slice(&piece);
        Poll::Ready(Ok(()))
    }
}

type Frames = Vec<(u8, Vec<u8>)>;

/// All frames and how it ended, by each of the three readers.
fn all(layout: Layout, bytes: &[u8], lengths: &[usize]) -> [(Frames, FrameError); 3] {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let buffered = runtime.block_on(async {
        let (mut stream, mut reader) = (Pieces::new(bytes, lengths), FrameReader::new(layout));
        let mut frames = Vec::new();
        loop {
            match reader.next(&mut stream).await {
                Ok((kind, body)) => frames.push((kind, body.to_vec())),
                Err(error) => break (frames, error),
            }
        }
    });
    let exact = runtime.block_on(async {
        let mut stream = Pieces::new(bytes, lengths);
        let mut frames = Vec::new();
        loop {
            match stream::read(&mut stream, layout).await {
                Ok(frame) => frames.push(frame),
                Err(error) => break (frames, error),
            }
        }
    });
    let mut stream = Pieces::new(bytes, lengths);
    let mut frames = Vec::new();
    let blocking = loop {
        match blocking::read(&mut stream, layout) {
            Ok(frame) => frames.push(frame),
            Err(error) => break (frames, error),
        }
    };
    [buffered, exact, blocking]
}

fn encoded(layout: Layout, frames: &Frames) -> Vec<u8> {
    let whole = |(kind, body): &(u8, Vec<u8>)| blocking::whole(layout, *kind, body).unwrap();
    frames.iter().flat_map(whole).collect()
}

fn layout() -> impl Strategy<Value = Layout> {
    prop::sample::select(LAYOUTS.to_vec())
}

fn frames() -> impl Strategy<Value = Frames> {
    prop::collection::vec(
        (any::<u8>(), prop::collection::vec(any::<u8>(), 0..200)),
        0..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_arrive_however_they_are_split(
        layout in layout(), mut frames in frames(), lengths in prop::collection::vec(1_usize..40, 0..8),
    ) {
        if layout != HAS_KIND {
            frames.iter_mut().for_each(|(kind, _)| *kind = 0);
        }
        let bytes = encoded(layout, &frames);
        for (read, end) in all(layout, &bytes, &lengths) {
            prop_assert_eq!(&read, &frames);
            prop_assert!(matches!(end, FrameError::Closed), "{end:?}");
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_gives_the_frames_before_it(
        layout in layout(), body in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let frames: Frames = vec![(0, body.clone()), (0, body)];
        let bytes = encoded(layout, &frames);
        for end in 0..bytes.len() {
            for (read, error) in all(layout, &bytes[..end], &[]) {
                prop_assert_eq!(read.len(), end * 2 / bytes.len());
                prop_assert!(matches!(error, FrameError::Closed), "{error:?}");
            }
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_wherever_it_is_split(
        layout in layout(), over in 1_usize..1000, split in 1_usize..6,
    ) {
        let mut bytes = match layout == GUEST || layout == RUNNER {
            true => u32::try_from(layout.max() + over).unwrap().to_le_bytes().to_vec(),
            false => u32::try_from(layout.max() + over).unwrap().to_be_bytes().to_vec(),
        };
        bytes.extend([0; 16]);
        for (read, error) in all(layout, &bytes, &[split]) {
            prop_assert!(read.is_empty());
            let FrameError::TooLarge(oversize) = error else {
                return Err(TestCaseError::fail(format!("{error:?}")));
            };
            prop_assert_eq!(oversize.length, layout.max() + over);
        }
    }

    #[test]
    fn any_bytes_get_the_same_answer_of_every_reader(
        layout in layout(), bytes in prop::collection::vec(any::<u8>(), 0..300),
        lengths in prop::collection::vec(1_usize..40, 0..8),
    ) {
        let [first, second, third] = all(layout, &bytes, &lengths);
        prop_assert_eq!(&first.0, &second.0);
        prop_assert_eq!(&second.0, &third.0);
        for (_, error) in [first, second, third] {
            prop_assert!(matches!(error, FrameError::Closed | FrameError::TooLarge(_)));
        }
    }
}
