//! Packing and unpacking memory, and the small answers.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use cove_parser::{Edits, ParserError, Reason};

use super::{all, directory, parser, read};

const MOST: u64 = 1 << 20;

fn saved(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let content = content.to_vec();
    let feeding = std::thread::spawn(move || input.write_all(&content));
    let output = child.wait_with_output().unwrap();
    feeding.join().unwrap().unwrap();
    output.stdout
}

fn record(name: &[u8], length: u64, content: &[u8]) -> Vec<u8> {
    let mut record = (name.len() as u16).to_le_bytes().to_vec();
    record.extend_from_slice(name);
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(content);
    record
}

fn unpack_into(target: &Path, packed: &[u8]) -> Result<(), ParserError> {
    fs::create_dir(target).unwrap();
    fs::set_permissions(target, fs::Permissions::from_mode(0o700)).unwrap();
    parser().unpack_memory(saved(packed), target, MOST)
}

#[test]
fn memory_comes_back_as_it_was_and_belongs_to_root() {
    let dir = directory();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o700)).unwrap();
    let pages: Vec<u8> = (0..400_000_u32).map(|at| (at % 251) as u8).collect();
    for (name, content) in [
        ("pages-1.img", &pages[..]),
        ("core-1.img", b"core"),
        ("empty", b""),
    ] {
        fs::write(from.join(name), content).unwrap();
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let packed = all(parser().pack_memory(&from).unwrap()).unwrap();
    unpack_into(&to, &packed).unwrap();
    assert_eq!(fs::read_dir(&to).unwrap().count(), 3);
    assert_eq!(read(&to.join("pages-1.img")), pages);
    assert_eq!(read(&to.join("core-1.img")), b"core");
    let metadata = fs::metadata(to.join("core-1.img")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (0, 0));
    assert_eq!(metadata.mode() & 0o777, 0o600);
}

#[test]
fn memory_with_odd_names_is_not_packed() {
    let dir = directory();
    fs::write(dir.path().join("a b"), "x").unwrap();
    let packed = all(parser().pack_memory(dir.path()).unwrap());
    assert!(
        matches!(packed, Err(ParserError::Damaged { .. })),
        "{packed:?}"
    );
}

#[test]
fn hostile_memory_is_refused() {
    let dir = directory();
    let one = record(b"a.img", 1, b"x");
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("not compressed", one.clone()),
        ("cut off", gzip(&one[..one.len() - 1])),
        ("cut compressed", gzip(&one)[..12].to_vec()),
        ("a path", gzip(&record(b"../a", 1, b"x"))),
        ("an absolute path", gzip(&record(b"/tmp/a", 1, b"x"))),
        ("hidden", gzip(&record(b".a", 1, b"x"))),
        ("no name", gzip(&record(b"", 1, b"x"))),
        ("twice", gzip(&[one.clone(), one.clone()].concat())),
        ("more than it has", gzip(&record(b"a", 900, b"x"))),
    ];
    for (at, (what, packed)) in cases.into_iter().enumerate() {
        let refused = unpack_into(&dir.path().join(at.to_string()), &packed);
        assert!(
            matches!(refused, Err(ParserError::Damaged { .. })),
            "{what}: {refused:?}"
        );
    }
    let large = gzip(&record(b"a", MOST + 1, &vec![0; MOST as usize + 1]));
    let refused = unpack_into(&dir.path().join("large"), &large);
    assert!(matches!(refused, Err(ParserError::TooLarge)), "{refused:?}");
    assert_eq!(fs::read_dir(dir.path().join("large")).unwrap().count(), 0);
    assert!(!dir.path().join("a").exists());
}

#[test]
fn descriptions_that_make_no_sense_are_refused() {
    for bytes in [&b""[..], b"{}", b"[[[[[", b"\xff\xfe", &[b'['; 200_000]] {
        let refused = parser().read_manifest(bytes);
        assert!(
            matches!(refused, Err(ParserError::Damaged { .. })),
            "{refused:?}"
        );
        let refused = parser().read_signature(bytes);
        assert!(
            matches!(refused, Err(ParserError::Damaged { .. })),
            "{refused:?}"
        );
    }
    let endless = vec![b' '; (1 << 20) + 1];
    let refused = parser().read_manifest(&endless);
    assert!(matches!(refused, Err(ParserError::TooLarge)), "{refused:?}");
}

#[test]
fn a_log_is_answered_with_a_reason_of_the_list() {
    let log = saved(b"(00.1) Dumping task (pid: 77)\n(00.2) Error (x.c:1): io_uring found\n");
    let mut log = log;
    std::io::Seek::rewind(&mut log).unwrap();
    let found = parser().read_log(log.into()).unwrap().unwrap();
    assert_eq!((found.reason, found.pid), (Reason::IoUring, Some(77)));
    let empty = File::open("/dev/null").unwrap();
    assert_eq!(parser().read_log(empty.into()).unwrap(), None);
}

#[test]
fn images_that_make_no_sense_are_refused() {
    let dir = directory();
    let edits = Edits {
        uid_base: 1,
        hostname: "box".into(),
        open_files: 10,
        segment_pages: 10,
        volumes: Vec::new(),
    };
    let missing = parser().edit_images(dir.path(), edits.clone());
    assert!(
        matches!(missing, Err(ParserError::Failed { .. })),
        "{missing:?}"
    );
    fs::write(dir.path().join("core-1.img"), b"nonsense").unwrap();
    let damaged = parser().edit_images(dir.path(), edits);
    assert!(
        matches!(damaged, Err(ParserError::Damaged { .. })),
        "{damaged:?}"
    );
}
