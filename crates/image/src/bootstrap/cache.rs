//! The host-wide cache of the bootstrapped image, and the build that fills it.
//!
//! `<key>.tar` is the image and `<key>.json` its digest, written last: without it the tar does not
//! count. `<key>.lock` is held while looking, building and opening. The build runs in its own pid
//! and mount namespace, so that its end, also by being killed, takes every process and every mount
//! of it along; mmdebstrap runs in a user namespace besides (`enter.sh`), as ids that own nothing on the host.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::Instant;

use super::recipe::{self, Recipe};
use super::sources::Host;
use super::{BootstrapError, Stage};
use crate::error::ImageError;
use crate::image::host_arch;
use crate::layer::blocking;
use crate::progress::{Progress, Report};

/// A build takes a minute on a slow machine with a near mirror; this is for the far ones.
const MAX_BUILD: Duration = Duration::from_secs(3600);
/// How often to look whether another build has ended.
const LOCK_RETRY: Duration = Duration::from_millis(100);
/// Where a build works, beside the image it makes.
const BUILD_SUFFIX: &str = ".build";
/// Where a build in a user namespace finds its directory. An empty directory: below others there may be a
/// mirror or keys of the host, and /mnt is used by mmdebstrap.
const INSIDE: &str = "/run/cove-build";
const ENTER: &str = include_str!("enter.sh");
const KEPT_OUTPUT_LINES: usize = 12;
const MAX_OUTPUT_LINE_BYTES: usize = 300;
/// The build's words are read a line at a time; none is longer.
const MAX_READ_BYTES: usize = 64 << 10;

/// The image, ready to unpack.
pub(super) struct Cached {
    pub file: OwnedFd,
    pub digest: String,
}

#[derive(Serialize, Deserialize)]
struct Note {
    digest: String,
    bytes: u64,
}

/// Opens the host's image, building it first where there is none.
pub(super) async fn obtain(
    dir: &Path,
    uid_base: u32,
    recipe: &Recipe,
    host: &Host,
    report: &Report,
) -> Result<Cached, ImageError> {
    let version = recipe::version(recipe, host, debian_arch());
    let stem = recipe.stem(host, host_arch());
    let key = format!("{stem}-{version}");
    let place = dir.to_owned();
    blocking(move || prepare_dir(&place)).await?;
    let _lock = lock(dir.join(format!("{key}.lock")), report).await?;
    let (tar, note) = (
        dir.join(format!("{key}.tar")),
        dir.join(format!("{key}.json")),
    );
    if let Some(cached) = open(&tar, &note) {
        return Ok(cached);
    }
    build(&key, uid_base, recipe, host, (&tar, &note), report).await?;
    let (place, kept) = (dir.to_owned(), key.clone());
    blocking(move || {
        remove_others(&place, &stem, &kept);
        Ok(())
    })
    .await?;
    open(&tar, &note).ok_or_else(|| {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        ImageError::file("opening", &tar)(missing)
    })
}

/// Whoever can write here decides what runs in every sandbox.
fn prepare_dir(dir: &Path) -> Result<(), ImageError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(ImageError::file("creating", dir))?;
    let metadata = fs::symlink_metadata(dir).map_err(ImageError::file("reading", dir))?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !ours || metadata.mode() & 0o022 != 0 {
        return Err(BootstrapError::UnsafeCache {
            path: dir.to_owned(),
        }
        .into());
    }
    Ok(())
}

async fn lock(path: PathBuf, report: &Report) -> Result<File, ImageError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(ImageError::file("opening", &path))?;
    let deadline = Instant::now() + MAX_BUILD;
    let mut told = false;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ImageError::file("locking", &path)(error.into())),
        }
        if Instant::now() >= deadline {
            return Err(BootstrapError::Deadline {
                seconds: MAX_BUILD.as_secs(),
            }
            .into());
        }
        if !std::mem::replace(&mut told, true) {
            report.send(Progress::Bootstrapping {
                stage: Stage::Waiting,
                percent: 0,
            });
        }
        tokio::time::sleep(LOCK_RETRY).await;
    }
}

fn open(tar: &Path, note: &Path) -> Option<Cached> {
    let note: Note = serde_json::from_slice(&fs::read(note).ok()?).ok()?;
    let file = File::open(tar).ok()?;
    let whole = file.metadata().ok()?.len() == note.bytes;
    whole.then(|| Cached {
        file: file.into(),
        digest: note.digest,
    })
}

async fn build(
    key: &str,
    uid_base: u32,
    recipe: &Recipe,
    host: &Host,
    (tar, note): (&Path, &Path),
    report: &Report,
) -> Result<(), ImageError> {
    if !recipe::is_tool_installed() {
        return Err(BootstrapError::NoTool.into());
    }
    // A fixed name, so that what a crash left is found and removed by the next build.
    let work = Work(tar.with_file_name(format!("{key}{BUILD_SUFFIX}")));
    work.clear();
    let place = Path::new(INSIDE);
    let script = recipe::build_script(recipe, host, debian_arch(), &proxies().await, place);
    // Programs of the image that drop privileges while being set up must get through.
    let made = fs::DirBuilder::new().mode(0o755).create(&work.0);
    made.map_err(ImageError::file("creating", &work.0))?;
    for (name, text) in [
        ("build.sh", &script.build[..]),
        ("customise.sh", script.customise),
        ("node.sh", script.node.unwrap_or("")),
        ("host.sources", &script.sources),
        ("enter.sh", ENTER),
    ] {
        let path = work.0.join(name);
        fs::write(&path, text).map_err(ImageError::file("writing", path))?;
    }
    run(&work.0, uid_base, report).await?;
    report.send(Progress::Bootstrapping {
        stage: Stage::Packing,
        percent: 97,
    });
    let (made, tar, note) = (work.0.join("image.tar"), tar.to_owned(), note.to_owned());
    blocking(move || keep(&made, &tar, &note)).await
}

/// Removes the images that the one just built takes the place of: same recipe, same host, made from an
/// older list or older sources; and what builds of them left that were killed. One that somebody is
/// reading or building right now is left; its lock files stay, because a lock that is deleted is no lock.
fn remove_others(dir: &Path, stem: &str, kept: &str) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(key) = name
            .strip_suffix(".tar")
            .or_else(|| name.strip_suffix(BUILD_SUFFIX))
        else {
            continue;
        };
        let version = key
            .strip_prefix(stem)
            .and_then(|rest| rest.strip_prefix('-'));
        let is_version = |text: &str| {
            text.len() == recipe::VERSION_LENGTH
                && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if key == kept || !version.is_some_and(is_version) {
            continue;
        }
        let Ok(lock) = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(format!("{key}.lock")))
        else {
            continue;
        };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // The note first: without it the tar does not count.
            let _ = fs::remove_file(dir.join(format!("{key}.json")));
            let _ = fs::remove_file(dir.join(format!("{key}.tar")));
            let _ = fs::remove_dir_all(dir.join(format!("{key}{BUILD_SUFFIX}")));
        }
    }
}

/// The build's directory, gone when dropped.
struct Work(PathBuf);

impl Work {
    fn clear(&self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.clear();
    }
}

async fn run(work: &Path, uid_base: u32, report: &Report) -> Result<(), ImageError> {
    let failed = |output: String| BootstrapError::Failed { output };
    std::os::unix::fs::chown(work, Some(uid_base), Some(uid_base))
        .map_err(ImageError::file("giving away", work))?;
    let mut child = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["sh", "-c", "exec sh \"$@\" 2>&1", "sh"])
        .arg(work.join("enter.sh"))
        .arg(work)
        .arg(uid_base.to_string())
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("LC_ALL", "C.UTF-8")
        .env("TMPDIR", INSIDE)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let output = child.stdout.take().expect("standard output was asked for");
    let watched = tokio::time::timeout(MAX_BUILD, watch(output, report)).await;
    let Ok(last_lines) = watched else {
        let _ = child.kill().await;
        return Err(BootstrapError::Deadline {
            seconds: MAX_BUILD.as_secs(),
        }
        .into());
    };
    let status = child
        .wait()
        .await
        .map_err(|error| failed(error.to_string()))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(last_lines).into())
    }
}

/// Turns the build's words into progress, and keeps the last of them.
async fn watch(output: impl tokio::io::AsyncRead + Unpin, report: &Report) -> String {
    let mut reader = BufReader::with_capacity(MAX_READ_BYTES, output);
    let mut meter = Meter::default();
    let mut last: VecDeque<String> = VecDeque::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let chunk = match reader.fill_buf().await {
            Ok([]) | Err(_) => break,
            Ok(chunk) => chunk,
        };
        // A line longer than the buffer is taken in pieces.
        let end = chunk
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(chunk.len(), |at| at + 1);
        line.extend_from_slice(&chunk[..end.min(MAX_OUTPUT_LINE_BYTES)]);
        reader.consume(end);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if let Some((stage, percent)) = meter.see(text) {
            report.send(Progress::Bootstrapping { stage, percent });
        }
        if !text.is_empty() {
            if last.len() == KEPT_OUTPUT_LINES {
                last.pop_front();
            }
            last.push_back(text.to_owned());
        }
    }
    Vec::from(last).join("\n")
}

/// How far a build is, from the lines both tools print. Percentages are shares of time measured.
#[derive(Default)]
struct Meter {
    stage: Option<Stage>,
    percent: u8,
    packages: u32,
    steps: u32,
}

impl Meter {
    fn see(&mut self, line: &str) -> Option<(Stage, u8)> {
        const STAGES: [(&str, Stage, u8); 11] = [
            ("I: running apt-get update", Stage::ReadingIndexes, 1),
            ("I: Retrieving InRelease", Stage::ReadingIndexes, 1),
            ("I: downloading packages", Stage::Downloading, 5),
            ("I: Retrieving ", Stage::Downloading, 5),
            ("I: extracting archives", Stage::Extracting, 20),
            ("I: Extracting ", Stage::Extracting, 20),
            ("I: installing essential", Stage::Installing, 25),
            ("I: Unpacking ", Stage::Installing, 25),
            ("I: installing remaining", Stage::Installing, 50),
            ("I: running ", Stage::Customising, 90),
            ("I: creating tarball", Stage::Packing, 93),
        ];
        let found = STAGES.iter().find(|(prefix, ..)| line.starts_with(prefix));
        if let Some((_, stage, percent)) = found {
            return self.at(*stage, *percent);
        }
        if let Some((_, rest)) = line.split_once(" upgraded, ")
            && let Some((count, _)) = rest.split_once(" newly installed")
        {
            self.packages = count.parse().unwrap_or(0);
            self.steps = 0;
        }
        let step = line.starts_with("Unpacking ") || line.starts_with("Setting up ");
        if step && self.stage == Some(Stage::Installing) && self.percent >= 50 && self.packages > 0
        {
            self.steps = (self.steps + 1).min(2 * self.packages);
            let share = 40 * self.steps / (2 * self.packages);
            return self.at(Stage::Installing, 50 + share as u8);
        }
        None
    }

    /// Only what is new, and never backwards.
    fn at(&mut self, stage: Stage, percent: u8) -> Option<(Stage, u8)> {
        if percent <= self.percent {
            return None;
        }
        self.percent = percent;
        self.stage = Some(stage);
        Some((stage, percent))
    }
}

/// Moves a finished build into the cache.
/// What the build made, as root's own. The build belongs to others, who may have put anything there.
fn made_file(made: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(made, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() != 1 {
        return Err(std::io::Error::other("the build left no plain file"));
    }
    let root = rustix::process::geteuid().as_raw();
    std::os::unix::fs::fchown(&file, Some(root), Some(root))?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    Ok(file)
}

fn keep(made: &Path, tar: &Path, note: &Path) -> Result<(), ImageError> {
    let written = (|| {
        let mut file = made_file(made)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        let mut bytes = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                count => {
                    hash.update(&buffer[..count]);
                    bytes += count as u64;
                }
            }
        }
        file.sync_all()?;
        let _ = fs::remove_file(note);
        fs::rename(made, tar)?;
        let text = serde_json::to_vec(&Note {
            digest: format!("sha256:{}", hex::encode(hash.finalize())),
            bytes,
        })?;
        let new_note = note.with_extension("json.new");
        fs::write(&new_note, text)?;
        File::open(&new_note)?.sync_all()?;
        fs::rename(&new_note, note)
    })();
    written.map_err(ImageError::file("keeping", tar))
}

/// The host's apt proxy and date check settings, as apt configuration lines: without them a host
/// that reaches its mirror only so could not build.
async fn proxies() -> Vec<String> {
    const WANTED: [&str; 3] = [
        "Acquire::http::Proxy ",
        "Acquire::https::Proxy ",
        "Acquire::Check-Valid-Until ",
    ];
    let Ok(output) = Command::new("apt-config")
        .arg("dump")
        .stdin(Stdio::null())
        .output()
        .await
    else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let wanted = |line: &&str| WANTED.iter().any(|prefix| line.starts_with(prefix));
    text.lines()
        .filter(wanted)
        .map(|line| line.trim_end_matches(';').to_owned())
        .collect()
}

/// This machine's architecture as Debian spells it.
fn debian_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "riscv64gc" | "riscv64" => "riscv64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_UID_BASE: u32 = 1_900_000_000;

    /// A build by this script, as mmdebstrap is run.
    async fn build_by(script: &str, work: &Path) -> Result<(), ImageError> {
        fs::write(work.join("enter.sh"), ENTER).unwrap();
        fs::write(work.join("build.sh"), script).unwrap();
        let report = Report::new(|_| {});
        run(work, TEST_UID_BASE, &report).await
    }

    #[tokio::test]
    async fn a_build_is_root_of_its_own_directory_and_nobody_on_the_host() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (secret, work) = (dir.path().join("secret"), dir.path().join("work"));
        fs::write(&secret, "of the host").unwrap();
        rustix::fs::chmod(&secret, Mode::RUSR | Mode::WUSR).unwrap();
        fs::create_dir(&work).unwrap();
        let script = format!(
            "set -eu\nid -u > uid\nchown 1000 uid\nmkdir t; unshare --mount mount -t tmpfs none t\n\
             if cat {0}; then echo read > leak; fi\n\
             if touch {0} /etc/cove-build-was-here; then echo written > leak; fi\n\
             if mknod device b 7 0; then echo made > leak; fi\n\
             echo done > image.tar\n",
            secret.display()
        );
        build_by(&script, &work).await.unwrap();
        assert_eq!(fs::read_to_string(work.join("uid")).unwrap(), "0\n");
        let owner = fs::metadata(work.join("uid")).unwrap().uid();
        assert_eq!(owner, TEST_UID_BASE + 1000);
        assert!(!work.join("leak").exists());
        let made = work.join("image.tar");
        drop(made_file(&made).unwrap());
        assert_eq!(fs::metadata(&made).unwrap().uid(), 0);
    }

    #[tokio::test]
    async fn a_build_that_fails_says_why() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let failed = build_by("echo no mirror; exit 3", dir.path()).await;
        let told = format!("{:?}", failed.unwrap_err());
        assert!(told.contains("no mirror"), "{told}");
    }

    #[test]
    fn what_a_build_left_is_taken_as_a_plain_file_of_its_own_only() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, made) = (dir.path().join("secret"), dir.path().join("image.tar"));
        fs::write(&secret, "of the host").unwrap();
        std::os::unix::fs::symlink(&secret, &made).unwrap();
        assert!(made_file(&made).is_err());
        fs::remove_file(&made).unwrap();
        fs::hard_link(&secret, &made).unwrap();
        assert!(made_file(&made).is_err());
        fs::remove_file(&made).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        let (place, kind) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(place, &made, kind, mode, 0).unwrap();
        assert!(made_file(&made).is_err());
    }

    #[test]
    fn only_older_images_of_the_same_recipe_go_and_none_that_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let images = [
            "debian-stable-amd64-0123456789ab",
            "debian-stable-amd64-111111111111",
            "debian-stable-amd64-222222222222",
            "debian-stable-amd64-node-111111111111",
            "debian-other-amd64-111111111111",
            "something",
        ];
        for image in images {
            fs::write(dir.path().join(format!("{image}.tar")), "").unwrap();
            fs::write(dir.path().join(format!("{image}.json")), "").unwrap();
        }
        // Killed in the middle of a build, and a build that goes on.
        let builds = ["333333333333", "222222222222"].map(|version| {
            dir.path()
                .join(format!("debian-stable-amd64-{version}.build"))
        });
        for build in &builds {
            fs::create_dir_all(build.join("root/etc")).unwrap();
        }
        let busy = File::create(dir.path().join("debian-stable-amd64-222222222222.lock")).unwrap();
        rustix::fs::flock(&busy, FlockOperation::LockExclusive).unwrap();
        remove_others(dir.path(), "debian-stable-amd64", images[0]);
        let left: Vec<&str> = images
            .into_iter()
            .filter(|image| dir.path().join(format!("{image}.tar")).exists())
            .collect();
        let gone = images[1];
        assert!(
            !left.contains(&gone) && left.len() == images.len() - 1,
            "{left:?}"
        );
        assert!(!dir.path().join(format!("{gone}.json")).exists());
        assert_eq!(builds.map(|build| build.exists()), [false, true]);
    }

    #[test]
    fn progress_follows_the_build_and_never_runs_backwards() {
        let mut meter = Meter::default();
        assert_eq!(
            meter.see("I: running apt-get update..."),
            Some((Stage::ReadingIndexes, 1))
        );
        assert_eq!(
            meter.see("I: downloading packages with apt..."),
            Some((Stage::Downloading, 5))
        );
        assert_eq!(meter.see("Setting up libc6"), None);
        assert_eq!(
            meter.see("I: installing remaining packages"),
            Some((Stage::Installing, 50))
        );
        meter.see("0 upgraded, 2 newly installed, 0 to remove");
        assert_eq!(meter.see("Unpacking a"), Some((Stage::Installing, 60)));
        for _ in 0..20 {
            meter.see("Setting up a");
        }
        assert_eq!(meter.percent, 90);
        assert_eq!(meter.see("I: installing essential packages"), None);
        assert_eq!(
            meter.see("I: creating tarball..."),
            Some((Stage::Packing, 93))
        );
    }
}
