//! Files of the host that may become images: those beneath directories the operator fixed, and nothing
//! that a link, `..` or a mount of the kernel's leads to. Whoever asks may be the control process, which
//! must not read the host's files through root.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cove_runner_api::RunnerError;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::error::internal;

pub enum Found {
    Directory(OwnedFd),
    File(File),
}

pub async fn open(dirs: &[PathBuf], path: PathBuf) -> Result<Found, RunnerError> {
    let dirs = dirs.to_vec();
    tokio::task::spawn_blocking(move || find(&dirs, &path))
        .await
        .map_err(internal)?
}

fn find(dirs: &[PathBuf], path: &Path) -> Result<Found, RunnerError> {
    let refused = |why: &str| RunnerError::Invalid {
        message: format!("cannot import {}: {why}", path.display()),
    };
    let mut beneath = dirs
        .iter()
        .filter_map(|dir| Some((dir, path.strip_prefix(dir).ok()?)));
    let Some((dir, rest)) = beneath.next() else {
        return Err(refused(
            "it is in none of the directories of the setting import_dirs",
        ));
    };
    let rest = match rest.as_os_str().is_empty() {
        true => Path::new("."),
        false => rest,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(
        CWD,
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    )
    .and_then(|dir| openat2(dir, rest, flags, Mode::empty(), within));
    let opened = opened.map_err(|error| match error {
        rustix::io::Errno::LOOP | rustix::io::Errno::XDEV => {
            refused("links and '..' are not followed")
        }
        error => refused(&error.to_string()),
    })?;
    let file = File::from(opened);
    let kind = file.metadata().map_err(internal)?.file_type();
    if kind.is_dir() {
        return Ok(Found::Directory(file.into()));
    }
    if kind.is_file() {
        return Ok(Found::File(file));
    }
    Err(refused("it is neither a file nor a directory"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The attack: control asks the runner, which is root, for any file of the host.
    #[test]
    fn only_what_lies_beneath_the_operators_directories_is_opened() {
        let host = tempfile::tempdir().unwrap();
        let at = |name: &str| host.path().join(name);
        for dir in ["import/sub", "import-too", "engine"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        for file in [
            "import/a.tar",
            "import/sub/b.tar",
            "import-too/c.tar",
            "engine/key",
        ] {
            std::fs::write(at(file), "x").unwrap();
        }
        symlink(at("engine/key"), at("import/link.tar")).unwrap();
        symlink(at("engine"), at("import/linked")).unwrap();
        symlink("../engine/key", at("import/relative.tar")).unwrap();
        symlink("/proc/self/root/etc", at("import/magic")).unwrap();
        rustix::fs::mkfifoat(CWD, at("import/fifo"), Mode::RWXU).unwrap();
        let dirs = [at("import")];
        let open = |path: &Path| find(&dirs, path);
        assert!(matches!(open(&at("import/a.tar")), Ok(Found::File(_))));
        assert!(matches!(open(&at("import/sub/b.tar")), Ok(Found::File(_))));
        assert!(matches!(open(&at("import/sub")), Ok(Found::Directory(_))));
        for path in [
            at("engine/key"),
            at("import/../engine/key"),
            at("import/sub/../../engine/key"),
            at("import/.."),
            at("import-too/c.tar"),
            at("import/link.tar"),
            at("import/linked/key"),
            at("import/relative.tar"),
            at("import/magic/shadow"),
            at("import/fifo"),
            at("import/none"),
            "/etc/shadow".into(),
            "/".into(),
            "".into(),
            "import/a.tar".into(),
            "/proc/self/environ".into(),
        ] {
            let refused = open(&path).err();
            assert!(
                matches!(refused, Some(RunnerError::Invalid { .. })),
                "{}",
                path.display()
            );
        }
        assert!(find(&[], &at("import/a.tar")).is_err());
    }
}
