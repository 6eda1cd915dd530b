//! Archives made to do harm. After each one the cell checks that nothing outside has changed.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use cove_unpack::driver::Order;
use cove_unpack::report::Limit;
use cove_unpack::{Failure, UnpackError, Warning};

use crate::cell::Cell;
use crate::tarball::{Header, Tar, gzip, zstd};

fn exceeded(failure: Failure) -> Limit {
    match failure {
        Failure::LimitExceeded { what, .. } => what,
        other => panic!("expected a limit, not {other:?}"),
    }
}

#[test]
fn a_path_that_climbs_out_is_refused() {
    for path in [
        "../outside/new",
        "a/../../outside/new",
        "..",
        "a/..",
        "./../x",
    ] {
        let failure = Cell::new()
            .unpack(&Tar::new().file(path, b"x").end())
            .refused();
        assert!(
            matches!(failure, Failure::UnsafePath { .. }),
            "{path}: {failure:?}"
        );
    }
}

#[test]
fn a_climbing_path_in_an_extension_header_is_refused() {
    let pax = Tar::new()
        .pax(&[("path", b"../outside/new")])
        .file("fine", b"x")
        .end();
    assert!(matches!(
        Cell::new().unpack(&pax).refused(),
        Failure::UnsafePath { .. }
    ));
    let long = b"../outside/new\0";
    let gnu = Tar::new()
        .entry(
            Header {
                path: b"././@LongLink",
                kind: b'L',
                size: long.len() as u64,
                ..Header::default()
            },
            long,
        )
        .file("fine", b"x")
        .end();
    assert!(matches!(
        Cell::new().unpack(&gnu).refused(),
        Failure::UnsafePath { .. }
    ));
    let nul = Tar::new()
        .pax(&[("path", b"a\0b")])
        .file("fine", b"x")
        .end();
    assert!(matches!(
        Cell::new().unpack(&nul).refused(),
        Failure::UnsafePath { .. }
    ));
}

#[test]
fn an_absolute_path_lands_below_the_root() {
    let cell = Cell::new();
    let secret = cell.outside().join("secret");
    let secret = secret.to_str().unwrap();
    cell.unpack(&Tar::new().file(secret, b"mine").end())
        .accepted();
    assert_eq!(cell.read(secret.trim_start_matches('/')), "mine");
}

#[test]
fn a_write_through_a_symlink_stays_below_the_root() {
    let cell = Cell::new();
    let outside = cell.outside();
    let outside = outside.to_str().unwrap();
    // The link leads to a directory that exists outside but not inside, so there is nowhere to write.
    for target in [outside, "../outside", "../../../../../../../../var/tmp"] {
        let archive = Tar::new()
            .symlink("link", target)
            .file("link/secret", b"mine")
            .end();
        let failure = cell.unpack(&archive).refused();
        assert!(
            matches!(failure, Failure::NotADirectory { .. }),
            "{target}: {failure:?}"
        );
    }
}

#[test]
fn a_symlink_to_a_parent_is_taken_as_if_the_target_were_the_root() {
    let cell = Cell::new();
    let archive = Tar::new()
        .dir("sub")
        .symlink("sub/up", "../../..")
        .file("sub/up/file", b"x")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(cell.read("file"), "x");
}

#[test]
fn a_file_replaces_a_symlink_instead_of_following_it() {
    let cell = Cell::new();
    let secret = cell.outside().join("secret");
    let archive = Tar::new()
        .symlink("a", secret.to_str().unwrap())
        .file("a", b"mine")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(cell.read("a"), "mine");
    assert!(fs::symlink_metadata(cell.path("a")).unwrap().is_file());
}

#[test]
fn a_directory_replaces_a_symlink_instead_of_following_it() {
    let cell = Cell::new();
    let archive = Tar::new()
        .symlink("a", cell.outside().to_str().unwrap())
        .entry(
            Header {
                path: b"a/",
                kind: b'5',
                mode: 0o777,
                uid: 7,
                ..Header::default()
            },
            b"",
        )
        .file("a/secret", b"mine")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(cell.read("a/secret"), "mine");
}

#[test]
fn a_hard_link_cannot_reach_outside() {
    let cell = Cell::new();
    let secret = cell.outside().join("secret");
    let absolute = cell
        .unpack(&Tar::new().hard_link("a", secret.to_str().unwrap()).end())
        .refused();
    assert!(
        matches!(absolute, Failure::LinkTargetMissing { .. }),
        "{absolute:?}"
    );
    let climbing = cell
        .unpack(&Tar::new().hard_link("a", "../outside/secret").end())
        .refused();
    assert!(
        matches!(climbing, Failure::UnsafeLink { .. }),
        "{climbing:?}"
    );
    let through = Tar::new()
        .symlink("d", "../outside")
        .hard_link("a", "d/secret")
        .end();
    let through = cell.unpack(&through).refused();
    assert!(
        matches!(through, Failure::LinkTargetMissing { .. }),
        "{through:?}"
    );
}

#[test]
fn a_hard_link_to_a_symlink_links_the_symlink_itself() {
    let cell = Cell::new();
    let secret = cell.outside().join("secret");
    let archive = Tar::new()
        .symlink("link", secret.to_str().unwrap())
        .hard_link("second", "link")
        .file("second", b"mine")
        .end();
    cell.unpack(&archive).accepted();
    assert_eq!(cell.read("second"), "mine");
    assert!(
        fs::symlink_metadata(cell.path("link"))
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn a_hard_link_to_a_directory_is_refused() {
    let archive = Tar::new().dir("d").hard_link("a", "d").end();
    assert!(matches!(
        Cell::new().unpack(&archive).refused(),
        Failure::UnsafeLink { .. }
    ));
}

#[test]
fn writing_over_a_hard_link_leaves_the_other_name_alone() {
    let cell = Cell::new();
    cell.unpack(
        &Tar::new()
            .file("a", b"one")
            .hard_link("b", "a")
            .file("b", b"two")
            .end(),
    )
    .accepted();
    assert_eq!(
        (cell.read("a"), cell.read("b")),
        ("one".to_owned(), "two".to_owned())
    );
}

#[test]
fn devices_pipes_and_unknown_entries_are_left_out_with_a_warning() {
    for kind in [b'3', b'4', b'6'] {
        let cell = Cell::new();
        let archive = Tar::new()
            .entry(
                Header {
                    path: b"dev",
                    kind,
                    ..Header::default()
                },
                b"",
            )
            .file("f", b"x")
            .end();
        let (_, warnings) = cell.unpack(&archive).accepted();
        assert_eq!(
            warnings,
            [Warning::SpecialFileSkipped {
                path: "dev".to_owned()
            }]
        );
        assert!(!cell.has("dev") && cell.has("f"));
    }
    let cell = Cell::new();
    let odd = Header {
        path: b"odd",
        kind: b'Z',
        size: 3,
        ..Header::default()
    };
    let (_, warnings) = cell
        .unpack(&Tar::new().entry(odd, b"abc").file("f", b"x").end())
        .accepted();
    assert_eq!(
        warnings,
        [Warning::UnknownEntrySkipped {
            path: "odd".to_owned(),
            type_flag: b'Z'
        }]
    );
    assert!(!cell.has("odd") && cell.has("f"));
}

#[test]
fn attributes_that_steer_an_overlay_are_left_out() {
    for name in [
        "trusted.overlay.opaque",
        "user.overlay.redirect",
        "trusted.x",
        "security.selinux",
    ] {
        let cell = Cell::new();
        let key = format!("SCHILY.xattr.{name}");
        let (_, warnings) = cell
            .unpack(&Tar::new().pax(&[(&key, b"y")]).file("f", b"x").end())
            .accepted();
        assert_eq!(
            warnings,
            [Warning::XattrSkipped {
                path: "f".to_owned(),
                name: name.to_owned()
            }]
        );
        let mut none = [0; 16];
        let error = rustix::fs::getxattr(cell.path("f"), name, &mut none).unwrap_err();
        assert_eq!(error, rustix::io::Errno::NODATA);
    }
}

#[test]
fn an_owner_outside_the_range_becomes_nobody_and_takes_no_rights_along() {
    use std::os::unix::fs::MetadataExt;
    let owned = |cell: &Cell| {
        let found = std::fs::symlink_metadata(cell.path("f")).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    for ((uid, gid), kept) in [
        ((65_536, 7), (65_534, 7)),
        ((7, 70_000), (7, 65_534)),
        ((0o7777777, 0o7777777), (65_534, 65_534)),
    ] {
        let header = Header {
            path: b"f",
            mode: 0o6755,
            uid,
            gid,
            ..Header::default()
        };
        let cell = Cell::new();
        let (_, warnings) = cell.unpack(&Tar::new().entry(header, b"").end()).accepted();
        assert_eq!(owned(&cell), (kept.0, kept.1, 0o755));
        let told = |warning: &Warning| matches!(warning, Warning::OwnerReplaced { .. });
        assert!(!warnings.is_empty() && warnings.iter().all(told));
    }
    let huge = Tar::new()
        .pax(&[("uid", b"4294967296")])
        .file("f", b"")
        .end();
    let cell = Cell::new();
    let (_, warnings) = cell.unpack(&huge).accepted();
    assert_eq!(owned(&cell).0, 65_534);
    let path = "f".to_owned();
    let id = 4_294_967_296;
    assert_eq!(warnings, [Warning::OwnerReplaced { path, id }]);
}

#[test]
fn a_decompression_bomb_ends_at_the_limit() {
    let mut cell = Cell::new();
    cell.limits.total_bytes = 16 << 20;
    let zeros = vec![0; 32 << 20];
    let bomb = Tar::new().file("zeros", &zeros).end();
    for packed in [gzip(&bomb), zstd(&bomb)] {
        assert!(packed.len() < 1 << 20);
        assert_eq!(exceeded(cell.unpack(&packed).refused()), Limit::TotalBytes);
    }
    // Also behind the end marker, where nothing is unpacked any more.
    let mut tail = Tar::new().file("f", b"x").end();
    tail.resize(32 << 20, 0);
    assert_eq!(
        exceeded(cell.unpack(&gzip(&tail)).refused()),
        Limit::TotalBytes
    );
}

#[test]
fn too_many_entries_are_refused() {
    let mut cell = Cell::new();
    cell.limits.entries = 100;
    let many = (0..101)
        .fold(Tar::new(), |tar, index| tar.file(&format!("f{index}"), b""))
        .end();
    assert_eq!(exceeded(cell.unpack(&many).refused()), Limit::Entries);
    let only_headers = (0..101)
        .fold(Tar::new(), |tar, _| tar.pax(&[("comment", b"x")]))
        .end();
    assert_eq!(
        exceeded(cell.unpack(&only_headers).refused()),
        Limit::Entries
    );
}

#[test]
fn giant_paths_names_and_depths_are_refused() {
    let long = "a/".repeat(3000);
    let deep = "a/".repeat(300);
    let name = "n".repeat(256);
    for (path, limit) in [
        (&long, Limit::PathBytes),
        (&deep, Limit::Depth),
        (&name, Limit::PathBytes),
    ] {
        let archive = Tar::new()
            .pax(&[("path", path.as_bytes())])
            .file("f", b"")
            .end();
        assert_eq!(exceeded(Cell::new().unpack(&archive).refused()), limit);
    }
    let target = Tar::new()
        .pax(&[("linkpath", long.as_bytes())])
        .symlink("f", "x")
        .end();
    assert_eq!(
        exceeded(Cell::new().unpack(&target).refused()),
        Limit::PathBytes
    );
    let header = Header {
        path: b"l",
        kind: b'L',
        size: 1 << 30,
        ..Header::default()
    };
    let gnu = Tar::new().raw(&header.block()).end();
    assert_eq!(
        exceeded(Cell::new().unpack(&gnu).refused()),
        Limit::PathBytes
    );
}

#[test]
fn giant_files_headers_and_attributes_are_refused_before_they_are_read() {
    let mut cell = Cell::new();
    cell.limits.file_bytes = 1000;
    let file = Tar::new()
        .raw(
            &Header {
                path: b"f",
                size: 1001,
                ..Header::default()
            }
            .block(),
        )
        .end();
    assert_eq!(exceeded(cell.unpack(&file).refused()), Limit::FileBytes);
    let header = Header {
        path: b"x",
        kind: b'x',
        size: 1 << 32,
        ..Header::default()
    };
    let pax = Tar::new().raw(&header.block()).end();
    assert_eq!(
        exceeded(Cell::new().unpack(&pax).refused()),
        Limit::ExtensionBytes
    );
    let value = vec![b'v'; 70_000];
    let xattr = Tar::new()
        .pax(&[("SCHILY.xattr.user.big", &value)])
        .file("f", b"")
        .end();
    assert_eq!(
        exceeded(Cell::new().unpack(&xattr).refused()),
        Limit::XattrBytes
    );
}

#[test]
fn a_sparse_file_larger_than_the_limit_is_refused() {
    let mut cell = Cell::new();
    cell.limits.file_bytes = 1 << 20;
    let map = b"0,1";
    let size = (1u64 << 40).to_string();
    let records: [(&str, &[u8]); 2] = [
        ("GNU.sparse.size", size.as_bytes()),
        ("GNU.sparse.map", map),
    ];
    assert_eq!(
        exceeded(
            cell.unpack(&Tar::new().pax(&records).file("f", b"x").end())
                .refused()
        ),
        Limit::FileBytes
    );
}

#[test]
fn a_sparse_map_that_makes_no_sense_is_refused() {
    for map in [
        "5,1,0,1",
        "0,3",
        "99,1",
        "18446744073709551615,1",
        "0,1,x",
        "0",
    ] {
        let records: [(&str, &[u8]); 2] = [
            ("GNU.sparse.size", b"10"),
            ("GNU.sparse.map", map.as_bytes()),
        ];
        let failure = Cell::new()
            .unpack(&Tar::new().pax(&records).file("f", b"x").end())
            .refused();
        assert!(
            matches!(failure, Failure::BadHeader { .. }),
            "{map}: {failure:?}"
        );
    }
}

#[test]
fn a_truncated_archive_is_refused_wherever_it_is_cut() {
    let whole = Tar::new()
        .pax(&[("mtime", b"1.5")])
        .file("f", &[7; 3000])
        .bytes;
    for cut in [100, 512, 600, 1024, 1536, 1600, 4000] {
        let failure = Cell::new().unpack(&whole[..cut]).refused();
        assert!(
            matches!(failure, Failure::Truncated),
            "cut at {cut}: {failure:?}"
        );
    }
}

#[test]
fn truncated_compression_is_refused() {
    let body: Vec<u8> = (0..200_000u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    let whole = Tar::new().file("f", &body).end();
    for packed in [gzip(&whole), zstd(&whole)] {
        let failure = Cell::new().unpack(&packed[..packed.len() / 2]).refused();
        assert!(
            matches!(failure, Failure::Truncated | Failure::Corrupt { .. }),
            "{failure:?}"
        );
    }
}

#[test]
fn corrupt_compression_is_refused() {
    let body: Vec<u8> = (0..200_000u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    let whole = Tar::new().file("f", &body).end();
    let mut packed = gzip(&whole);
    let middle = packed.len() / 2;
    packed[middle] ^= 0xff;
    let failure = Cell::new().unpack(&packed).refused();
    assert!(matches!(failure, Failure::Corrupt { .. }), "{failure:?}");
    let mut sum = gzip(&whole);
    let end = sum.len() - 6;
    sum[end] ^= 1;
    let failure = Cell::new().unpack(&sum).refused();
    assert!(matches!(failure, Failure::Corrupt { .. }), "{failure:?}");
}

#[test]
fn what_is_no_archive_is_refused() {
    for junk in [
        &b""[..],
        b"hello",
        &[0x1f, 0x8b],
        &[0x28, 0xb5, 0x2f, 0xfd],
        &[0x55; 2048],
    ] {
        let failure = Cell::new().unpack(junk).refused();
        let typed = matches!(
            failure,
            Failure::BadHeader { .. } | Failure::Truncated | Failure::Corrupt { .. }
        );
        assert!(typed, "{junk:?}: {failure:?}");
    }
}

#[test]
fn packings_that_are_not_read_are_called_by_their_name() {
    for (archive, name) in [
        (&b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F"[..], "xz"),
        (b"PK\x03\x04\x14\0\0\0", "zip"),
        (b"\x04\x22\x4d\x18\x64\x40", "lz4"),
    ] {
        let failure = Cell::new().unpack(archive).refused();
        let packing = name.to_owned();
        assert_eq!(failure, Failure::UnknownPacking { packing });
    }
}

#[test]
fn garbage_after_the_end_is_ignored_with_a_warning() {
    let plain = Tar::new().file("f", b"x").end();
    let mut inside = plain.clone();
    inside.extend_from_slice(b"garbage");
    let mut behind = gzip(&plain);
    behind.extend_from_slice(b"garbage");
    let mut zstd_behind = zstd(&plain);
    zstd_behind.extend_from_slice(b"garbage");
    for archive in [inside.clone(), gzip(&inside), behind, zstd_behind] {
        let cell = Cell::new();
        let (_, warnings) = cell.unpack(&archive).accepted();
        assert_eq!(warnings, [Warning::TrailingData]);
        assert_eq!(cell.read("f"), "x");
    }
    let mut padded = gzip(&plain);
    padded.extend_from_slice(&[0; 700]);
    assert_eq!(Cell::new().unpack(&padded).accepted().1, []);
}

#[test]
fn warnings_are_bounded_and_still_counted() {
    let many = (0..500).fold(Tar::new(), |tar, index| {
        tar.entry(
            Header {
                path: format!("p{index}").as_bytes(),
                kind: b'6',
                ..Header::default()
            },
            b"",
        )
    });
    let (summary, warnings) = Cell::new().unpack(&many.end()).accepted();
    assert_eq!((summary.warnings, warnings.len()), (500, 32));
}

#[test]
fn unprintable_paths_are_shown_escaped_and_short() {
    let path = format!("{}\u{1b}[31m\n", "long".repeat(500));
    let archive = Tar::new()
        .pax(&[("path", format!("../{path}").as_bytes())])
        .file("f", b"")
        .end();
    let Failure::UnsafePath { path } = Cell::new().unpack(&archive).refused() else {
        panic!()
    };
    assert!(path.len() < 300 && !path.contains('\u{1b}') && !path.contains('\n'));
}

#[test]
fn an_archive_that_never_ends_is_killed_at_the_deadline() {
    let mut cell = Cell::new();
    cell.limits.seconds = 1;
    let (input, mut feed) = std::io::pipe().unwrap();
    feed.write_all(&Tar::new().file("f", b"x").bytes).unwrap();
    let outcome = cell.unpack_file(OwnedFd::from(input).into());
    assert!(
        matches!(outcome.result, Err(UnpackError::Deadline { seconds: 1 })),
        "{outcome:?}"
    );
    drop(feed);
}

#[test]
fn the_program_runs_without_privileges_and_sees_only_the_target() {
    let cell = Cell::new();
    let (input, mut feed) = std::io::pipe().unwrap();
    feed.write_all(&Tar::new().file("first", b"x").bytes)
        .unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| cell.unpack_file(OwnedFd::from(input).into()));
        let pid = worker_of(&cell.target());
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line[name.len()..]
                .split_whitespace()
                .next()
                .unwrap()
                .to_owned()
        };
        assert_eq!(field("Uid:"), "1900000000");
        assert_eq!(field("Gid:"), "1900000000");
        assert_eq!(field("NoNewPrivs:"), "1");
        assert_eq!(field("Seccomp:"), "2");
        // chown, dac_override, fowner, fsetid and setfcap, over its own range only.
        assert_eq!(field("CapPrm:"), "000000008000001b");
        assert_eq!(field("CapInh:"), "0000000000000000");
        for namespace in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
            assert_ne!(of(&pid), of("self"), "{namespace}");
        }
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        assert_eq!(mounts.lines().count(), 1, "{mounts}");
        assert!(mounts.contains("nosuid,nodev,noexec"), "{mounts}");
        let root = fs::metadata(format!("/proc/{pid}/root/")).unwrap();
        let target = fs::metadata(cell.target()).unwrap();
        assert_eq!((root.dev(), root.ino()), (target.dev(), target.ino()));
        feed.write_all(&[0; 1024]).unwrap();
        drop(feed);
        running.join().unwrap().accepted();
    });
    assert_eq!(fs::metadata(cell.path("first")).unwrap().uid(), 0);
}

#[test]
fn the_program_dies_with_the_process_that_started_it() {
    let cell = Cell::new();
    let (input, mut feed) = std::io::pipe().unwrap();
    feed.write_all(&Tar::new().file("first", b"x").bytes)
        .unwrap();
    let order = Order {
        parent: 0,
        uid_base: 1_900_000_000,
        content: cell.content,
        hash: false,
        limits: cell.limits,
    };
    let order = serde_json::to_string(&order).unwrap();
    // The shell stays the parent, because it has something left to do.
    let script = format!(
        "{} \"$(printf %s '{order}' | sed s/:0,/:$$,/)\"; true",
        env!("CARGO_BIN_EXE_cove-unpack")
    );
    let mut parent = Command::new("sh")
        .args(["-c", &script])
        .current_dir(cell.target())
        .stdin(Stdio::from(OwnedFd::from(input)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = worker_of(&cell.target());
    parent.kill().unwrap();
    parent.wait().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while fs::exists(format!("/proc/{pid}/root/first")).unwrap_or(false) {
        assert!(
            std::time::Instant::now() < deadline,
            "the worker outlived its parent"
        );
        std::thread::yield_now();
    }
}

/// Waits for the process whose root directory is the target, once it is locked in.
fn worker_of(target: &std::path::Path) -> String {
    let target = fs::metadata(target).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        assert!(
            std::time::Instant::now() < deadline,
            "the worker did not appear"
        );
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().into_string().unwrap();
            if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let Ok(root) = fs::metadata(format!("/proc/{pid}/root/")) else {
                continue;
            };
            let mut status = String::new();
            let opened = fs::File::open(format!("/proc/{pid}/status"));
            let _ = opened.and_then(|mut file| file.read_to_string(&mut status));
            if (root.dev(), root.ino()) == (target.dev(), target.ino())
                && status.contains("Seccomp:\t2")
            {
                return pid;
            }
        }
        std::thread::yield_now();
    }
}
