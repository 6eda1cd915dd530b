//! Durable snapshots through the real server and engine, with a directory as object storage.

use super::harness::{Cove, wait_for};

#[test]
fn a_durable_snapshot_comes_back_from_object_storage_whole() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    // The control side goes through it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).unwrap();
    let bucket = place.path().join("bucket");
    let address = format!("file://{}", bucket.display());
    let mut cove = Cove::start_with(&["--objects", &address, "--objects-local-mb", "1"]);
    let found = cove.json(["doctor"]);
    let findings = found[0]["findings"].as_array().unwrap();
    let of = |name: &str| findings.iter().find(|one| one["name"] == name).cloned();
    assert_eq!(of("object storage").unwrap()["level"], "ok", "{found}");

    cove.sandbox("box");
    let make = "head -c 8000000 /dev/urandom > /big; mkdir -p /d; echo words > /d/f; chmod 640 /d/f; ln -s f /d/l; sync";
    cove.ok(["exec", "box", "-c", make]);
    let tell = "md5sum /big; cat /d/l; stat -c '%a %u %g' /d/f; readlink /d/l";
    let before = cove.ok(["exec", "box", "-c", tell]);
    let first = cove.json(["snapshot", "box", "--name", "first", "--durable"]);
    assert_eq!(first["object_storage"], "stored");
    let size = |path: &std::path::Path| -> u64 {
        let mut next = vec![path.to_owned()];
        let mut sum = 0;
        while let Some(path) = next.pop() {
            let found = std::fs::symlink_metadata(&path).unwrap();
            match found.is_dir() {
                true => next.extend(
                    std::fs::read_dir(&path)
                        .unwrap()
                        .map(|one| one.unwrap().path()),
                ),
                false => sum += found.len(),
            }
        }
        sum
    };
    let once = size(&bucket);
    cove.ok(["exec", "box", "-c", "echo more >> /d/f; sync"]);
    cove.ok(["snapshot", "box", "--name", "second", "--durable"]);
    let twice = size(&bucket);
    assert!(twice < once + once / 10 + (1 << 20), "{once} then {twice}");

    // What only snapshots hold is measured at a start, and is more than the host may keep.
    cove.ok(["rm", "box"]);
    cove.stop();
    cove.serve();
    let shown = |name: &str| cove.json(["snapshot", "show", name]);
    wait_for("the copy on the host is evicted", || {
        (shown("first")["on_host"] == false).then_some(())
    });
    let words = cove.ok(["snapshot", "show", "first"]);
    assert!(words.contains("in object storage"), "{words}");
    cove.ok(["create", "--snapshot", "first", "--name", "back"]);
    assert_eq!(cove.ok(["exec", "back", "-c", tell]), before);
    cove.ok(["rollback", "back", "second"]);
    assert!(cove.ok(["exec", "back", "-c", "cat /d/f"]).contains("more"));

    // Whoever damages the bucket is found out, and nothing is made of it.
    wait_for("the copy is evicted again", || {
        (shown("first")["on_host"] == false).then_some(())
    });
    let mut next = vec![bucket.clone()];
    while let Some(path) = next.pop() {
        if path.is_dir() {
            next.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|one| one.unwrap().path()),
            );
        } else if path.display().to_string().contains("chunks") {
            let mut bytes = std::fs::read(&path).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let refused = cove.run(["create", "--snapshot", "first", "--name", "never"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && told.contains("damaged"),
        "{told}"
    );
    assert!(!cove.run(["show", "never"]).status.success());
    let log = cove.log();
    assert!(!log.contains("was refused a system call"), "{log}");
    cove.stop();
}
