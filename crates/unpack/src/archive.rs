//! Reads tar: ustar, PAX and GNU, one entry after the other, every length checked against the
//! limits before memory is taken for it. Entries go to [`crate::apply`].

mod header;
mod pax;
mod sparse;

use header::Header;
use pax::Extension;
pub use sparse::Segment;

use crate::limits::UnpackLimits;
use crate::report::{Failure, Limit, Warning, show};
use crate::stream::Stream;

pub(crate) const BLOCK: usize = 512;
const SCRATCH_BYTES: usize = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    /// Device, pipe or socket.
    Special,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

#[derive(Debug)]
pub struct Entry {
    pub kind: Kind,
    pub path: Vec<u8>,
    /// Target of a symbolic or hard link.
    pub link: Vec<u8>,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub mtime: Time,
    /// Length of the file once written, holes included.
    pub size: u64,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the stored bytes belong in the file, when it has holes.
    pub sparse: Option<Vec<Segment>>,
}

pub struct Archive {
    stream: Stream,
    limits: UnpackLimits,
    /// Stored bytes of the current entry that nobody has read yet, and the padding behind them.
    body_left: u64,
    padding: u64,
    global: Extension,
    scratch: Vec<u8>,
    entries: u64,
}

impl Archive {
    pub fn new(stream: Stream, limits: UnpackLimits) -> Self {
        Self {
            stream,
            limits,
            body_left: 0,
            padding: 0,
            global: Extension::default(),
            scratch: vec![0; SCRATCH_BYTES],
            entries: 0,
        }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The next entry, or `None` at the end marker or the end of the data. What was not read of
    /// the entry before is skipped.
    pub fn next(&mut self, warn: &mut dyn FnMut(Warning)) -> Result<Option<Entry>, Failure> {
        let mut local = Extension::default();
        // Whether an extension header was read whose entry is still to come.
        let mut announced = false;
        loop {
            self.skip_body()?;
            let mut block = [0; BLOCK];
            if !self.stream.read_full(&mut block)? {
                if announced {
                    return Err(Failure::Truncated);
                }
                if self.stream.bytes() == 0 {
                    return Err(Failure::BadHeader {
                        reason: "no data at all".to_owned(),
                    });
                }
                warn(Warning::NoEndOfArchive);
                return Ok(None);
            }
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            self.entries += 1;
            if self.entries > self.limits.entries {
                return Err(Failure::limit(Limit::Entries, self.limits.entries));
            }
            let header = Header::parse(&block)?;
            announced = matches!(header.type_flag, b'x' | b'X' | b'L' | b'K');
            match header.type_flag {
                b'x' | b'X' => {
                    let body = self.extension_body(header.size)?;
                    local.read_records(&body, &self.limits)?;
                }
                b'g' => {
                    let body = self.extension_body(header.size)?;
                    self.global.read_records(&body, &self.limits)?;
                }
                b'L' => local.path = Some(self.long_name(header.size)?),
                b'K' => local.link = Some(self.long_name(header.size)?),
                // A volume label names the tape, not a file.
                b'V' => self.start_body(header.size),
                _ => {
                    let merged = local.over(&self.global);
                    match self.build(header, &block, merged, warn)? {
                        Some(entry) => return Ok(Some(entry)),
                        None => local = Extension::default(),
                    }
                }
            }
        }
    }

    fn build(
        &mut self,
        header: Header,
        block: &[u8; BLOCK],
        extension: Extension,
        warn: &mut dyn FnMut(Warning),
    ) -> Result<Option<Entry>, Failure> {
        let stored = if header.has_body() {
            extension.size.unwrap_or(header.size)
        } else {
            0
        };
        let path = extension
            .sparse
            .name
            .clone()
            .or(extension.path)
            .unwrap_or(header.path);
        let link = extension.link.unwrap_or(header.link);
        for text in [&path, &link] {
            if text.len() > self.limits.path_bytes {
                return Err(Failure::limit(
                    Limit::PathBytes,
                    self.limits.path_bytes as u64,
                ));
            }
        }
        let kind = match header.type_flag {
            // Old archives mark a directory by its name only.
            b'0' | 0 if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' | b'6' => Kind::Special,
            b'5' => Kind::Directory,
            type_flag => {
                warn(Warning::UnknownEntrySkipped {
                    path: show(&path),
                    type_flag,
                });
                self.start_body(stored);
                return Ok(None);
            }
        };
        self.start_body(stored);
        let mut size = stored;
        let mut segments = None;
        if header.type_flag == b'S' {
            let (map, real) = sparse::old_gnu(block, &mut self.stream, &self.limits)?;
            size = real;
            segments = Some(map);
        } else if kind == Kind::File && extension.sparse.is_present() {
            let (map, real) = self.pax_sparse(&extension.sparse)?;
            size = real;
            segments = Some(map);
        }
        if size > self.limits.file_bytes {
            return Err(Failure::limit(Limit::FileBytes, self.limits.file_bytes));
        }
        if let Some(map) = &segments {
            sparse::check(map, size, self.body_left)?;
        }
        Ok(Some(Entry {
            kind,
            path,
            link,
            mode: header.mode,
            uid: extension.uid.unwrap_or(header.uid),
            gid: extension.gid.unwrap_or(header.gid),
            mtime: extension.mtime.unwrap_or(Time {
                seconds: header.mtime,
                nanoseconds: 0,
            }),
            size,
            xattrs: extension.xattrs,
            sparse: segments,
        }))
    }

    fn pax_sparse(&mut self, info: &pax::Sparse) -> Result<(Vec<Segment>, u64), Failure> {
        let bad = |reason: &str| Failure::BadHeader {
            reason: reason.to_owned(),
        };
        let real = info
            .real_size
            .ok_or_else(|| bad("sparse file without its size"))?;
        if info.major == Some(1) {
            return Ok((self.sparse_map_in_body()?, real));
        }
        Ok((info.map.clone(), real))
    }

    /// PAX sparse format 1.0 keeps the map in front of the data, as decimal lines padded to a block.
    fn sparse_map_in_body(&mut self) -> Result<Vec<Segment>, Failure> {
        let mut reader = sparse::MapReader::new(self.limits.sparse_segments);
        let mut block = [0; BLOCK];
        loop {
            if self.body_left < BLOCK as u64 {
                return Err(Failure::BadHeader {
                    reason: "the map of a sparse file is truncated".to_owned(),
                });
            }
            if !self.stream.read_full(&mut block)? {
                return Err(Failure::Truncated);
            }
            self.body_left -= BLOCK as u64;
            if let Some(map) = reader.feed(&block)? {
                return Ok(map);
            }
        }
    }

    /// Reads the current entry's stored bytes; 0 means they are all read.
    pub fn read_body(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let want = buffer
            .len()
            .min(usize::try_from(self.body_left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        match self.stream.read(&mut buffer[..want])? {
            0 => Err(Failure::Truncated),
            count => {
                self.body_left -= count as u64;
                Ok(count)
            }
        }
    }

    /// Reads what follows the end marker; true when it was more than padding.
    pub fn drain(&mut self) -> Result<bool, Failure> {
        self.stream.drain(&mut self.scratch)
    }

    fn start_body(&mut self, size: u64) {
        self.body_left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn skip_body(&mut self) -> Result<(), Failure> {
        self.body_left = self.body_left.saturating_add(self.padding);
        self.padding = 0;
        let mut scratch = std::mem::take(&mut self.scratch);
        while self.body_left > 0 {
            self.read_body(&mut scratch)?;
        }
        self.scratch = scratch;
        Ok(())
    }

    fn extension_body(&mut self, size: u64) -> Result<Vec<u8>, Failure> {
        let limit = self.limits.extension_bytes;
        if size > limit as u64 {
            return Err(Failure::limit(Limit::ExtensionBytes, limit as u64));
        }
        self.start_body(size);
        let mut body = vec![0; size as usize];
        let mut filled = 0;
        while filled < body.len() {
            filled += self.read_body(&mut body[filled..])?;
        }
        Ok(body)
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>, Failure> {
        // The stored name ends in a NUL that is no part of it.
        if size > self.limits.path_bytes as u64 + 1 {
            return Err(Failure::limit(
                Limit::PathBytes,
                self.limits.path_bytes as u64,
            ));
        }
        let mut name = self.extension_body(size)?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        Ok(name)
    }
}
