//! What a well-meant archive must arrive as.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use cove_unpack::{Failure, Warning};

use crate::cell::{Cell, listing};
use crate::tarball::{Header, Tar, gzip, seal, zstd};

#[test]
fn owners_modes_times_and_set_id_bits_are_kept() {
    let cell = Cell::new();
    let archive = Tar::new()
        .entry(
            Header {
                path: b"./",
                kind: b'5',
                mode: 0o711,
                uid: 5,
                gid: 6,
                mtime: 77,
                ..Header::default()
            },
            b"",
        )
        .entry(
            Header {
                path: b"d/",
                kind: b'5',
                mode: 0o3775,
                uid: 1000,
                gid: 100,
                mtime: 1234,
                ..Header::default()
            },
            b"",
        )
        .entry(
            Header {
                path: b"d/su",
                mode: 0o4755,
                uid: 33,
                gid: 44,
                size: 3,
                mtime: 99,
                ..Header::default()
            },
            b"abc",
        )
        .entry(
            Header {
                path: b"d/none",
                mode: 0,
                uid: 65_535,
                gid: 65_535,
                ..Header::default()
            },
            b"",
        )
        .pax(&[("mtime", b"1700000000.123456789")])
        .file("d/fine", b"")
        .entry(
            Header {
                path: b"d/l",
                link: b"su",
                kind: b'2',
                uid: 9,
                gid: 8,
                mtime: 55,
                ..Header::default()
            },
            b"",
        )
        .end();
    assert_eq!(cell.unpack(&archive).accepted().1, []);
    let stat = |name: &str| fs::symlink_metadata(cell.path(name)).unwrap();
    let shape = |name: &str| {
        (
            stat(name).mode() & 0o7777,
            stat(name).uid(),
            stat(name).gid(),
            stat(name).mtime(),
        )
    };
    assert_eq!(shape("."), (0o711, 5, 6, 77));
    assert_eq!(shape("d"), (0o3775, 1000, 100, 1234));
    assert_eq!(shape("d/su"), (0o4755, 33, 44, 99));
    assert_eq!(shape("d/none"), (0, 65_535, 65_535, 1_000_000_000));
    assert_eq!(
        (stat("d/fine").mtime(), stat("d/fine").mtime_nsec()),
        (1_700_000_000, 123_456_789)
    );
    // The directory's set-group bit must not have decided the group of what lies inside.
    assert_eq!(stat("d/fine").gid(), 0);
    assert_eq!(
        (stat("d/l").uid(), stat("d/l").gid(), stat("d/l").mtime()),
        (9, 8, 55)
    );
    assert_eq!(
        fs::read_link(cell.path("d/l")).unwrap().to_str(),
        Some("su")
    );
}

#[test]
fn file_capabilities_and_user_attributes_are_kept() {
    let cell = Cell::new();
    // Revision 2, effective, CAP_NET_RAW: what `setcap cap_net_raw+ep` writes.
    let mut capability = [0; 20];
    capability[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
    capability[4..8].copy_from_slice(&(1u32 << 13).to_le_bytes());
    let records: [(&str, &[u8]); 2] = [
        ("SCHILY.xattr.security.capability", &capability),
        ("SCHILY.xattr.user.note", b"hi\n=there"),
    ];
    let header = Header {
        path: b"ping",
        mode: 0o755,
        uid: 7,
        ..Header::default()
    };
    assert_eq!(
        cell.unpack(&Tar::new().pax(&records).entry(header, b"").end())
            .accepted()
            .1,
        []
    );
    let read = |name: &str| {
        let mut value = [0; 64];
        let length = rustix::fs::getxattr(cell.path("ping"), name, &mut value).unwrap();
        value[..length].to_vec()
    };
    assert_eq!(read("user.note"), b"hi\n=there");
    let stored = read("security.capability");
    assert_eq!(stored[4..20], capability[4..20]);
    // Revision 3 names the root it belongs to: id 0 on disk, like every other id.
    assert!(stored.len() == 20 || stored[20..24] == [0; 4], "{stored:?}");
}

#[test]
fn missing_parents_are_made_and_existing_ones_left_alone() {
    let cell = Cell::new();
    let archive = Tar::new()
        .entry(
            Header {
                path: b"a",
                kind: b'5',
                mode: 0o700,
                ..Header::default()
            },
            b"",
        )
        .file("a/b/c/file", b"x")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(cell.read("a/b/c/file"), "x");
    assert_eq!(fs::metadata(cell.path("a")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(
        fs::metadata(cell.path("a/b")).unwrap().mode() & 0o777,
        0o755
    );
}

#[test]
fn a_parent_that_is_a_symlink_inside_the_root_is_followed() {
    let cell = Cell::new();
    let archive = Tar::new()
        .dir("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("lib64", "/usr/lib")
        .file("lib/a", b"1")
        .file("lib64/b", b"2")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(
        (cell.read("usr/lib/a"), cell.read("usr/lib/b")),
        ("1".to_owned(), "2".to_owned())
    );
    assert!(fs::symlink_metadata(cell.path("lib")).unwrap().is_symlink());
}

#[test]
fn a_file_where_a_directory_is_needed_is_a_clear_error() {
    let failure = Cell::new()
        .unpack(&Tar::new().file("a", b"").file("a/b", b"").end())
        .refused();
    assert!(
        matches!(failure, Failure::NotADirectory { .. }),
        "{failure:?}"
    );
    let deep = Cell::new()
        .unpack(&Tar::new().file("a", b"").file("a/b/c", b"").end())
        .refused();
    assert!(matches!(deep, Failure::NotADirectory { .. }), "{deep:?}");
}

#[test]
fn later_entries_replace_earlier_ones_of_any_kind() {
    let cell = Cell::new();
    let archive = Tar::new()
        .dir("x")
        .file("x/in/deep", b"")
        .file("x", b"now a file")
        .file("y", b"")
        .dir("y")
        .file("y/in", b"1")
        .dir("z")
        .file("z/old", b"")
        .symlink("z", "y")
        .hard_link("y/in", "y/in")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(cell.read("x"), "now a file");
    assert_eq!(cell.read("z/in"), "1");
    assert!(!cell.has("z/old"));
}

#[test]
fn gzip_zstd_and_members_in_a_row_are_read() {
    let plain = Tar::new().file("f", b"hello").end();
    let (front, back) = plain.split_at(700);
    let mut gzip_members = gzip(front);
    gzip_members.extend(gzip(back));
    let mut zstd_frames = zstd(front);
    // A frame that holds no data, as seekable formats insert.
    zstd_frames.extend([0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
    zstd_frames.extend(zstd(back));
    for archive in [
        plain.clone(),
        gzip(&plain),
        zstd(&plain),
        gzip_members,
        zstd_frames,
    ] {
        let mut cell = Cell::new();
        cell.hash = true;
        let (summary, warnings) = cell.unpack(&archive).accepted();
        assert_eq!((cell.read("f").as_str(), &warnings[..]), ("hello", &[][..]));
        assert_eq!(summary.bytes, plain.len() as u64);
        assert_eq!(summary.diff_id, Some(sha256(&plain)));
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    format!("sha256:{:x}", Sha256::digest(bytes))
}

#[test]
fn an_archive_without_an_end_marker_is_accepted_with_a_warning() {
    let cell = Cell::new();
    let (_, warnings) = cell.unpack(&Tar::new().file("f", b"x").bytes).accepted();
    assert_eq!(warnings, [Warning::NoEndOfArchive]);
    assert_eq!(cell.read("f"), "x");
}

#[test]
fn names_longer_than_a_header_are_read_in_both_ways() {
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let with_nul = format!("{long}\0");
    let cell = Cell::new();
    let archive = Tar::new()
        .pax(&[("path", long.as_bytes())])
        .file("short", b"pax")
        .pax(&[("linkpath", long.as_bytes())])
        .symlink("to", "short")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(
        (cell.read(&long), cell.read("to")),
        ("pax".to_owned(), "pax".to_owned())
    );
    let cell = Cell::new();
    let size = with_nul.len() as u64;
    let archive = Tar::new()
        .entry(
            Header {
                path: b"././@LongLink",
                kind: b'L',
                size,
                ..Header::default()
            },
            with_nul.as_bytes(),
        )
        .file("short", b"gnu")
        .entry(
            Header {
                path: b"././@LongLink",
                kind: b'K',
                size,
                ..Header::default()
            },
            with_nul.as_bytes(),
        )
        .hard_link("to", "short")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(
        (cell.read(&long), cell.read("to")),
        ("gnu".to_owned(), "gnu".to_owned())
    );
}

#[test]
fn the_prefix_of_a_posix_header_belongs_to_the_path() {
    let mut block = Header {
        path: b"file",
        size: 1,
        ..Header::default()
    }
    .block();
    block[345..350].copy_from_slice(b"a/b/c");
    seal(&mut block);
    let cell = Cell::new();
    let mut body = [0; 512];
    body[0] = b'x';
    cell.unpack(&Tar::new().raw(&block).raw(&body).end())
        .accepted();
    assert_eq!(cell.read("a/b/c/file"), "x");
}

/// Packs a real tree with GNU tar in each of its formats and compares what arrives.
#[test]
fn what_gnu_tar_packs_arrives_the_same() {
    let source = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = "
        mkdir -p d/e; printf data > d/f; ln d/f d/e/hard; ln -s ../f d/e/soft; chmod 4711 d/f; chown 12:34 d/e
        printf head > holes; truncate -s 3M holes; printf middle >> holes; truncate -s 6M holes
        i=0; while [ $i -lt 40 ]; do printf x | dd of=many bs=1 seek=$((i * 200000)) conv=notrunc 2>/dev/null; i=$((i+1)); done
        n=$(printf 'n%.0s' $(seq 150)); mkdir -p $n/$n; printf long > $n/$n/$n; ln -s $n/$n/$n d/longlink
        mkfifo pipe; touch -d '1965-01-02 03:04:05' old; chmod 500 d";
    let made = Command::new("sh")
        .args(["-ec", script])
        .current_dir(source.path())
        .status()
        .unwrap();
    assert!(made.success());
    for format in [
        &["--format=posix", "--sparse", "--sparse-version=1.0"][..],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=gnu", "--sparse"],
        &["--format=gnu"],
    ] {
        let packed = Command::new("tar")
            .args(format)
            .args(["--create", "--numeric-owner", "--sort=name", "."])
            .current_dir(source.path())
            .output()
            .unwrap();
        assert!(packed.status.success(), "{packed:?}");
        let cell = Cell::new();
        let (_, warnings) = cell.unpack(&packed.stdout).accepted();
        assert_eq!(
            warnings,
            [Warning::SpecialFileSkipped {
                path: "./pipe".to_owned()
            }]
        );
        let whole_seconds = |path| {
            let mut found = listing(path);
            found.remove(std::path::Path::new("pipe"));
            // The gnu format has no fractions of a second.
            found
                .into_iter()
                .map(|(path, words)| (path, without_fraction(&words)))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            whole_seconds(&cell.target()),
            whole_seconds(source.path()),
            "{format:?}"
        );
        if format.contains(&"--sparse") {
            assert!(
                fs::metadata(cell.path("holes")).unwrap().blocks() < 2000,
                "holes must stay holes"
            );
        }
    }
}

fn without_fraction(words: &str) -> String {
    let (front, back) = words.split_once(" links, ").unwrap();
    let (seconds, rest) = back.split_once('.').unwrap();
    format!("{front} {seconds}{}", &rest[9..])
}
