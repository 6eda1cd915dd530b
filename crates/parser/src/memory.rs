//! The files of a memory image as packed records: `u16 length, name, u64 length, bytes` each, in gzip.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::BorrowedFd;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rustix::fs::{Mode, OFlags};

use crate::order::Failed;
use crate::{MEMORY_FILES_MAX, is_memory_name, tree};

const BUFFER_BYTES: usize = 256 << 10;

pub fn pack(root: BorrowedFd<'_>, output: impl Write) -> Result<(), Failed> {
    let output = BufWriter::with_capacity(BUFFER_BYTES, output);
    let mut encoder = GzEncoder::new(output, Compression::fast());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    for name in tree::names(&directory)? {
        if !is_memory_name(&name) {
            let shown = name.escape_ascii();
            return Err(Failed::damaged(format!("there is a file named {shown}")));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(
            &directory,
            &name[..],
            flags,
            Mode::empty(),
        )?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(Failed::damaged("it has an entry that is not a file"));
        }
        let length = metadata.len();
        encoder.write_all(&(name.len() as u16).to_le_bytes())?;
        encoder.write_all(&name)?;
        encoder.write_all(&length.to_le_bytes())?;
        if copy(&mut file.take(length), &mut encoder)? != length {
            return Err(Failed::damaged("a file ends before its size"));
        }
    }
    encoder.finish()?.flush()?;
    Ok(())
}

/// Unpacks memory that was signed by a trusted key; still under limits, since trust is not proof.
pub fn unpack(packed: File, root: BorrowedFd<'_>, most: u64) -> Result<(), Failed> {
    let mut input = GzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, packed));
    let mut total = 0_u64;
    for _ in 0..=MEMORY_FILES_MAX {
        let mut short = [0; 2];
        if input.read(&mut short[..1])? == 0 {
            return Ok(());
        }
        input.read_exact(&mut short[1..])?;
        let mut name = vec![0; usize::from(u16::from_le_bytes(short))];
        input.read_exact(&mut name)?;
        if !is_memory_name(&name) {
            return Err(Failed::damaged("it has an invalid name"));
        }
        let mut length = [0; 8];
        input.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        total = total.saturating_add(length);
        if total > most {
            return Err(Failed::too_large("it holds more memory than it declares"));
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(root, &name[..], flags, Mode::RUSR | Mode::WUSR);
        let mut file = match opened {
            Err(rustix::io::Errno::EXIST) => {
                return Err(Failed::damaged("a name in it comes twice"));
            }
            other => File::from(other?),
        };
        if copy(&mut (&mut input).take(length), &mut file)? != length {
            return Err(Failed::damaged("a file in it is truncated"));
        }
    }
    Err(Failed::too_large("it holds too many files"))
}

/// Not the standard library's, which tries system calls that are not on the list.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0;
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(total),
            count => {
                to.write_all(&buffer[..count])?;
                total += count as u64;
            }
        }
    }
}
