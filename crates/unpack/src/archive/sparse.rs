//! Maps of sparse files: where in the file the stored bytes belong.

use super::header::unsigned;
use super::{BLOCK, pax};
use crate::limits::UnpackLimits;
use crate::report::{Failure, Limit};
use crate::stream::Stream;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub length: u64,
}

/// The old GNU format: four segments in the header, more in blocks behind it.
pub(super) fn old_gnu(
    header: &[u8; BLOCK],
    stream: &mut Stream,
    limits: &UnpackLimits,
) -> Result<(Vec<Segment>, u64), Failure> {
    let real_size = unsigned(&header[483..495], "real size")?;
    let mut map = Vec::new();
    take_segments(&header[386..482], &mut map, limits)?;
    let mut more = header[482] != 0;
    while more {
        let mut block = [0; BLOCK];
        if !stream.read_full(&mut block)? {
            return Err(Failure::Truncated);
        }
        take_segments(&block[..504], &mut map, limits)?;
        more = block[504] != 0;
    }
    Ok((map, real_size))
}

fn take_segments(
    fields: &[u8],
    map: &mut Vec<Segment>,
    limits: &UnpackLimits,
) -> Result<(), Failure> {
    for field in fields.chunks_exact(24) {
        if field[0] == 0 || field[12] == 0 {
            return Ok(());
        }
        if map.len() >= limits.sparse_segments {
            return Err(too_many(limits.sparse_segments));
        }
        map.push(Segment {
            offset: unsigned(&field[..12], "sparse offset")?,
            length: unsigned(&field[12..], "sparse length")?,
        });
    }
    Ok(())
}

/// Refuses maps that overlap, run backwards, leave the file, or do not match the stored bytes.
pub(super) fn check(map: &[Segment], size: u64, stored: u64) -> Result<(), Failure> {
    let bad = || Failure::BadHeader {
        reason: "the map of a sparse file is invalid".to_owned(),
    };
    let mut end = 0;
    let mut total = 0u64;
    for segment in map {
        if segment.offset < end {
            return Err(bad());
        }
        end = segment.offset.checked_add(segment.length).ok_or_else(bad)?;
        total += segment.length;
    }
    if end > size || total != stored {
        Err(bad())
    } else {
        Ok(())
    }
}

/// Collects the decimal lines of a PAX 1.0 map, block by block.
pub(super) struct MapReader {
    digits: Vec<u8>,
    expected: Option<u64>,
    offset: Option<u64>,
    map: Vec<Segment>,
    limit: usize,
}

impl MapReader {
    pub fn new(limit: usize) -> Self {
        Self {
            digits: Vec::new(),
            expected: None,
            offset: None,
            map: Vec::new(),
            limit,
        }
    }

    /// The whole map once its last line was in `block`.
    pub fn feed(&mut self, block: &[u8; BLOCK]) -> Result<Option<Vec<Segment>>, Failure> {
        for byte in block {
            if *byte != b'\n' {
                self.digits.push(*byte);
                // No 64-bit number is longer.
                if self.digits.len() > 20 {
                    return Err(Failure::BadHeader {
                        reason: "sparse map is unreadable".to_owned(),
                    });
                }
                continue;
            }
            let value = pax::number(&self.digits)?;
            self.digits.clear();
            match (self.expected, self.offset.take()) {
                (None, _) if value > self.limit as u64 => return Err(too_many(self.limit)),
                (None, _) => self.expected = Some(value),
                (Some(_), None) => self.offset = Some(value),
                (Some(_), Some(offset)) => self.map.push(Segment {
                    offset,
                    length: value,
                }),
            }
            if self.offset.is_none() && self.expected == Some(self.map.len() as u64) {
                return Ok(Some(std::mem::take(&mut self.map)));
            }
        }
        Ok(None)
    }
}

fn too_many(limit: usize) -> Failure {
    Failure::limit(Limit::SparseSegments, limit as u64)
}
