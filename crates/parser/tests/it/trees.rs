//! Packing file trees.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use cove_parser::ParserError;
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, makedev, mknodat};

use super::{all, directory, parser};

/// Unpacks with GNU tar, as root, and gives what is there then: one line a file.
fn unpacked(archive: &[u8], into: &Path) -> Vec<String> {
    let file = into.with_extension("tar");
    fs::write(&file, archive).unwrap();
    fs::create_dir(into).unwrap();
    let status = Command::new("tar")
        .args(["--extract", "--numeric-owner", "--same-permissions"])
        .args(["--xattrs", "--xattrs-include=*", "--file"])
        .arg(&file)
        .arg("--directory")
        .arg(into)
        .status()
        .unwrap();
    assert!(status.success());
    listing(into)
}

fn listing(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let kind = metadata.mode() & 0o170_000;
        let mut line = format!(
            "{name} {:o} {}:{} {}.{:09}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        if metadata.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            line += &format!(" links {} size {}", metadata.nlink(), metadata.len());
        }
        if metadata.is_symlink() {
            line += &format!(" -> {}", fs::read_link(&path).unwrap().display());
        } else {
            if metadata.is_file() {
                line += &format!(" hash {}", checksum(&fs::read(&path).unwrap()));
            }
            let mut names = vec![0; 4096];
            let length = rustix::fs::listxattr(&path, &mut names).unwrap();
            for name in names[..length].split(|b| *b == 0).filter(|n| !n.is_empty()) {
                let mut value = vec![0; 4096];
                let length = rustix::fs::getxattr(&path, name, &mut value).unwrap();
                let name = name.escape_ascii();
                line += &format!(" {name}={}", value[..length].escape_ascii());
            }
        }
        if matches!(kind, 0o020_000 | 0o060_000) {
            line += &format!(" device {}", metadata.rdev());
        }
        lines.push(line);
    }
    lines.sort();
    lines
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// One of everything that a file system may hold.
fn fill(root: &Path) {
    let long = "n".repeat(200);
    fs::create_dir_all(root.join("a").join(&long).join(&long)).unwrap();
    fs::write(root.join("a").join(&long).join(&long).join("deep"), "deep").unwrap();
    fs::write(root.join("plain"), vec![7; 1_000_003]).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("näme\nwith = % \\"), "odd").unwrap();
    symlink("plain", root.join("link")).unwrap();
    symlink("x".repeat(300), root.join("long-link")).unwrap();
    fs::hard_link(root.join("plain"), root.join("hard")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"middle", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    let hollow = File::create(root.join("hollow")).unwrap();
    hollow.set_len(3 << 20).unwrap();
    for (name, kind) in [
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("device", FileType::CharacterDevice),
    ] {
        let device = if kind == FileType::CharacterDevice {
            makedev(1, 3)
        } else {
            0
        };
        mknodat(CWD, root.join(name), kind, Mode::RUSR, device).unwrap();
    }
    let set_id = root.join("set-id");
    fs::write(&set_id, "program").unwrap();
    chown(&set_id, Some(7), Some(8)).unwrap();
    fs::set_permissions(&set_id, fs::Permissions::from_mode(0o6711)).unwrap();
    let closed = root.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("secret"), "of another user").unwrap();
    for path in [closed.join("secret"), closed.clone()] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        chown(&path, Some(65_535), Some(65_535)).unwrap();
    }
    rustix::fs::setxattr(&set_id, "user.a=b%", b"x\0y\n", XattrFlags::empty()).unwrap();
    let capable = root.join("capable");
    fs::write(&capable, "program").unwrap();
    let status = Command::new("setcap")
        .args(["cap_net_bind_service+ep".as_ref(), capable.as_os_str()])
        .status()
        .unwrap();
    assert!(status.success());
    let old = Timestamps {
        last_access: Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        },
        last_modification: Timespec {
            tv_sec: 1_234_567_890,
            tv_nsec: 123_456_789,
        },
    };
    for name in ["plain", "closed", "a"] {
        let file = File::open(root.join(name)).unwrap();
        rustix::fs::futimens(file, &old).unwrap();
    }
}

#[test]
fn a_tree_comes_out_of_another_tar_as_it_was() {
    let dir = directory();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fill(&root);
    let mut expected = listing(&root);
    // No archive holds sockets.
    expected.retain(|line| !line.starts_with("socket "));
    for gzip in [false, true] {
        let packing = parser().pack_tree(vec![root.clone()], gzip).unwrap();
        let archive = all(packing).unwrap();
        assert_eq!(archive.starts_with(&[0x1f, 0x8b]), gzip);
        let found = unpacked(&archive, &dir.path().join(format!("unpacked-{gzip}")));
        assert_eq!(found, expected);
    }
    let again = |gzip| all(parser().pack_tree(vec![root.clone()], gzip).unwrap()).unwrap();
    assert_eq!(again(true), again(true), "the same tree is the same bytes");
    let sparse = again(false).len();
    assert!(sparse < 3 << 20, "holes are not packed: {sparse} bytes");
}

#[test]
fn layers_are_packed_as_one_and_what_was_deleted_is_gone() {
    let dir = directory();
    let (image, upper) = (dir.path().join("image"), dir.path().join("upper"));
    fs::create_dir_all(image.join("d")).unwrap();
    fs::create_dir(&upper).unwrap();
    for name in ["kept", "replaced", "deleted", "d/inner"] {
        fs::write(image.join(name), name).unwrap();
    }
    chown(image.join("kept"), Some(1000), Some(1000)).unwrap();
    fs::write(upper.join("replaced"), "anew").unwrap();
    mknodat(
        CWD,
        upper.join("deleted"),
        FileType::CharacterDevice,
        Mode::empty(),
        0,
    )
    .unwrap();
    let layers = vec![upper.clone(), image.clone()];
    let archive = all(parser().pack_tree(layers, false).unwrap()).unwrap();
    let into = dir.path().join("unpacked");
    let found = unpacked(&archive, &into).join("\n");
    assert!(!found.contains("deleted"), "{found}");
    assert_eq!(fs::read(into.join("replaced")).unwrap(), b"anew");
    assert_eq!(fs::read(into.join("d/inner")).unwrap(), b"d/inner");
    assert_eq!(fs::metadata(into.join("kept")).unwrap().uid(), 1000);
    assert!(
        image.join("deleted").exists(),
        "the layers are as they were"
    );
}

#[test]
fn a_tree_full_of_sockets_is_packed_without_them() {
    let dir = directory();
    for number in 0..3000 {
        let path = dir
            .path()
            .join(format!("a-socket-that-some-guest-listens-on-{number}"));
        mknodat(CWD, &path, FileType::Socket, Mode::RUSR, 0).unwrap();
    }
    fs::write(dir.path().join("file"), "content").unwrap();
    let archive = all(parser()
        .pack_tree(vec![dir.path().to_owned()], false)
        .unwrap())
    .unwrap();
    let has = |text: &[u8]| archive.windows(text.len()).any(|part| part == text);
    assert!(has(b"./file") && has(b"content"));
    assert!(!has(b"a-socket"));
}

#[test]
fn packing_that_was_cut_off_does_not_pass_for_one_that_ended() {
    let dir = directory();
    // More than fits into the pipe.
    fs::write(dir.path().join("file"), vec![1; 4 << 20]).unwrap();
    let packing = parser()
        .pack_tree(vec![dir.path().to_owned()], false)
        .unwrap();
    assert!(matches!(packing.finish(), Err(ParserError::Failed { .. })));
    let nowhere = vec![dir.path().join("not-there")];
    let packing = parser().pack_tree(nowhere, false).unwrap();
    assert!(matches!(all(packing), Err(ParserError::Failed { .. })));
}

#[test]
fn no_link_leads_out_of_the_tree() {
    let dir = directory();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(dir.path().join("secret"), "of the host").unwrap();
    symlink(dir.path().join("secret"), root.join("absolute")).unwrap();
    symlink("../secret", root.join("relative")).unwrap();
    symlink("/", root.join("everything")).unwrap();
    let archive = all(parser().pack_tree(vec![root], false).unwrap()).unwrap();
    let has = |text: &[u8]| archive.windows(text.len()).any(|part| part == text);
    assert!(!has(b"of the host"));
    assert!(has(b"../secret"), "links are packed as links");
}

#[test]
fn a_directory_of_the_host_is_packed_with_whatever_ids_it_has() {
    let dir = directory();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fill(&root);
    let foreign = root.join("foreign");
    fs::write(&foreign, "of a user beyond any sandbox").unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&foreign, Some(3_000_000_000), Some(100_000)).unwrap();
    let mut expected = listing(&root);
    expected.retain(|line| !line.starts_with("socket "));
    let opened = File::open(&root).unwrap().into();
    let archive = all(parser().pack_directory(&opened).unwrap()).unwrap();
    assert_eq!(unpacked(&archive, &dir.path().join("unpacked")), expected);
}

#[test]
fn a_directory_that_changes_is_packed_to_its_end() {
    let dir = directory();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    // More than fits into the pipe, so that packing stops in the first file.
    let first = File::create(root.join("a")).unwrap();
    first.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    fs::write(root.join("b"), "goes away").unwrap();
    fs::write(root.join("c"), "stays").unwrap();
    let opened = File::open(&root).unwrap().into();
    let mut packing = parser().pack_directory(&opened).unwrap();
    let mut begin = [0; 512];
    let count = packing.read(&mut begin, super::PATIENCE).unwrap();
    assert!(count > 0);
    first.set_len(2 << 20).unwrap();
    fs::remove_file(root.join("b")).unwrap();
    let mut archive = begin[..count].to_vec();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match packing.read(&mut chunk, super::PATIENCE).unwrap() {
            0 => break,
            count => archive.extend_from_slice(&chunk[..count]),
        }
    }
    let ended = packing.finish();
    assert!(matches!(ended, Err(ParserError::Changed)), "{ended:?}");
    let into = dir.path().join("unpacked");
    unpacked(&archive, &into);
    assert_eq!(fs::metadata(into.join("a")).unwrap().len(), 4 << 20);
    assert_eq!(fs::read(into.join("c")).unwrap(), b"stays");
    assert!(!into.join("b").exists());
}
