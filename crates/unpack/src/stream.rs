//! The archive's bytes after decompression: gzip, zstd or plain, distinguished by their first bytes.
//!
//! Owns the total limit (a bomb ends here), the hash of the uncompressed bytes, and the members:
//! a gzip file or a zstd file may be several, one after the other.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use sha2::{Digest, Sha256};

use crate::report::{Failure, Limit};

const INPUT_BUFFER_BYTES: usize = 256 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Magic numbers of zstd frames that hold no data: 0x184d2a50 to 0x184d2a5f, little-endian.
const ZSTD_SKIP_MAGIC: [u8; 3] = [0x2a, 0x4d, 0x18];

/// How other packings begin, so that they are distinguished from a damaged archive. No tar does: a file's
/// name is in that place.
const OTHER_PACKINGS: [([u8; 4], &str); 3] = [
    ([0xfd, b'7', b'z', b'X'], "xz"),
    ([0x04, 0x22, 0x4d, 0x18], "lz4"),
    ([b'P', b'K', 0x03, 0x04], "zip"),
];

/// The input with the bytes put back that were read to recognise it.
type Source = Chain<Cursor<Vec<u8>>, BufReader<Box<dyn Read>>>;

enum State {
    /// Before the first member, or (`after` set) behind one of that kind.
    Between {
        input: BufReader<Box<dyn Read>>,
        after: Option<Packing>,
    },
    Plain(Source),
    Gzip(Box<GzDecoder<Source>>),
    Zstd(Box<StreamingDecoder<Source, FrameDecoder>>),
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstd,
}

pub struct Stream {
    state: State,
    hash: Option<Sha256>,
    bytes: u64,
    limit: u64,
    trailing: bool,
}

impl Stream {
    pub fn new(input: Box<dyn Read>, limit: u64, hash: bool) -> Self {
        let input = BufReader::with_capacity(INPUT_BUFFER_BYTES, input);
        Self {
            state: State::Between { input, after: None },
            hash: hash.then(Sha256::new),
            bytes: 0,
            limit,
            trailing: false,
        }
    }

    /// Uncompressed bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads some bytes; 0 means the end of the last member.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let count = match &mut self.state {
                State::Between { .. } => {
                    self.enter_member()?;
                    continue;
                }
                State::Ended => return Ok(0),
                State::Plain(source) => source.read(buffer).map_err(corrupt)?,
                State::Gzip(decoder) => decoder.read(buffer).map_err(corrupt)?,
                State::Zstd(decoder) => decoder.read(buffer).map_err(corrupt)?,
            };
            if count == 0 {
                self.leave_member()?;
                continue;
            }
            self.bytes += count as u64;
            if self.bytes > self.limit {
                return Err(Failure::limit(Limit::TotalBytes, self.limit));
            }
            if let Some(hash) = &mut self.hash {
                hash.update(&buffer[..count]);
            }
            return Ok(count);
        }
    }

    /// Fills `buffer`. `Ok(false)` when the stream had ended before its first byte.
    pub fn read_full(&mut self, buffer: &mut [u8]) -> Result<bool, Failure> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(Failure::Truncated),
                count => filled += count,
            }
        }
        Ok(true)
    }

    /// Reads to the end, so that hash and size cover everything. Returns whether anything but
    /// zero padding was left, inside the members or behind the last one.
    pub fn drain(&mut self, scratch: &mut [u8]) -> Result<bool, Failure> {
        let mut leftover = false;
        loop {
            match self.read(scratch)? {
                0 => return Ok(leftover || self.trailing),
                count => leftover |= scratch[..count].iter().any(|byte| *byte != 0),
            }
        }
    }

    /// `sha256:…` of the uncompressed bytes read so far.
    pub fn digest(&self) -> Option<[u8; 32]> {
        Some(self.hash.clone()?.finalize().into())
    }

    fn enter_member(&mut self) -> Result<(), Failure> {
        let State::Between { mut input, after } = std::mem::replace(&mut self.state, State::Ended)
        else {
            unreachable!("only called between members")
        };
        let mut magic = [0; 4];
        let mut known = 0;
        while known < magic.len() {
            match input.read(&mut magic[known..]).map_err(corrupt)? {
                0 => break,
                count => known += count,
            }
        }
        let magic = &magic[..known];
        if known == 0 && after.is_some() {
            return Ok(());
        }
        let gzip = magic.starts_with(&GZIP_MAGIC) && after != Some(Packing::Zstd);
        let zstd = after != Some(Packing::Gzip);
        if zstd && known == 4 && magic[0] & 0xf0 == 0x50 && magic[1..] == ZSTD_SKIP_MAGIC {
            skip_frame(&mut input)?;
            let after = Some(Packing::Zstd);
            self.state = State::Between { input, after };
        } else if gzip {
            let source = Cursor::new(magic.to_vec()).chain(input);
            self.state = State::Gzip(Box::new(GzDecoder::new(source)));
        } else if zstd && magic == ZSTD_MAGIC {
            let source = Cursor::new(magic.to_vec()).chain(input);
            let decoder = StreamingDecoder::new(source).map_err(|error| Failure::Corrupt {
                reason: error.to_string(),
            })?;
            self.state = State::Zstd(Box::new(decoder));
        } else if after.is_none() {
            let other = OTHER_PACKINGS.iter().find(|(begin, _)| magic == begin);
            if let Some((_, packing)) = other {
                return Err(Failure::UnknownPacking {
                    packing: (*packing).to_owned(),
                });
            }
            self.state = State::Plain(Cursor::new(magic.to_vec()).chain(input));
        } else {
            self.trailing = behind_last_member(magic, &mut input)?;
        }
        Ok(())
    }

    fn leave_member(&mut self) -> Result<(), Failure> {
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Gzip(decoder) => {
                let (_, input) = decoder.into_inner().into_inner();
                State::Between {
                    input,
                    after: Some(Packing::Gzip),
                }
            }
            State::Zstd(decoder) => {
                let (source, decoder) = decoder.into_parts();
                let stored = decoder.get_checksum_from_data();
                if stored.is_some() && stored != decoder.get_calculated_checksum() {
                    return Err(Failure::Corrupt {
                        reason: "zstd checksum mismatch".to_owned(),
                    });
                }
                let (_, input) = source.into_inner();
                State::Between {
                    input,
                    after: Some(Packing::Zstd),
                }
            }
            State::Plain(_) | State::Between { .. } | State::Ended => State::Ended,
        };
        Ok(())
    }
}

fn skip_frame(input: &mut BufReader<Box<dyn Read>>) -> Result<(), Failure> {
    let mut length = [0; 4];
    input.read_exact(&mut length).map_err(corrupt)?;
    let length = u64::from(u32::from_le_bytes(length));
    let skipped = io::copy(&mut input.take(length), &mut io::sink()).map_err(corrupt)?;
    if skipped < length {
        Err(Failure::Truncated)
    } else {
        Ok(())
    }
}

/// Whether anything but zeros follows the last member. The input is read to its end, so that its
/// writer does not see a broken pipe.
fn behind_last_member(magic: &[u8], input: &mut BufReader<Box<dyn Read>>) -> Result<bool, Failure> {
    let mut garbage = magic.iter().any(|byte| *byte != 0);
    loop {
        let chunk = input.fill_buf().map_err(corrupt)?;
        if chunk.is_empty() {
            return Ok(garbage);
        }
        garbage |= chunk.iter().any(|byte| *byte != 0);
        let length = chunk.len();
        input.consume(length);
    }
}

fn corrupt(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Failure::Truncated;
    }
    Failure::Corrupt {
        reason: error.to_string(),
    }
}
