//! One target directory with something beside it that no archive may reach.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use cove_unpack::Content;
use cove_unpack::driver::Event;
use cove_unpack::{
    Failure, Job, Summary, UnpackError, UnpackLimits, UnpackProgram, Warning, unpack,
};

const TEST_UID_BASE: u32 = 1_900_000_000;

pub struct Cell {
    dir: tempfile::TempDir,
    before: BTreeMap<PathBuf, String>,
    pub limits: UnpackLimits,
    pub content: Content,
    pub hash: bool,
}

#[derive(Debug)]
pub struct Outcome {
    pub result: Result<Summary, UnpackError>,
    pub warnings: Vec<Warning>,
}

impl Outcome {
    /// The summary and the warnings of an archive that must be accepted.
    pub fn accepted(self) -> (Summary, Vec<Warning>) {
        (self.result.expect("the archive is fine"), self.warnings)
    }

    /// The reason of an archive that must be refused.
    pub fn refused(self) -> Failure {
        match self.result {
            Err(UnpackError::Refused(failure)) => failure,
            other => panic!("expected a refusal, not {other:?}"),
        }
    }
}

impl Cell {
    pub fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(dir.path().join("target")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/secret"), "untouched").unwrap();
        let before = listing(&dir.path().join("outside"));
        let limits = UnpackLimits {
            seconds: 300,
            ..UnpackLimits::default()
        };
        Self {
            dir,
            before,
            limits,
            content: Content::Tree,
            hash: false,
        }
    }

    pub fn layers() -> Self {
        Self {
            content: Content::Layer,
            ..Self::new()
        }
    }

    pub fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    pub fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.target().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn has(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path(name)).is_ok()
    }

    pub fn unpack(&self, archive: &[u8]) -> Outcome {
        let mut file = tempfile::tempfile_in(self.dir.path()).unwrap();
        file.write_all(archive).unwrap();
        file.rewind().unwrap();
        self.unpack_file(file)
    }

    pub fn unpack_file(&self, file: File) -> Outcome {
        let bytes = fs::read(env!("CARGO_BIN_EXE_cove-unpack")).unwrap();
        let program = UnpackProgram::new(&bytes).unwrap();
        let mut warnings = Vec::new();
        let job = Job {
            program: &program,
            target: &self.target(),
            input: file.into(),
            uid_base: TEST_UID_BASE,
            content: self.content,
            hash: self.hash,
            limits: self.limits,
        };
        let result = unpack(job, &AtomicBool::new(false), &mut |event| {
            if let Event::Warning(warning) = event {
                warnings.push(warning);
            }
        });
        self.assert_outside_untouched();
        Outcome { result, warnings }
    }

    fn assert_outside_untouched(&self) {
        assert_eq!(
            listing(&self.outside()),
            self.before,
            "something outside the target changed"
        );
        let beside: Vec<_> = fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(
            beside.len(),
            2,
            "something appeared beside the target: {beside:?}"
        );
    }
}

/// Everything below a directory that a write could change, in words.
pub fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let path = root.join(&relative);
        let stat = fs::symlink_metadata(&path).unwrap();
        let mut words = format!(
            "{:o} {}:{} {} links, {}.{:09}",
            stat.mode(),
            stat.uid(),
            stat.gid(),
            // Directories count differently on different file systems.
            if stat.is_dir() { 0 } else { stat.nlink() },
            stat.mtime(),
            stat.mtime_nsec()
        );
        if stat.is_symlink() {
            words.push_str(&format!(" -> {:?}", fs::read_link(&path).unwrap()));
        } else if stat.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                pending.push(relative.join(entry.unwrap().file_name()));
            }
        } else if stat.is_file() {
            words.push_str(&format!(
                " {:?}",
                String::from_utf8_lossy(&fs::read(&path).unwrap())
            ));
        }
        found.insert(relative, words);
    }
    found
}
