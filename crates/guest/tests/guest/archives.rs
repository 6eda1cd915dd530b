//! Trees as tar streams, honest and hostile.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cove_protocol::client::{Guest, GuestError};
use cove_protocol::message::{ArchiveIn, ArchiveOut, Done, ErrorCode};
use tar::{Builder, EntryType, Header};

use crate::harness::*;

async fn pack(guest: &Guest, path: &str) -> Vec<u8> {
    let request = ArchiveOut {
        path: path.to_owned(),
        ..ArchiveOut::default()
    };
    let mut reader = guest.archive_out(request).await.unwrap();
    let mut all = Vec::new();
    while let Some(part) = reader.next().await.unwrap() {
        all.extend_from_slice(&part);
    }
    assert_eq!(reader.done().unwrap().bytes, all.len() as u64);
    all
}

async fn unpack(guest: &Guest, request: ArchiveIn, archive: Vec<u8>) -> Result<Done, GuestError> {
    let mut upload = guest.archive_in(request).await?;
    upload.write(archive.into()).await?;
    upload.finish().await
}

fn into(path: &str) -> ArchiveIn {
    ArchiveIn {
        path: path.to_owned(),
        ..ArchiveIn::default()
    }
}

/// An entry whose path is put in as it is, however wicked.
fn entry(kind: EntryType, path: &str, link: &str, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(data.len() as u64);
    if !link.is_empty() {
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

#[tokio::test]
async fn a_tree_survives_the_round_trip() {
    let guest = TestGuest::start().await;
    let tree = guest.path("tree");
    std::fs::create_dir_all(tree.join("sub/empty")).unwrap();
    let long = "n".repeat(200);
    std::fs::write(tree.join("sub").join(&long), vec![5; 700_000]).unwrap();
    std::os::unix::fs::symlink("sub/../nowhere", tree.join("link")).unwrap();
    std::fs::write(tree.join("tool"), "#!/bin/sh\n").unwrap();
    set_mode(&tree.join("tool"), 0o755);
    std::os::unix::fs::chown(tree.join("tool"), Some(11), Some(12)).unwrap();
    set_mode(&tree.join("sub/empty"), 0o555);
    let packed = pack(&guest, &guest.text("tree")).await;

    let kept = ArchiveIn {
        keep_owner: true,
        ..into(&guest.text("kept"))
    };
    let done = unpack(&guest, kept, packed.clone()).await.unwrap();
    assert_eq!((done.bytes, done.entries), (packed.len() as u64, 6));
    let kept = guest.path("kept");
    assert!(std::fs::read(kept.join("sub").join(&long)).unwrap() == vec![5; 700_000]);
    assert_eq!(
        std::fs::read_link(kept.join("link")).unwrap(),
        Path::new("sub/../nowhere")
    );
    let tool = std::fs::metadata(kept.join("tool")).unwrap();
    assert_eq!(
        (tool.uid(), tool.gid(), tool.mode() & 0o7777),
        (11, 12, 0o755)
    );
    let original = std::fs::metadata(tree.join("tool")).unwrap();
    assert_eq!(tool.mtime(), original.mtime());
    assert_eq!(
        std::fs::metadata(kept.join("sub/empty")).unwrap().mode() & 0o777,
        0o555
    );

    // A user who unpacks owns everything.
    std::fs::create_dir(guest.path("users")).unwrap();
    std::os::unix::fs::chown(guest.path("users"), Some(1), Some(1)).unwrap();
    let by_user = ArchiveIn {
        user: "daemon".to_owned(),
        ..into(&guest.text("users/tree"))
    };
    unpack(&guest, by_user, packed.clone()).await.unwrap();
    let tool = std::fs::metadata(guest.path("users/tree/tool")).unwrap();
    assert_eq!((tool.uid(), tool.mode() & 0o7777), (1, 0o755));
    let refused = ArchiveIn {
        user: "daemon".to_owned(),
        keep_owner: true,
        ..into(&guest.text("users/tree"))
    };
    assert_eq!(
        code(unpack(&guest, refused, packed).await),
        ErrorCode::PermissionDenied
    );
}

#[tokio::test]
async fn archives_of_other_tools_are_read_and_ours_by_them() {
    let guest = TestGuest::start().await;
    guest.shell(&format!(
        "cd {}; mkdir t; echo hi > t/a; ln t/a t/hard; ln -s a t/soft; mkfifo t/pipe; tar -cf t.tar t",
        guest.text("")
    )).await;
    let packed = std::fs::read(guest.path("t.tar")).unwrap();
    unpack(&guest, into(&guest.text("out")), packed)
        .await
        .unwrap();
    let a = std::fs::metadata(guest.path("out/t/a")).unwrap();
    let hard = std::fs::metadata(guest.path("out/t/hard")).unwrap();
    assert_eq!(a.ino(), hard.ino());
    assert_eq!(
        std::fs::read_to_string(guest.path("out/t/soft")).unwrap(),
        "hi\n"
    );
    std::fs::write(guest.path("ours.tar"), pack(&guest, &guest.text("t")).await).unwrap();
    let listed = guest
        .shell(&format!("tar -tf {}", guest.text("ours.tar")))
        .await;
    assert_eq!(listed.exit.code, 0, "{:?}", listed.stderr);
    let mut lines: Vec<String> = String::from_utf8(listed.stdout.to_vec())
        .unwrap()
        .lines()
        .map(|line| line.trim_start_matches("./").to_owned())
        .collect();
    lines.sort();
    assert_eq!(lines, [".", "a", "hard", "pipe", "soft"]);
}

#[tokio::test]
async fn nothing_lands_outside_of_the_target() {
    let guest = TestGuest::start().await;
    let outside = guest.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("victim"), "safe").unwrap();
    let outside_text = guest.text("outside");
    let file = |path: &str| entry(EntryType::Regular, path, "", b"evil");
    let link = |path: &str, to: &str| entry(EntryType::Symlink, path, to, b"");
    let attacks = [
        ("climbing", vec![file("../outside/victim")]),
        ("climbing inside", vec![file("a/../../outside/victim")]),
        (
            "an absolute link",
            vec![link("x", &outside_text), file("x/victim")],
        ),
        (
            "a relative link",
            vec![link("x", "../outside"), file("x/victim")],
        ),
        (
            "a link to a link",
            vec![link("y", "."), link("x", "y/../outside"), file("x/victim")],
        ),
        (
            "a directory through a link",
            vec![
                link("x", "../outside"),
                entry(EntryType::Directory, "x/made", "", b""),
            ],
        ),
        (
            "a hard link out",
            vec![entry(EntryType::Link, "x", "../outside/victim", b"")],
        ),
        (
            "a hard link through a link",
            vec![
                link("x", "../outside"),
                entry(EntryType::Link, "h", "x/victim", b""),
            ],
        ),
        ("a device", vec![entry(EntryType::Char, "x", "", b"")]),
    ];
    for (name, entries) in attacks {
        let target = guest.text("target");
        let got = unpack(&guest, into(&target), archive(&entries)).await;
        assert!(got.is_err(), "{name} was unpacked");
        let left: Vec<_> = std::fs::read_dir(&outside).unwrap().collect();
        assert_eq!(left.len(), 1, "{name}");
        let victim = std::fs::metadata(outside.join("victim")).unwrap();
        assert_eq!(victim.nlink(), 1, "{name}");
        assert_eq!(
            std::fs::read_to_string(outside.join("victim")).unwrap(),
            "safe",
            "{name}"
        );
        std::fs::remove_dir_all(&target).unwrap();
    }
}

#[tokio::test]
async fn links_planted_in_the_target_are_replaced_or_refused() {
    let guest = TestGuest::start().await;
    std::fs::create_dir(guest.path("outside")).unwrap();
    std::fs::write(guest.path("outside/victim"), "safe").unwrap();
    std::fs::create_dir(guest.path("target")).unwrap();
    std::os::unix::fs::symlink("../outside/victim", guest.path("target/file")).unwrap();
    std::os::unix::fs::symlink("../outside", guest.path("target/dir")).unwrap();
    std::fs::create_dir(guest.path("target/real")).unwrap();
    std::os::unix::fs::symlink("real", guest.path("target/inside")).unwrap();
    let file = |path: &str| archive(&[entry(EntryType::Regular, path, "", b"new")]);
    let target = guest.text("target");
    unpack(&guest, into(&target), file("file")).await.unwrap();
    assert!(!guest.path("target/file").is_symlink());
    assert_eq!(
        code(unpack(&guest, into(&target), file("dir/victim")).await),
        ErrorCode::PermissionDenied
    );
    // A link that stays inside is followed: distributions have many.
    unpack(&guest, into(&target), file("inside/file"))
        .await
        .unwrap();
    assert!(guest.path("target/real/file").exists());
    assert_eq!(
        std::fs::read_to_string(guest.path("outside/victim")).unwrap(),
        "safe"
    );
}

#[tokio::test]
async fn a_broken_archive_is_refused() {
    let guest = TestGuest::start().await;
    let target = guest.text("target");
    let mut cut = archive(&[entry(EntryType::Regular, "file", "", &[1; 5000])]);
    cut.truncate(3000);
    assert!(matches!(
        unpack(&guest, into(&target), cut).await,
        Err(GuestError::Refused { .. })
    ));
    let garbage = vec![0x41; 4096];
    assert!(matches!(
        unpack(&guest, into(&target), garbage).await,
        Err(GuestError::Refused { .. })
    ));
    let mut empty = Builder::new(Vec::new());
    empty.finish().unwrap();
    let done = unpack(&guest, into(&target), empty.into_inner().unwrap()).await;
    assert_eq!(done.unwrap().entries, 0);
}

/// Whatever is wrong with the bytes is the sender's to put right, and is said so.
#[tokio::test]
async fn whatever_is_wrong_with_an_archive_is_told_as_invalid() {
    let guest = TestGuest::start().await;
    let good = archive(&[entry(EntryType::Regular, "file", "", &[7; 2000])]);
    let mut checksum = good.clone();
    checksum[150] ^= 1;
    let mut size = good.clone();
    size[124..136].copy_from_slice(b"not a number");
    for (what, bytes) in [
        ("cut in a header", good[..300].to_vec()),
        ("cut in a file", good[..1500].to_vec()),
        ("a wrong checksum", checksum),
        ("a size that is none", size),
        ("a compressed archive", b"\x1f\x8b\x08\0".repeat(400)),
        ("text", b"hello ".repeat(400)),
    ] {
        let target = guest.text(&format!("into {what}"));
        let refused = unpack(&guest, into(&target), bytes).await;
        let Err(GuestError::Refused { code, message }) = refused else {
            panic!("{what}: {refused:?}");
        };
        assert_eq!(code, ErrorCode::Invalid, "{what}: {message}");
        assert!(message.contains("archive"), "{what}: {message}");
    }
}
