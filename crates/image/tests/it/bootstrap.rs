//! The default image, built for real from this host's mirror.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use cove_image::{Progress, Source, Stage};
use cove_pool::Kind;

use crate::world::{Log, World, silent};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_image_is_built_once_for_all_data_directories_of_a_host() {
    let cache = tempfile::tempdir_in("/var/tmp").unwrap();
    let (first, second) = (
        World::with(cache.path(), |_| {}),
        World::with(cache.path(), |_| {}),
    );
    let (log, other_log) = (Log::default(), Log::default());
    let started = Instant::now();
    let (image, other) = tokio::join!(
        first.store.bootstrap_debian(log.sink()),
        second.store.bootstrap_debian(other_log.sink()),
    );
    let (image, other) = (image.unwrap(), other.unwrap());
    eprintln!("built and unpacked twice in {:.1?}", started.elapsed());

    let stages = |log: &Log| -> Vec<Stage> {
        let all = log.all().into_iter();
        all.filter_map(|event| match event {
            Progress::Bootstrapping { stage, .. } => Some(stage),
            _ => None,
        })
        .collect()
    };
    let (stages, other_stages) = (stages(&log), stages(&other_log));
    let builders = [&stages, &other_stages]
        .iter()
        .filter(|all| all.contains(&Stage::Installing))
        .count();
    let waiters = [&stages, &other_stages]
        .iter()
        .filter(|all| all.contains(&Stage::Waiting))
        .count();
    assert_eq!((builders, waiters), (1, 1), "{stages:?} {other_stages:?}");
    assert_eq!(image.layers, other.layers);
    let warnings: Vec<_> = log
        .all()
        .into_iter()
        .filter(|event| matches!(event, Progress::Warning(_)))
        .collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(log.all().last(), Some(&Progress::Done));

    assert_eq!(image.source, Source::Bootstrap);
    assert_eq!(first.store.resolve("debian").unwrap(), image);
    assert_eq!(first.store.resolve(image.id.as_str()).unwrap(), image);
    let root = first.store.root(&image);
    eprintln!("{} MB, {} files", image.size_bytes >> 20, count(&root));
    for program in [
        "bin/bash",
        "usr/bin/python3",
        "usr/bin/git",
        "usr/bin/gcc",
        "usr/bin/sudo",
        "usr/bin/apt-get",
    ] {
        assert!(root.join(program).exists(), "{program}");
    }
    for directory in [
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "home/user",
        "var/lib/apt/lists",
    ] {
        assert!(root.join(directory).is_dir(), "{directory}");
    }
    let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(
        passwd
            .lines()
            .any(|line| line.starts_with("user:x:1000:1000:")),
        "{passwd}"
    );
    assert_eq!(fs::metadata(root.join("home/user")).unwrap().uid(), 1000);
    assert_eq!(
        fs::metadata(root.join("usr/bin/sudo")).unwrap().mode() & 0o7777,
        0o4755
    );
    can_install_packages(&root);
    assert!(
        fs::write(root.join("x"), "").is_err(),
        "the image must be read-only"
    );

    let third = World::with(cache.path(), |_| {});
    let started = Instant::now();
    let again = third.store.bootstrap_debian(silent()).await.unwrap();
    eprintln!(
        "a further data directory was ready in {:.2?}",
        started.elapsed()
    );
    assert_eq!(again.layers, image.layers);
    let started = Instant::now();
    assert_eq!(third.store.bootstrap_debian(silent()).await.unwrap(), again);
    eprintln!("and answered again in {:.2?}", started.elapsed());
    assert_eq!(
        (third.volumes(Kind::Image), third.volumes(Kind::Staging)),
        (1, 0)
    );

    let kept: Vec<_> = fs::read_dir(cache.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(kept.len(), 3, "image, digest and lock: {kept:?}");
}

/// The package manager inside accepts the mirror's signatures: nothing in the image would work
/// for long without that. Runs on a throwaway overlay, with the host's network.
fn can_install_packages(root: &std::path::Path) {
    let work = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = format!(
        "mount -t tmpfs none . && mkdir upper work root
         mount -t overlay none -o lowerdir={},upperdir=upper,workdir=work root
         mount --rbind /dev root/dev && mount -t proc none root/proc && cp /etc/resolv.conf root/etc/
         chroot root sh -c 'apt-get update && apt-get install -y --no-install-recommends tree && tree --version'
         chroot root su user -c 'sudo id -u && python -c \"import ssl, venv\" && git --version'",
        root.display()
    );
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", &script])
        .current_dir(work.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn count(dir: &std::path::Path) -> usize {
    let mut total = 0;
    for entry in fs::read_dir(dir).unwrap().flatten() {
        total += 1;
        if entry.file_type().unwrap().is_dir() {
            total += count(&entry.path());
        }
    }
    total
}
