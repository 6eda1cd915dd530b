//! What every capture and restore of this tier has in common: the CRIU program, the way to run it,
//! and what a host must offer for memory captured here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use cove_criu::message::{CgroupMode, NetworkLock, Options};
use cove_criu::{Program, ProgramError, Version};
use cove_isolation::{IsolationError, Needs};
use cove_parser::Parser;
use cove_spawner::message::{Criu, Restorer};

use crate::machine::TIER;
use cove_seats::spawner::Spawner;

/// What is between the lines of the images: how mounts are named, which are left out.
const FORMAT: &str = "1";
/// Deleted files that are still open are saved whole, up to this size.
const DELETED_FILE_MAX: u32 = 1 << 30;
/// Tells enough to name the process when a capture fails.
const LOG_LEVEL: i32 = 4;
const CLONE_NEWNET: u32 = 0x4000_0000;

pub struct Capturer {
    program: Result<Program, ProgramError>,
    pub spawner: Arc<Spawner>,
    /// Reads what CRIU leaves.
    pub parser: Arc<Parser>,
    pub runtime_dir: PathBuf,
    /// Of the guest that new sandboxes run.
    pub guest: String,
    staging: String,
    cgroups: u8,
}

impl Capturer {
    pub fn new(
        program: Result<Program, ProgramError>,
        spawner: Arc<Spawner>,
        parser: Arc<Parser>,
        runtime_dir: PathBuf,
        guest: String,
        staging: String,
        cgroups: u8,
    ) -> Self {
        Self {
            program,
            spawner,
            parser,
            runtime_dir,
            guest,
            staging,
            cgroups,
        }
    }

    pub fn program(&self) -> Result<&Program, IsolationError> {
        self.program.as_ref().map_err(|error| {
            IsolationError::Unsupported(format!("memory cannot be captured or restored: {error}"))
        })
    }

    pub fn run(
        &self,
        owner: u32,
        restore: Option<Restorer>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<OwnedFd, IsolationError> {
        let request = Criu {
            program: self.program()?.path.to_string_lossy().into_owned(),
            library: cove_criu::OWNER_LIBRARY.to_vec(),
            owner,
            staging: self.staging.clone(),
            restore,
        };
        self.spawner.criu(request, fds)
    }

    /// What a host must have for memory of a machine that runs `guest`.
    pub fn needs(&self, guest: &str) -> Result<Needs, IsolationError> {
        let features = cpu_features().map_err(IsolationError::failed("read cpuinfo"))?;
        let components = BTreeMap::from([
            ("cgroups".to_owned(), self.cgroups.to_string()),
            ("criu".to_owned(), self.program()?.version.to_string()),
            ("format".to_owned(), FORMAT.to_owned()),
            ("guest".to_owned(), guest.to_owned()),
        ]);
        Ok(Needs {
            tier: TIER.into(),
            architecture: std::env::consts::ARCH.into(),
            cpu_features: features.into_iter().collect(),
            kernel: kernel_release(),
            components,
        })
    }

    pub fn fits(&self, needs: &Needs) -> Result<(), IsolationError> {
        let program = self.program()?;
        let here = cpu_features().map_err(IsolationError::failed("read cpuinfo"))?;
        let unfit = |reason: String| Err(IsolationError::Unfit(reason));
        if needs.tier != TIER {
            return unfit(format!("it was captured by the {} tier", needs.tier));
        }
        if needs.architecture != std::env::consts::ARCH {
            return unfit(format!("it needs a {} host", needs.architecture));
        }
        let missing: Vec<&str> = needs
            .cpu_features
            .iter()
            .filter(|feature| !here.contains(*feature))
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            return unfit(format!("the CPU lacks {}", missing.join(", ")));
        }
        let (theirs, ours) = (
            kernel_version(&needs.kernel),
            kernel_version(&kernel_release()),
        );
        if ours < theirs {
            return unfit(format!(
                "it was captured on Linux {}, which is newer than this host's {}",
                needs.kernel,
                kernel_release()
            ));
        }
        let component = |name: &str| needs.components.get(name).map(String::as_str);
        if component("format") != Some(FORMAT) {
            return unfit(format!(
                "its format is {} and this host knows {FORMAT}",
                component("format").unwrap_or("unknown")
            ));
        }
        if component("cgroups") != Some(&self.cgroups.to_string()) {
            return unfit(format!(
                "it was captured under cgroups of version {} and this host has {}",
                component("cgroups").unwrap_or("unknown"),
                self.cgroups
            ));
        }
        match component("criu").and_then(parse_version) {
            Some(version) if version <= program.version => Ok(()),
            Some(version) => unfit(format!(
                "it was captured with criu {version} and this host has {}",
                program.version
            )),
            None => unfit("it does not name the criu that captured it".into()),
        }
    }
}

/// What a dump and its restore must agree on.
pub fn common_options() -> Options {
    Options {
        images_dir_fd: -1,
        ext_unix_sk: Some(true),
        tcp_established: Some(true),
        file_locks: Some(true),
        link_remap: Some(true),
        ghost_limit: Some(DELETED_FILE_MAX),
        orphan_pts_master: Some(true),
        empty_ns: Some(CLONE_NEWNET),
        manage_cgroups_mode: Some(CgroupMode::Ignore as i32),
        network_lock: Some(NetworkLock::Skip as i32),
        notify_scripts: Some(true),
        log_level: Some(LOG_LEVEL),
        ..Options::default()
    }
}

fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn parse_version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
    Some(Version(
        parts.next()??,
        parts.next().flatten().unwrap_or(0),
        parts.next().flatten().unwrap_or(0),
    ))
}

/// What programs may have found out about the CPU and rely on.
fn cpu_features() -> io::Result<BTreeSet<String>> {
    let text = std::fs::read_to_string("/proc/cpuinfo")?;
    Ok(text
        .lines()
        .find_map(|line| {
            let (key, value) = line.split_once(':')?;
            matches!(key.trim(), "flags" | "Features").then_some(value)
        })
        .unwrap_or_default()
        .split_whitespace()
        .filter(|flag| !INVISIBLE.contains(flag))
        .map(str::to_owned)
        .collect())
}

/// Told by the kernel about itself or the host; no program inside can use them.
const INVISIBLE: [&str; 12] = [
    "hypervisor",
    "pti",
    "ibrs",
    "ibpb",
    "stibp",
    "ssbd",
    "md_clear",
    "flush_l1d",
    "constant_tsc",
    "tsc_known_freq",
    "cpuid_fault",
    "arch_capabilities",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn capturer() -> Option<Capturer> {
        let program = Program {
            path: "/nowhere/criu".into(),
            version: Version(4, 2, 1),
        };
        let spawner = Spawner::start(Vec::new()).ok()?;
        let parser = Parser::new(b"", 0).ok()?;
        Some(Capturer::new(
            Ok(program),
            Arc::new(spawner),
            Arc::new(parser),
            PathBuf::new(),
            "guest-0".into(),
            String::new(),
            2,
        ))
    }

    #[test]
    fn memory_fits_where_it_was_captured_and_not_on_lesser_hosts() {
        let capturer = capturer().expect("a spawner starts");
        let needs = capturer.needs("guest-0").expect("the host can be read");
        capturer.fits(&needs).expect("it fits its own host");
        let refused = |change: fn(&mut Needs)| {
            let mut other = needs.clone();
            change(&mut other);
            matches!(capturer.fits(&other), Err(IsolationError::Unfit(_)))
        };
        assert!(refused(|needs| needs.tier = "vm".into()));
        assert!(refused(|needs| needs.architecture = "pdp11".into()));
        assert!(refused(|needs| needs.cpu_features.push("avx9".into())));
        assert!(refused(|needs| needs.kernel = "99.1.0".into()));
        assert!(refused(|needs| {
            needs.components.insert("criu".into(), "5.0".into());
        }));
        assert!(refused(|needs| {
            needs.components.insert("format".into(), "9".into());
        }));
        assert!(refused(|needs| {
            needs.components.insert("cgroups".into(), "1".into());
        }));
    }
}
