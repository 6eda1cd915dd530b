//! Layers over layers: whiteouts delete what lay below and nothing else.

use cove_unpack::{Failure, Warning};

use crate::cell::Cell;
use crate::tarball::Tar;

fn lower() -> Cell {
    let cell = Cell::layers();
    let archive = Tar::new()
        .file("keep", b"1")
        .file("gone", b"1")
        .file("d/a", b"1")
        .file("d/sub/b", b"1")
        .file("other/x", b"1");
    cell.unpack(&archive.end()).accepted();
    cell
}

#[test]
fn a_whiteout_deletes_a_file_or_a_tree_below() {
    let cell = lower();
    cell.unpack(
        &Tar::new()
            .file(".wh.gone", b"")
            .file(".wh.d", b"")
            .file("other/.wh.x", b"")
            .end(),
    )
    .accepted();
    assert!(cell.has("keep") && cell.has("other"));
    assert!(!cell.has("gone") && !cell.has("d") && !cell.has("other/x"));
    assert!(!cell.has(".wh.gone") && !cell.has(".wh.d"));
}

#[test]
fn a_whiteout_spares_what_its_own_layer_brings_in_either_order() {
    for own_first in [true, false] {
        let cell = lower();
        let own = Tar::new().file("d/new", b"2").file("gone", b"2");
        let whiteouts = |tar: Tar| tar.file(".wh.d", b"").file(".wh.gone", b"");
        let archive = if own_first {
            whiteouts(own)
        } else {
            whiteouts(Tar::new()).file("d/new", b"2").file("gone", b"2")
        };
        cell.unpack(&archive.end()).accepted();
        assert_eq!(
            (cell.read("d/new"), cell.read("gone")),
            ("2".to_owned(), "2".to_owned())
        );
        assert!(!cell.has("d/a") && !cell.has("d/sub"));
    }
}

#[test]
fn an_opaque_directory_hides_everything_below_but_its_own_content() {
    for own_first in [true, false] {
        let cell = lower();
        let mut archive = Tar::new().dir("d");
        if own_first {
            archive = archive.file("d/sub/new", b"2").file("d/.wh..wh..opq", b"");
        } else {
            archive = archive.file("d/.wh..wh..opq", b"").file("d/sub/new", b"2");
        }
        cell.unpack(&archive.end()).accepted();
        assert_eq!(cell.read("d/sub/new"), "2");
        assert!(!cell.has("d/a") && !cell.has("d/sub/b") && !cell.has("d/.wh..wh..opq"));
        assert!(cell.has("keep"));
    }
}

#[test]
fn a_whiteout_of_nothing_is_fine() {
    let cell = lower();
    let archive = Tar::new()
        .file(".wh.never", b"")
        .file("no/such/.wh.dir", b"")
        .file("no/.wh..wh..opq", b"");
    assert_eq!(cell.unpack(&archive.end()).accepted().1, []);
    assert!(cell.has("keep") && !cell.has("no"));
}

#[test]
fn a_whiteout_of_a_parent_or_of_nothing_named_is_refused() {
    for name in [".wh...", ".wh..", ".wh.", "d/.wh...", "d/.wh."] {
        let cell = lower();
        let failure = cell.unpack(&Tar::new().file(name, b"").end()).refused();
        assert!(
            matches!(failure, Failure::UnsafePath { .. }),
            "{name}: {failure:?}"
        );
        assert!(cell.has("keep") && cell.has("d/a"));
    }
}

#[test]
fn a_whiteout_through_a_symlink_stays_inside() {
    let cell = Cell::layers();
    let archive = Tar::new()
        .symlink("up", "../outside")
        .symlink("d", "/")
        .file("victim", b"");
    cell.unpack(&archive.end()).accepted();
    cell.unpack(
        &Tar::new()
            .file("up/.wh.secret", b"")
            .file("d/.wh.victim", b"")
            .end(),
    )
    .accepted();
    assert!(!cell.has("victim") && cell.has("up"));
}

#[test]
fn bookkeeping_of_other_storage_drivers_is_ignored_with_a_warning() {
    let cell = lower();
    let (_, warnings) = cell
        .unpack(
            &Tar::new()
                .file(".wh..wh.plnk/1", b"")
                .file(".wh..wh.aufs", b"")
                .end(),
        )
        .accepted();
    assert_eq!(
        warnings,
        [Warning::WhiteoutIgnored {
            path: ".wh..wh.aufs".to_owned()
        }]
    );
    assert!(!cell.has(".wh..wh.aufs"));
}

#[test]
fn in_a_whole_tree_such_names_are_ordinary_files() {
    let cell = Cell::new();
    cell.unpack(&Tar::new().file("a", b"1").file(".wh.a", b"2").end())
        .accepted();
    assert_eq!(
        (cell.read("a"), cell.read(".wh.a")),
        ("1".to_owned(), "2".to_owned())
    );
}

#[test]
fn a_layer_replaces_a_symlink_below_by_its_own_directory() {
    let cell = Cell::layers();
    cell.unpack(
        &Tar::new()
            .file("usr/lib/a", b"1")
            .symlink("lib", "usr/lib")
            .end(),
    )
    .accepted();
    cell.unpack(&Tar::new().dir("lib").file("lib/b", b"2").end())
        .accepted();
    assert_eq!(cell.read("lib/b"), "2");
    assert!(!cell.has("usr/lib/b") && cell.has("usr/lib/a"));
}

#[test]
fn a_hard_link_reaches_files_of_the_layers_below() {
    let cell = lower();
    cell.unpack(&Tar::new().hard_link("second", "d/sub/b").end())
        .accepted();
    assert_eq!(cell.read("second"), "1");
}

#[test]
fn renames_elsewhere_on_the_host_do_not_disturb() {
    let elsewhere = tempfile::tempdir().unwrap();
    let (one, other) = (elsewhere.path().join("1"), elsewhere.path().join("2"));
    std::fs::write(&one, "").unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let mut tar = Tar::new()
        .dir("a")
        .dir("a/b")
        .dir("c")
        .symlink("a/up", "../a/b");
    for number in 0..1000 {
        // In turns, so that the directory before is never the right one.
        tar = tar
            .file(&format!("a/up/{number}"), b"")
            .file(&format!("c/{number}"), b"");
    }
    let archive = tar.end();
    let cell = Cell::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::rename(&one, &other).unwrap();
                std::fs::rename(&other, &one).unwrap();
            }
        });
        let unpacked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cell.unpack(&archive).accepted()
        }));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(unpacked.is_ok(), "it was disturbed");
    });
    assert!(cell.has("a/b/999"));
}
