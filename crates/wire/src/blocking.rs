//! Frames over blocking streams.

use std::io::{Read, Write};

use crate::frame::{FrameError, HEADER_MAX, Head, Layout};

/// The next frame: its kind and its body.
pub fn read(stream: &mut impl Read, layout: Layout) -> Result<(u8, Vec<u8>), FrameError> {
    let mut bytes = [0; HEADER_MAX];
    let bytes = &mut bytes[..layout.header()];
    stream.read_exact(bytes)?;
    let Head { kind, length } = layout.announced(bytes)?.ok_or(FrameError::Closed)?;
    // Grows with what really arrives, so that an announced length alone costs nothing.
    let mut body = Vec::new();
    let read = stream.take(length as u64).read_to_end(&mut body)?;
    match read == length {
        true => Ok((kind, body)),
        false => Err(FrameError::Closed),
    }
}

/// A whole frame in one write.
pub fn write(
    stream: &mut impl Write,
    layout: Layout,
    kind: u8,
    body: &[u8],
) -> Result<(), FrameError> {
    Ok(stream.write_all(&whole(layout, kind, body)?)?)
}

/// Header and body as one piece.
pub fn whole(layout: Layout, kind: u8, body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let head = layout.head(kind, body.len())?;
    Ok([&head[..layout.header()], body].concat())
}
