//! Random archives: the harmless ones must arrive as GNU tar unpacks them, and the harmful ones
//! must end in a typed answer. The cell checks after each that nothing outside has changed.

use std::io::Write;
use std::process::{Command, Stdio};

use cove_unpack::UnpackError;
use proptest::prelude::*;

use crate::cell::{Cell, listing};
use crate::tarball::{Header, Tar, gzip, zstd};

#[derive(Debug, Clone)]
enum Item {
    File(String, Vec<u8>, u32, u64),
    Directory(String, u32),
    Symlink(String, String),
    HardLink(String, String),
}

fn tar(items: &[Item]) -> Tar {
    items.iter().fold(Tar::new(), |tar, item| match item {
        Item::File(path, body, mode, uid) => {
            let (path, size) = (path.as_bytes(), body.len() as u64);
            tar.entry(
                Header {
                    path,
                    size,
                    mode: *mode,
                    uid: *uid,
                    ..Header::default()
                },
                body,
            )
        }
        Item::Directory(path, mode) => tar.entry(
            Header {
                path: path.as_bytes(),
                kind: b'5',
                mode: *mode,
                ..Header::default()
            },
            b"",
        ),
        Item::Symlink(path, target) => tar.symlink(path, target),
        Item::HardLink(path, target) => tar.hard_link(path, target),
    })
}

/// Few names, so that entries meet: the same path as a file, a directory and a link.
fn harmless_path(last: &'static str) -> impl Strategy<Value = String> {
    let directory = prop::sample::select(vec!["", "a/", "b/", "a/c/", "b/d/e/"]);
    (
        directory,
        prop::sample::select(last.chars().collect::<Vec<_>>()),
    )
        .prop_map(|(directory, name)| format!("{directory}{name}"))
}

/// Names of directories and of other things never meet, so any order of entries is harmless.
fn harmless() -> impl Strategy<Value = Item> {
    let body = prop::collection::vec(any::<u8>(), 0..2000);
    prop_oneof![
        (harmless_path("fgh"), body, 0u32..0o7777, 0u64..65_536)
            .prop_map(|(path, body, mode, uid)| Item::File(path, body, mode, uid)),
        (
            prop::sample::select(vec!["a", "b", "a/c", "b/d", "b/d/e", "z"]),
            0u32..0o7777
        )
            .prop_map(|(path, mode)| Item::Directory(path.to_owned(), mode)),
        (harmless_path("st"), "[a-z/.]{1,20}")
            .prop_map(|(path, target)| Item::Symlink(path, target)),
    ]
}

fn hostile_path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "a",
        "b",
        "link",
        "..",
        ".",
        "",
        "outside",
        ".wh.a",
        ".wh..wh..opq",
        ".wh...",
    ]);
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
}

fn hostile() -> impl Strategy<Value = Item> {
    let outside = prop::sample::select(vec![
        "../outside",
        "/",
        "..",
        "a",
        "../outside/secret",
        "link",
        "a/b",
    ]);
    prop_oneof![
        (
            hostile_path(),
            prop::collection::vec(any::<u8>(), 0..600),
            0u32..0o7777,
            0u64..66_000
        )
            .prop_map(|(path, body, mode, uid)| Item::File(path, body, mode, uid)),
        (hostile_path(), 0u32..0o7777).prop_map(|(path, mode)| Item::Directory(path, mode)),
        (hostile_path(), outside.clone())
            .prop_map(|(path, target)| Item::Symlink(path, target.to_owned())),
        (hostile_path(), outside)
            .prop_map(|(path, target)| Item::HardLink(path, target.to_owned())),
    ]
}

/// A typed answer: the program neither crashed nor hung nor babbled.
fn answered(cell: &Cell, archive: &[u8]) {
    match cell.unpack(archive).result {
        Ok(_) | Err(UnpackError::Refused(_)) => {}
        Err(other) => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn harmless_archives_arrive_as_gnu_tar_unpacks_them(
        items in prop::collection::vec(harmless(), 1..25),
        packing in 0..3,
    ) {
        let plain = tar(&items).end();
        let packed = match packing {
            0 => plain.clone(),
            1 => gzip(&plain),
            _ => zstd(&plain),
        };
        let cell = Cell::new();
        cell.unpack(&packed).accepted();
        let reference = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut gnu = Command::new("tar")
            .args(["--extract", "--absolute-names", "--preserve-permissions", "--numeric-owner", "--same-owner", "--delay-directory-restore"])
            .current_dir(reference.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        gnu.stdin.take().unwrap().write_all(&plain).unwrap();
        prop_assert!(gnu.wait().unwrap().success());
        let mut expected = listing(reference.path());
        let mut found = listing(&cell.target());
        // The root and parents that no entry names have the time of their making.
        for tree in [&mut expected, &mut found] {
            let named = |path: &str| items.iter().any(|item| matches!(item, Item::Directory(name, _) if name == path));
            tree.retain(|path, words| {
                let path = path.to_str().unwrap();
                !words.starts_with('4') || named(path)
            });
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn hostile_archives_get_a_typed_answer(
        lower in prop::collection::vec(hostile(), 0..6),
        upper in prop::collection::vec(hostile(), 1..12),
    ) {
        let cell = Cell::layers();
        answered(&cell, &tar(&lower).end());
        answered(&cell, &tar(&upper).end());
    }

    #[test]
    fn damaged_archives_get_a_typed_answer(
        items in prop::collection::vec(harmless(), 1..8),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        packing in 0..3,
        damage_packed in any::<bool>(),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let hurt = |bytes: &mut Vec<u8>| {
            for (at, value) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
        };
        let mut plain = tar(&items).end();
        if !damage_packed {
            hurt(&mut plain);
        }
        let mut packed = match packing {
            0 => plain,
            1 => gzip(&plain),
            _ => zstd(&plain),
        };
        if damage_packed {
            hurt(&mut packed);
        }
        answered(&Cell::layers(), &packed);
    }
}
