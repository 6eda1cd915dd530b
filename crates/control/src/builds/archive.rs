//! Entries of a tar archive that nobody vouches for, one after the other. Names that are longer than a header has room
//! for come in entries of their own; the usual reader takes those into memory whatever size they claim to have.

use std::io::{self, Read};

use tar::EntryType;
use tokio_util::sync::CancellationToken;

/// Bytes of one entry that only describes the next one.
const DESCRIPTION_MAX: u64 = 64 * 1024;

/// One entry, with its whole name.
pub struct Named<'a, R: Read> {
    pub path: String,
    pub link: Option<String>,
    pub entry: tar::Entry<'a, R>,
}

pub fn odd(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// Ends with an error once the build is over, and after `left` bytes. Threads read through it, so that none of them
/// goes on behind a build: an archive of a few bytes can take hours to read.
pub struct Stoppable<R> {
    inner: R,
    stop: CancellationToken,
    left: u64,
}

impl<R> Stoppable<R> {
    pub fn new(inner: R, stop: &CancellationToken, most: u64) -> Self {
        Self {
            inner,
            stop: stop.clone(),
            left: most,
        }
    }
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| odd("it is larger than the disk of the build's sandbox"))?;
        Ok(count)
    }
}

fn described(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    if entry.size() > DESCRIPTION_MAX {
        return Err(odd("a name in it is too long"));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| odd("a name in it is not UTF-8"))
}

/// What a pax header says of the next entry.
#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

fn pax(bytes: &[u8]) -> io::Result<Pax> {
    let broken = || odd("it has an invalid pax header");
    let mut found = Pax::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let blank = rest
            .iter()
            .position(|byte| *byte == b' ')
            .ok_or_else(broken)?;
        let length = std::str::from_utf8(&rest[..blank]).map_err(|_| broken())?;
        let length: usize = length.parse().map_err(|_| broken())?;
        let record = rest.get(blank + 1..length).ok_or_else(broken)?;
        let record = record.strip_suffix(b"\n").ok_or_else(broken)?;
        rest = &rest[length..];
        let equals = record
            .iter()
            .position(|byte| *byte == b'=')
            .ok_or_else(broken)?;
        let (name, value) = (&record[..equals], record[equals + 1..].to_vec());
        match name {
            b"path" => found.path = Some(value),
            b"linkpath" => found.link = Some(value),
            b"size" => {
                let size = std::str::from_utf8(&value)
                    .ok()
                    .and_then(|size| size.parse().ok());
                found.size = Some(size.ok_or_else(broken)?);
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Hands on each entry that stands for itself.
pub fn each<R: Read>(
    archive: &mut tar::Archive<R>,
    mut take: impl FnMut(Named<'_, R>) -> io::Result<()>,
) -> io::Result<()> {
    let mut long_path = None;
    let mut long_link = None;
    let mut described_by = Pax::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => long_path = Some(described(&mut entry)?),
            EntryType::GNULongLink => long_link = Some(described(&mut entry)?),
            EntryType::XHeader => described_by = pax(&described(&mut entry)?)?,
            EntryType::XGlobalHeader => {}
            _ => {
                let pax = std::mem::take(&mut described_by);
                if pax.size.is_some_and(|size| size != entry.size()) {
                    return Err(odd("it gives two sizes for one file"));
                }
                let header = entry.header();
                let own = || header.path_bytes().into_owned();
                let path = text(pax.path.or(long_path.take()).unwrap_or_else(own))?;
                let own = || header.link_name_bytes().map(std::borrow::Cow::into_owned);
                let link = pax.link.or(long_link.take()).or_else(own);
                let link = link.map(text).transpose()?;
                take(Named { path, link, entry })?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<(String, Option<String>)>> {
        let mut found = Vec::new();
        each(&mut tar::Archive::new(bytes), |named| {
            found.push((named.path, named.link));
            Ok(())
        })?;
        Ok(found)
    }

    fn entry(kind: EntryType, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_path("x").unwrap();
        header.set_cksum();
        header
    }

    #[test]
    fn long_names_are_read_and_endless_ones_refused() {
        let long = "d/".repeat(100) + "f";
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = entry(EntryType::Regular, 0);
        builder
            .append_data(&mut header, &long, io::empty())
            .unwrap();
        let mut header = entry(EntryType::Symlink, 0);
        builder.append_link(&mut header, "l", &long).unwrap();
        let bytes = builder.into_inner().unwrap();
        let found = read(&bytes).unwrap();
        assert_eq!(found, [(long.clone(), None), ("l".into(), Some(long))]);
        for kind in [EntryType::GNULongName, EntryType::XHeader] {
            let claims = entry(kind, 1 << 40);
            assert!(read(claims.as_bytes()).is_err());
        }
    }

    #[test]
    fn a_huge_entry_is_skipped_only_until_the_build_is_over() {
        // Nothing but one header and endless zeros.
        let huge = || entry(EntryType::XGlobalHeader, 1 << 60);
        let endless =
            |header: &tar::Header| io::Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(0));
        let stop = CancellationToken::new();
        let source = Stoppable::new(endless(&huge()), &stop, u64::MAX);
        let reader = std::thread::spawn(move || each(&mut tar::Archive::new(source), |_| Ok(())));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!reader.is_finished());
        stop.cancel();
        let read = reader.join().unwrap();
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::BrokenPipe);

        let most = 1 << 20;
        let source = Stoppable::new(endless(&huge()), &CancellationToken::new(), most);
        let read = each(&mut tar::Archive::new(source), |_| Ok(()));
        assert!(read.unwrap_err().to_string().contains("is larger than"));
    }

    #[test]
    fn pax_headers_are_read_as_far_as_they_matter() {
        let with = |record: &str| {
            let mut builder = tar::Builder::new(Vec::new());
            let header = entry(EntryType::XHeader, record.len() as u64);
            builder.append(&header, record.as_bytes()).unwrap();
            builder
                .append(&entry(EntryType::Regular, 0), io::empty())
                .unwrap();
            read(&builder.into_inner().unwrap())
        };
        assert_eq!(with("16 path=ü/name\n").unwrap()[0].0, "ü/name");
        assert_eq!(with("15 mtime=1.234\n").unwrap()[0].0, "x");
        for bad in ["9 size=7\n", "99 path=a\n", "nonsense", "5 a\n", "0 a=b\n"] {
            assert!(with(bad).is_err(), "{bad:?}");
        }
    }
}
