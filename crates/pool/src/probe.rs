//! What a machine offers a pool, one finding per question, for `cove doctor`. Looks, never changes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::attach;
use crate::config::{Backend, Layout};
use crate::space;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Good,
    /// Works, with something lost.
    Degraded,
    /// Does not work.
    Missing,
}

/// The answer to one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// A stable short name of what was looked at.
    pub check: &'static str,
    pub status: Status,
    pub detail: String,
    /// What to do about it.
    pub fix: Option<&'static str>,
}

pub(crate) fn probe(dir: &Path) -> Vec<Finding> {
    let place = nearest_existing(dir);
    let layout = Layout::new(dir);
    let on_btrfs = is_on_hosts_btrfs(&layout, &place);
    let root = root_user();
    let kernel = kernel_btrfs();
    let mut findings = vec![root.clone(), kernel.clone()];
    let mut usable = good(&root) && good(&kernel);
    if !on_btrfs {
        let needed = [mkfs(), loop_devices()];
        usable &= needed.iter().all(good);
        findings.extend(needed);
    }
    let quotas = simple_quotas(on_btrfs);
    let limited = good(&quotas);
    findings.push(quotas);
    findings.push(chosen(&layout, on_btrfs, usable, limited));
    findings.extend(room(&place));
    findings
}

/// Whether the pool lies, or would lie, on a btrfs of the host's. A loop file's own does not count.
fn is_on_hosts_btrfs(layout: &Layout, place: &Path) -> bool {
    let root = match made_with(layout) {
        Some(Backend::BtrfsLoop) => None,
        _ => Some(layout.root()),
    };
    root.iter()
        .map(PathBuf::as_path)
        .chain([place])
        .any(|path| attach::is_on_btrfs(path).unwrap_or(false))
}

fn made_with(layout: &Layout) -> Option<Backend> {
    let word = fs::read_to_string(layout.marker()).ok()?;
    Backend::from_word(word.trim())
}

fn good(finding: &Finding) -> bool {
    finding.status == Status::Good
}

fn finding(
    check: &'static str,
    status: Status,
    detail: impl Into<String>,
    fix: &'static str,
) -> Finding {
    Finding {
        check,
        status,
        detail: detail.into(),
        fix: (status != Status::Good).then_some(fix),
    }
}

fn root_user() -> Finding {
    let (status, detail) = if rustix::process::geteuid().is_root() {
        (Status::Good, "running as root")
    } else {
        (
            Status::Degraded,
            "not running as root: nothing can be mounted",
        )
    };
    finding("pool.root", status, detail, "run as root")
}

fn kernel_btrfs() -> Finding {
    let loaded = fs::read_to_string("/proc/filesystems")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "btrfs"));
    let (status, detail) = if loaded {
        (Status::Good, "the kernel has btrfs")
    } else if module_exists() {
        (
            Status::Good,
            "the kernel has btrfs as a module, loaded on first use",
        )
    } else {
        (Status::Degraded, "the kernel has no btrfs")
    };
    finding(
        "pool.btrfs",
        status,
        detail,
        "install the kernel's btrfs module (modprobe btrfs)",
    )
}

fn module_exists() -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let folder = Path::new("/lib/modules").join(release);
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        fs::read_to_string(folder.join(list)).is_ok_and(|text| text.contains("/btrfs.ko"))
    })
}

fn mkfs() -> Finding {
    let (status, detail) = match attach::find_mkfs() {
        Some(path) => (Status::Good, format!("{} is there", path.display())),
        None => (Status::Degraded, "mkfs.btrfs is not installed".to_owned()),
    };
    finding(
        "pool.mkfs",
        status,
        detail,
        "install the package btrfs-progs",
    )
}

fn loop_devices() -> Finding {
    let control = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control");
    let (status, detail) = match control {
        Ok(_) => (Status::Good, "loop devices are available".to_owned()),
        Err(e) => (
            Status::Degraded,
            format!("/dev/loop-control cannot be opened: {e}"),
        ),
    };
    finding(
        "pool.loop",
        status,
        detail,
        "load the loop module, or put the data directory on btrfs",
    )
}

fn simple_quotas(on_btrfs: bool) -> Finding {
    // The features folder is there once the module is loaded; a module not yet loaded is judged by
    // the kernel's version alone.
    let features = Path::new("/sys/fs/btrfs/features");
    let known =
        features.join("simple_quota").exists() || (!features.exists() && kernel_at_least(6, 7));
    let (status, detail) = match (known, on_btrfs) {
        (true, false) => (
            Status::Good,
            "disk limits are enforced with btrfs simple quotas",
        ),
        (true, true) => (
            Status::Good,
            "disk limits are enforced with btrfs simple quotas, which opening the pool switches on for \
             the whole host filesystem; from then on only Linux 6.7 and later can mount it",
        ),
        (false, _) => (
            Status::Degraded,
            "this kernel has no btrfs simple quotas: disk limits are refused",
        ),
    };
    finding("pool.quota", status, detail, "use Linux 6.7 or later")
}

fn kernel_at_least(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|n| n.parse::<u32>().ok());
    let running = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    running >= (major, minor)
}

fn chosen(layout: &Layout, on_btrfs: bool, usable: bool, limited: bool) -> Finding {
    const FIX: &str = "fix the findings above; a data directory keeps the backend it was made with";
    let made_with = made_with(layout);
    let backend = made_with.unwrap_or(match (usable, on_btrfs) {
        (false, _) => Backend::Directory,
        (true, true) => Backend::BtrfsHost,
        (true, false) => Backend::BtrfsLoop,
    });
    let verb = if made_with.is_some() {
        "uses"
    } else {
        "would use"
    };
    let (status, what) = match backend {
        Backend::Directory => (
            Status::Degraded,
            "snapshots are slow copies and not atomic, disk limits are refused",
        ),
        _ if !usable => (Status::Missing, "but its requirements are missing"),
        _ if !limited => (
            Status::Degraded,
            "snapshots are instant, disk limits are refused",
        ),
        _ => (
            Status::Good,
            "snapshots are instant, disk limits are enforced",
        ),
    };
    let detail = format!(
        "{} {verb} the {backend} backend: {what}",
        layout.dir.display()
    );
    finding("pool.backend", status, detail, FIX)
}

fn room(place: &Path) -> Option<Finding> {
    let (total, free) = space::filesystem(place).ok()?;
    let reserve = space::default_reserve(total);
    let status = if free > reserve {
        Status::Good
    } else {
        Status::Missing
    };
    let mib = |bytes: u64| bytes >> 20;
    let detail = format!(
        "{} MiB free of {}, creating stops at {}",
        mib(free),
        mib(total),
        mib(reserve)
    );
    Some(finding(
        "pool.space",
        status,
        detail,
        "free disk space, or move the data directory",
    ))
}

/// The directory itself, or the closest parent that exists, where it would be made.
fn nearest_existing(dir: &Path) -> PathBuf {
    dir.ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"))
        .to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_that_is_not_good_says_what_to_do() {
        for finding in probe(Path::new("/var/lib/cove-that-does-not-exist")) {
            assert_eq!(
                finding.fix.is_none(),
                finding.status == Status::Good,
                "{finding:?}"
            );
            assert!(!finding.detail.is_empty());
        }
    }

    #[test]
    fn kernel_versions_compare_by_number() {
        assert!(kernel_at_least(2, 6));
        assert!(!kernel_at_least(999, 0));
    }
}
