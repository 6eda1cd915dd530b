//! Headers of a tar stream in the PAX format: what a plain header cannot hold goes into records before it.

use std::io::{self, Write};

use rustix::fs::Stat;
use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// What the fields of a plain header hold.
const NAME_MAX: usize = 100;
const SIZE_MAX: u64 = 0o77_777_777_777;
const ID_MAX: u32 = 0o7_777_777;

pub enum LinkTarget {
    None,
    Hard(Vec<u8>),
    Symbolic(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub length: u64,
}

/// Name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

pub struct Entry {
    pub path: Vec<u8>,
    pub entry_type: EntryType,
    pub mode: u32,
    pub ids: (u32, u32),
    pub modified: (i64, u32),
    pub link: LinkTarget,
    pub size: u64,
    /// Where the data of a file with holes lies.
    pub segments: Option<Vec<Segment>>,
    pub device: Option<u64>,
    pub xattrs: Vec<Xattr>,
}

impl Entry {
    pub fn new(path: Vec<u8>, entry_type: EntryType, stat: &Stat) -> Self {
        Self {
            path,
            entry_type,
            mode: stat.st_mode & 0o7777,
            ids: (stat.st_uid, stat.st_gid),
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            link: LinkTarget::None,
            size: 0,
            segments: None,
            device: None,
            xattrs: Vec::new(),
        }
    }
}

/// Writes what comes before the data of an entry.
pub fn write(entry: &Entry, output: &mut impl Write) -> io::Result<()> {
    let map = entry.segments.as_deref().map(sparse_map);
    let stored = match (&entry.segments, &map) {
        (Some(segments), Some(map)) => {
            let data: u64 = segments.iter().map(|segment| segment.length).sum();
            data + map.len() as u64
        }
        _ => entry.size,
    };
    let records = records(entry, stored);
    if !records.is_empty() {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_size(records.len() as u64);
        header.set_mode(0o644);
        put(
            &mut header.as_mut_bytes()[..NAME_MAX],
            b"./PaxHeaders/entry",
        );
        header.set_cksum();
        output.write_all(header.as_bytes())?;
        output.write_all(&records)?;
        let padding = records.len().next_multiple_of(BLOCK) - records.len();
        output.write_all(&[0; BLOCK][..padding])?;
    }
    output.write_all(plain(entry, stored)?.as_bytes())?;
    output.write_all(map.as_deref().unwrap_or_default())
}

fn plain(entry: &Entry, stored: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_entry_type(entry.entry_type);
    header.set_mode(entry.mode);
    header.set_uid(entry.ids.0.min(ID_MAX).into());
    header.set_gid(entry.ids.1.min(ID_MAX).into());
    header.set_size(stored.min(SIZE_MAX));
    header.set_mtime(u64::try_from(entry.modified.0).unwrap_or(0).min(SIZE_MAX));
    if let Some(device) = entry.device {
        header.set_device_major(rustix::fs::major(device))?;
        header.set_device_minor(rustix::fs::minor(device))?;
    }
    let fields = header.as_ustar_mut().ok_or(io::ErrorKind::InvalidData)?;
    put(&mut fields.name, &entry.path);
    match &entry.link {
        LinkTarget::None => {}
        LinkTarget::Hard(target) | LinkTarget::Symbolic(target) => {
            put(&mut fields.linkname, target)
        }
    }
    header.set_cksum();
    Ok(header)
}

/// As much of a text as fits; all of it is in a record if that is not everything.
fn put(field: &mut [u8], text: &[u8]) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text[..length]);
}

fn records(entry: &Entry, stored: u64) -> Vec<u8> {
    let mut records = Vec::new();
    let mut add = |key: &[u8], value: &[u8]| record(key, value, &mut records);
    match &entry.segments {
        None if entry.path.len() > NAME_MAX => add(b"path", &entry.path),
        None => {}
        Some(_) => {
            add(b"GNU.sparse.major", b"1");
            add(b"GNU.sparse.minor", b"0");
            add(b"GNU.sparse.name", &entry.path);
            add(b"GNU.sparse.realsize", entry.size.to_string().as_bytes());
        }
    }
    match &entry.link {
        LinkTarget::Hard(target) | LinkTarget::Symbolic(target) if target.len() > NAME_MAX => {
            add(b"linkpath", target);
        }
        _ => {}
    }
    if stored > SIZE_MAX {
        add(b"size", stored.to_string().as_bytes());
    }
    let (uid, gid) = entry.ids;
    for (key, id) in [(&b"uid"[..], uid), (b"gid", gid)] {
        if id > ID_MAX {
            add(key, id.to_string().as_bytes());
        }
    }
    let (seconds, nanoseconds) = entry.modified;
    if nanoseconds != 0 || seconds < 0 || seconds.unsigned_abs() > SIZE_MAX {
        add(b"mtime", time(seconds, nanoseconds).as_bytes());
    }
    for (name, value) in &entry.xattrs {
        let mut key = b"SCHILY.xattr.".to_vec();
        // A key ends at the first equals sign; GNU tar writes those of names like this.
        for byte in name {
            match byte {
                b'%' => key.extend_from_slice(b"%25"),
                b'=' => key.extend_from_slice(b"%3D"),
                byte => key.push(*byte),
            }
        }
        add(&key, value);
    }
    records
}

fn time(seconds: i64, nanoseconds: u32) -> String {
    if seconds >= 0 || nanoseconds == 0 {
        return format!("{seconds}.{nanoseconds:09}");
    }
    // Before 1970 the fraction counts back from the next second.
    format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds)
}

/// `length key=value\n`, where the length counts itself.
fn record(key: &[u8], value: &[u8], records: &mut Vec<u8>) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(length.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// The map in front of a sparse file's data, in decimal lines, padded to a block.
fn sparse_map(segments: &[Segment]) -> Vec<u8> {
    let mut map = format!("{}\n", segments.len()).into_bytes();
    for segment in segments {
        map.extend_from_slice(format!("{}\n{}\n", segment.offset, segment.length).as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for length in [0, 1, 80, 90, 92, 93, 94, 95, 900, 990, 9_990, 99_990] {
            let mut records = Vec::new();
            record(b"key", &vec![b'x'; length], &mut records);
            let text = String::from_utf8(records.clone()).expect("plain text");
            let (told, _) = text.split_once(' ').expect("a length comes first");
            assert_eq!(told.parse(), Ok(records.len()), "{length}");
        }
    }

    #[test]
    fn times_before_1970_count_back() {
        assert_eq!(time(5, 7), "5.000000007");
        assert_eq!(time(-5, 0), "-5.000000000");
        assert_eq!(time(-1, 250_000_000), "-0.750000000");
        assert_eq!(time(-2, 250_000_000), "-1.750000000");
    }
}
