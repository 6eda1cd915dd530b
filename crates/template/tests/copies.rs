//! Where sources go, as the reference says.

use cove_template::copy::{Budget, Files, Item, Kind, Rules, place};

fn item(path: &str, kind: Kind<&'static str>, mode: u32) -> Item<&'static str> {
    Item {
        path: path.to_owned(),
        kind,
        mode,
        uid: 0,
        gid: 0,
        mtime: 0,
    }
}

fn go_on() -> bool {
    false
}

fn context() -> Files<&'static str> {
    let mut files = Files::default();
    for (path, content) in [
        ("a.txt", "a"),
        ("b.txt", "b"),
        ("c.md", "c"),
        ("dir/x", "x"),
        ("dir/sub/y.txt", "y"),
        ("we[ird", "w"),
    ] {
        files.insert(item(path, Kind::File(content), 0o644));
    }
    files.insert(item("empty", Kind::Directory, 0o700));
    files.insert(item("link", Kind::Symlink("dir/x".into()), 0o777));
    files.insert(item("dirlink", Kind::Symlink("dir".into()), 0o777));
    files.insert(item(
        "dir/up",
        Kind::Symlink("../../../a.txt".into()),
        0o777,
    ));
    files.insert(item("loop", Kind::Symlink("loop".into()), 0o777));
    files.insert(item("gone", Kind::Symlink("nothing".into()), 0o777));
    files
}

/// Paths of what is written for `COPY sources dest`, with `exists` already there.
fn copied(sources: &[&str], dest: &str, exists: &[&str]) -> Result<Vec<String>, String> {
    let files = context();
    let mut budget = Budget::new(&go_on);
    let mut trees = Vec::new();
    for source in sources {
        trees.extend(files.sources(source, &[], &mut budget)?);
    }
    let there = |path: &str| path.is_empty() || exists.contains(&path);
    let is_directory = there(dest.trim_matches('/'));
    let placed = place(trees, dest, is_directory, Rules::default(), there)?;
    Ok(placed.into_iter().map(|item| item.path).collect())
}

#[test]
fn files_and_directories_go_where_the_reference_says() {
    for (sources, dest, exists, expected) in [
        // A file to a name, into a directory that is named or is there.
        (&["a.txt"][..], "/f", &[][..], &["f"][..]),
        (&["a.txt"], "/d/", &[], &["d", "d/a.txt"]),
        (&["a.txt"], "/d", &["d"], &["d/a.txt"]),
        (&["a.txt"], "/p/q/f", &["p"], &["p/q", "p/q/f"]),
        (&["a.txt"], "/", &[], &["a.txt"]),
        // Of a directory its contents are copied.
        (
            &["dir"],
            "/d",
            &[],
            &["d", "d/sub", "d/sub/y.txt", "d/up", "d/x"],
        ),
        (
            &["dir/"],
            "/d/",
            &["d"],
            &["d/sub", "d/sub/y.txt", "d/up", "d/x"],
        ),
        (&["empty"], "/d", &[], &["d"]),
        (
            &["dir", "a.txt"],
            "/d/",
            &["d"],
            &["d/sub", "d/sub/y.txt", "d/up", "d/x", "d/a.txt"],
        ),
        // Patterns.
        (&["*.txt"], "/d/", &["d"], &["d/a.txt", "d/b.txt"]),
        (&["?.md"], "/f", &[], &["f"]),
        (&["dir/*/y.txt"], "/d/", &["d"], &["d/y.txt"]),
        (&["**/y.txt"], "/d/", &["d"], &["d/y.txt"]),
        (&["we[[]ird"], "/f", &[], &["f"]),
        // A link that is named is followed; one inside a directory stays one.
        (&["link"], "/f", &[], &["f"]),
        (&["dirlink/x"], "/f", &[], &["f"]),
        (
            &["dirlink"],
            "/d",
            &["d"],
            &["d/sub", "d/sub/y.txt", "d/up", "d/x"],
        ),
        // Out of the context is in it.
        (&["../a.txt"], "/f", &[], &["f"]),
        (&["/a.txt"], "/f", &[], &["f"]),
        (&["dir/up"], "/f", &[], &["f"]),
    ] {
        assert_eq!(
            copied(sources, dest, exists).as_deref(),
            Ok(&expected.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..]),
            "{sources:?} {dest}"
        );
    }
}

#[test]
fn what_cannot_be_copied_is_an_error() {
    assert!(
        copied(&["nothing"], "/f", &[])
            .unwrap_err()
            .contains("does not exist")
    );
    assert!(
        copied(&["gone"], "/f", &[])
            .unwrap_err()
            .contains("does not exist")
    );
    assert!(copied(&["loop"], "/f", &[]).unwrap_err().contains("links"));
    assert!(
        copied(&["*.txt"], "/f", &[])
            .unwrap_err()
            .contains("end it with /")
    );
    assert_eq!(
        context().sources("*.none", &[], &mut Budget::new(&go_on)),
        Ok(Vec::new())
    );
}

#[test]
fn owners_and_modes_reach_files_directories_and_new_parents() {
    let trees = context()
        .sources("dir", &["sub".to_owned()], &mut Budget::new(&go_on))
        .unwrap();
    let rules = Rules {
        chown: Some((7, 8)),
        chmod: Some(0o640),
    };
    let placed = place(trees, "/p/d/", false, rules, str::is_empty).unwrap();
    let shown: Vec<_> = placed
        .iter()
        .map(|i| (i.path.as_str(), i.mode, i.uid, i.gid))
        .collect();
    assert_eq!(
        shown,
        [
            ("p", 0o755, 7, 8),
            ("p/d", 0o755, 7, 8),
            ("p/d/up", 0o777, 7, 8),
            ("p/d/x", 0o640, 7, 8),
        ]
    );
}

#[test]
fn sources_that_multiply_are_refused() {
    let mut files = Files::default();
    for number in 0..1_000 {
        files.insert(item(&format!("a/b/c/d/e/{number}"), Kind::File("x"), 0o644));
    }
    let take = |sources: &[&str], exclude: &[String]| {
        let mut budget = Budget::new(&go_on);
        let mut count = 0;
        for source in sources {
            let trees = files.sources(source, exclude, &mut budget)?;
            count += trees.iter().map(|tree| tree.items.len()).sum::<usize>();
        }
        Ok::<usize, String>(count)
    };
    assert_eq!(take(&["."], &[]), Ok(1_005));
    assert_eq!(take(&["a/b/c/d/e/1*"], &[]), Ok(111));
    // The same again and again, a directory with all above it, one file, and files that are left out.
    assert!(take(&["."; 101], &[]).is_err());
    assert!(take(&["**"; 17], &[]).is_err());
    assert!(take(&vec!["a/b/c/d/e/1"; 100_002], &[]).is_err());
    assert!(take(&["."; 101], &["**".to_owned()]).is_err());
    let stop = || true;
    assert!(files.sources(".", &[], &mut Budget::new(&stop)).is_err());
    assert!(
        files
            .sources("*.none", &[], &mut Budget::new(&stop))
            .is_err()
    );
}

#[test]
fn placed_names_are_limited() {
    let mut files = Files::default();
    for number in 0..40_000 {
        files.insert(item(&number.to_string(), Kind::File("x"), 0o644));
    }
    let trees = files.sources(".", &[], &mut Budget::new(&go_on)).unwrap();
    let dest = format!("/{}/", "d".repeat(4_000));
    let placed = place(trees, &dest, true, Rules::default(), |_| true);
    assert!(placed.is_err_and(|problem| problem.contains("names have more than")));
}
