//! `cove cp`, and what transfers cost the server.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::harness::Cove;

/// Larger than any buffer on the way.
const LARGE: usize = 200 * 1024 * 1024;
/// What the server may grow by for it, all its buffers together.
const GROWTH_KB: u64 = 48 * 1024;

fn peak_kb(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_large_file_goes_both_ways_and_the_server_stays_small() {
    let cove = Cove::start();
    cove.sandbox("box");
    cove.ok(["exec", "box", "--", "true"]);
    let large = cove.scratch().join("large");
    let mut content = vec![0u8; LARGE];
    for (index, chunk) in content.chunks_mut(8).enumerate() {
        let bytes = (index as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    std::fs::write(&large, &content).unwrap();
    let before = (
        peak_kb(cove.role_pid("control")),
        peak_kb(cove.role_pid("runner")),
    );
    cove.ok(["cp", large.to_str().unwrap(), "box:/tmp/large"]);
    let back = cove.scratch().join("back");
    cove.ok(["cp", "box:/tmp/large", back.to_str().unwrap()]);
    let after = (
        peak_kb(cove.role_pid("control")),
        peak_kb(cove.role_pid("runner")),
    );
    assert!(std::fs::read(&back).unwrap() == content);
    assert!(
        after.0 - before.0 < GROWTH_KB,
        "the control side grew from {} to {} kB",
        before.0,
        after.0
    );
    assert!(
        after.1 - before.1 < GROWTH_KB,
        "the runner grew from {} to {} kB",
        before.1,
        after.1
    );
}

#[test]
fn trees_keep_their_shape_modes_and_links() {
    let cove = Cove::start();
    cove.sandbox("box");
    let tree = cove.scratch().join("tree");
    std::fs::create_dir_all(tree.join("deep/er")).unwrap();
    std::fs::write(tree.join("deep/er/file"), "content").unwrap();
    std::fs::set_permissions(tree.join("deep/er/file"), PermissionsExt::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink("er/file", tree.join("deep/link")).unwrap();
    std::fs::create_dir(tree.join("empty")).unwrap();
    // Into a directory that is there, and as a name that is not.
    cove.ok(["cp", tree.to_str().unwrap(), "box:/tmp"]);
    cove.ok(["cp", tree.to_str().unwrap(), "box:/tmp/copy"]);
    for place in ["/tmp/tree", "/tmp/copy"] {
        let out = cove.scratch().join(place.replace('/', "_"));
        cove.ok(["cp", &format!("box:{place}"), out.to_str().unwrap()]);
        check(&out);
    }
    assert_eq!(
        cove.ok(["exec", "box", "--", "cat", "/tmp/tree/deep/link"]),
        "content"
    );
    let single = cove.scratch().join("single");
    std::fs::create_dir(&single).unwrap();
    cove.ok(["cp", "box:/tmp/copy/deep/er/file", single.to_str().unwrap()]);
    assert_eq!(
        std::fs::read_to_string(single.join("file")).unwrap(),
        "content"
    );
}

fn check(tree: &Path) {
    assert_eq!(
        std::fs::read_to_string(tree.join("deep/er/file")).unwrap(),
        "content"
    );
    let mode = std::fs::metadata(tree.join("deep/er/file"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o750);
    assert_eq!(
        std::fs::read_link(tree.join("deep/link")).unwrap(),
        Path::new("er/file")
    );
    assert!(tree.join("empty").is_dir());
}

#[test]
fn copies_can_begin_and_end_in_pipes() {
    let cove = Cove::start();
    cove.sandbox("box");
    assert!(
        cove.fed(["cp", "-", "box:/tmp/note"], b"from a pipe")
            .status
            .success()
    );
    assert_eq!(cove.ok(["cp", "box:/tmp/note", "-"]), "from a pipe");
    for (from, to, said) in [
        ("/no/such/file", "box:/tmp/x", "No such file"),
        ("box:/no/such/file", "/tmp", "/no/such/file"),
        ("/etc/hostname", "/tmp/x", "one end must be in a sandbox"),
        ("/etc/hostname", "nowhere:/tmp/x", "there is no sandbox"),
    ] {
        let output = cove.run(["cp", from, to]);
        assert_eq!(output.status.code(), Some(1), "{from} {to}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(said), "{told}");
    }
}

#[test]
fn several_sources_wildcards_contents_and_relative_paths() {
    let cove = Cove::start();
    cove.sandbox("box");
    let place = |name: &str| cove.scratch().join(name).to_str().unwrap().to_owned();
    for name in ["a.txt", "b.txt", "c.log"] {
        std::fs::write(place(name), name).unwrap();
    }
    std::fs::create_dir_all(place("dir/sub")).unwrap();
    std::fs::write(place("dir/sub/deep"), "deep").unwrap();
    // Several at once need a directory that is there.
    let refused = cove.run(["cp", &place("a.txt"), &place("b.txt"), "box:/tmp/nowhere"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("existing directory"), "{told}");
    cove.ok(["exec", "box", "--", "mkdir", "/tmp/in"]);
    cove.ok([
        "cp",
        &place("a.txt"),
        &place("b.txt"),
        &place("c.log"),
        "box:/tmp/in",
    ]);
    // The content of a directory, not the directory.
    cove.ok(["cp", &(place("dir") + "/."), "box:/tmp/in"]);
    let there = cove.ok(["exec", "box", "-c", "cd /tmp/in && find . -type f | sort"]);
    assert_eq!(there, "./a.txt\n./b.txt\n./c.log\n./sub/deep\n");
    // Wildcards are the sandbox's.
    std::fs::create_dir(place("out")).unwrap();
    cove.ok(["cp", "box:/tmp/i?/*.txt", &place("out")]);
    let names = || {
        let entries = std::fs::read_dir(place("out")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["a.txt", "b.txt"]);
    let nothing = cove.run(["cp", "box:/tmp/in/*.none", &place("out")]);
    assert_eq!(nothing.status.code(), Some(1));
    cove.ok(["cp", "box:/tmp/in/sub/.", &place("out")]);
    assert_eq!(names(), ["a.txt", "b.txt", "deep"]);
    // A relative path begins where commands start.
    cove.ok(["cp", &place("c.log"), "box:relative"]);
    assert_eq!(cove.ok(["exec", "box", "--", "cat", "relative"]), "c.log");
    assert_eq!(cove.ok(["cp", "box:relative", "-"]), "c.log");
}

#[test]
fn an_archive_copy_keeps_the_times_of_single_files() {
    let cove = Cove::start();
    cove.sandbox("box");
    let file = cove.scratch().join("dated");
    let back = cove.scratch().join("back");
    std::fs::write(&file, "old").unwrap();
    let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    std::fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_modified(at)
        .unwrap();
    cove.ok(["cp", "-a", file.to_str().unwrap(), "box:/tmp/dated"]);
    let inside = cove.ok(["exec", "box", "--", "stat", "-c", "%Y", "/tmp/dated"]);
    assert_eq!(inside, "1000000000\n");
    cove.ok(["cp", "-a", "box:/tmp/dated", back.to_str().unwrap()]);
    assert_eq!(std::fs::metadata(&back).unwrap().modified().unwrap(), at);
    assert_eq!(std::fs::read_to_string(&back).unwrap(), "old");
}
