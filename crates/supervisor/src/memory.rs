//! The memory of a machine: a file without a name that QEMU maps. It is charged to the machine's own group, and is gone
//! with the machine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, ftruncate, memfd_create, seek};
use rustix::io::Errno;

/// What is copied at once.
const PIECE: usize = 1 << 20;
/// Pieces of nothing but zeros are left out, in this unit.
const PAGE: usize = 4096;

/// QEMU cannot change its length.
pub fn make(bytes: u64) -> io::Result<OwnedFd> {
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, bytes)?;
    fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok(memory)
}

/// Copies everything but holes and zeros into a file that has nothing but holes; how many bytes that were. Others get
/// their turn in between.
pub async fn copy(from: impl AsFd, to: impl AsFd, bytes: u64) -> io::Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let mut piece = vec![0; PIECE];
    let (mut at, mut copied) = (0, 0);
    while let Some((begins, ends)) = data(from, at)? {
        if ends > bytes {
            return Err(io::Error::other("the memory is larger than the machine's"));
        }
        at = begins;
        while at < ends {
            let wanted = usize::try_from(ends - at).unwrap_or(PIECE).min(PIECE);
            let got = rustix::io::pread(from, &mut piece[..wanted], at)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            copied += put(to, &piece[..got], at)?;
            at += got as u64;
            tokio::task::yield_now().await;
        }
    }
    Ok(copied)
}

/// Where the next bytes are that are no hole.
fn data(file: BorrowedFd<'_>, at: u64) -> io::Result<Option<(u64, u64)>> {
    let begins = match seek(file, SeekFrom::Data(at)) {
        Ok(begins) => begins,
        // Nothing but a hole is left.
        Err(Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some((begins, seek(file, SeekFrom::Hole(begins))?)))
}

fn put(to: BorrowedFd<'_>, bytes: &[u8], at: u64) -> io::Result<u64> {
    let (mut put, mut run) = (0, 0..0);
    for page in bytes.chunks(PAGE) {
        let ends = run.end + page.len();
        if page.iter().all(|byte| *byte == 0) {
            put += write(to, &bytes[run.clone()], at + run.start as u64)?;
            run.start = ends;
        }
        run.end = ends;
    }
    Ok(put + write(to, &bytes[run.clone()], at + run.start as u64)?)
}

fn write(to: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> io::Result<u64> {
    let all = bytes.len() as u64;
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(to, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(work)
    }

    #[test]
    fn only_what_is_no_zero_is_copied_and_comes_back_alike() {
        const BYTES: u64 = 16 << 20;
        let memory = File::from(make(BYTES).expect("made"));
        for (at, byte) in [(0, 1), (5 << 20, 0), (7_000_000, 3), (BYTES - 4096, 4)] {
            memory.write_all_at(&[byte; 4096], at).expect("written");
        }
        let saved = File::from(make(BYTES).expect("made"));
        let copied = run(copy(&memory, &saved, BYTES)).expect("copied");
        // One of them lies across two pages.
        assert_eq!(copied, 4 * 4096);
        assert!(saved.metadata().expect("there").blocks() * 512 <= copied);
        let (mut was, mut is) = (vec![0; BYTES as usize], vec![0; BYTES as usize]);
        memory.read_exact_at(&mut was, 0).expect("read");
        saved.read_exact_at(&mut is, 0).expect("read");
        assert!(was == is);
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_and_a_sealed_one_keeps_its_length() {
        let long = File::from(make(2 << 20).expect("made"));
        long.write_all_at(b"x", (2 << 20) - 1).expect("written");
        let short = make(1 << 20).expect("made");
        run(copy(&long, &short, 1 << 20)).expect_err("too long");
        let short = File::from(short);
        short.set_len(0).expect_err("sealed");
        short.set_len(4 << 20).expect_err("sealed");
    }
}
