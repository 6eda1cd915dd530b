//! Which backend a data directory gets, and remembering it in `pool.backend`.

use std::fs;
use std::io;

use crate::attach;
use crate::config::{Backend, BackendChoice, Layout, PoolConfig};
use crate::error::{Context, PoolError};

/// Decides the backend and has its filesystem in place. What a directory was made with stays; only a
/// new one is free to choose.
pub(super) fn attach_backend(layout: &Layout, config: &PoolConfig) -> Result<Backend, PoolError> {
    let asked = config.backend;
    let existing = match read_marker(layout)? {
        Some(backend) => Some(backend),
        None if layout.image().exists() => Some(Backend::BtrfsLoop),
        None => None,
    };
    if let Some(existing) = existing {
        let fits = match asked {
            BackendChoice::Auto => true,
            BackendChoice::Btrfs => existing.is_btrfs(),
            BackendChoice::Directory => existing == Backend::Directory,
        };
        if !fits {
            return Err(PoolError::BackendMismatch {
                dir: layout.dir.clone(),
                existing,
                asked,
            });
        }
        match existing {
            Backend::BtrfsLoop => attach::attach_loop(layout, config.loop_size_bytes)?,
            Backend::BtrfsHost => check_host_btrfs(layout)?,
            Backend::Directory => {}
        }
        return Ok(existing);
    }
    if asked == BackendChoice::Directory {
        return Ok(Backend::Directory);
    }
    let chosen = if attach::is_on_btrfs(&layout.root())? {
        check_host_btrfs(layout).map(|()| Backend::BtrfsHost)
    } else {
        attach::attach_loop(layout, config.loop_size_bytes).map(|()| Backend::BtrfsLoop)
    };
    match chosen {
        Err(e) if asked == BackendChoice::Auto && is_missing_means(&e) => {
            // Made a moment ago and never used: the next open must not take it for a pool.
            let image = layout.image();
            match fs::remove_file(&image) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    Err(PoolError::io("remove", image, e))
                }
                _ => Ok(Backend::Directory),
            }
        }
        other => other,
    }
}

fn check_host_btrfs(layout: &Layout) -> Result<(), PoolError> {
    if !rustix::process::geteuid().is_root() {
        return Err(PoolError::NotRoot {
            operation: "keeping subvolumes",
        });
    }
    let root = layout.root();
    if attach::is_on_btrfs(&root)? {
        Ok(())
    } else {
        // The device that was mounted on the pool is not there (yet).
        Err(PoolError::ForeignMount { path: root })
    }
}

/// Whether the machine lacks what a btrfs pool needs, as opposed to something having gone wrong.
fn is_missing_means(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::NotRoot { .. }
            | PoolError::NoBtrfs
            | PoolError::NoMkfs
            | PoolError::NoLoopDevice { .. }
    )
}

fn read_marker(layout: &Layout) -> Result<Option<Backend>, PoolError> {
    let path = layout.marker();
    match fs::read_to_string(&path) {
        Ok(text) => match Backend::from_word(text.trim()) {
            Some(backend) => Ok(Some(backend)),
            None => Err(PoolError::UnknownBackend {
                path,
                word: text.trim().to_owned(),
            }),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(PoolError::io("read", path, e)),
    }
}

pub(super) fn write_marker(layout: &Layout, backend: Backend) -> Result<(), PoolError> {
    if read_marker(layout)? == Some(backend) {
        return Ok(());
    }
    let path = layout.marker();
    let fresh = path.with_extension("backend.new");
    fs::write(&fresh, backend.word()).context("write", &fresh)?;
    fs::rename(&fresh, &path).context("rename to", path)
}
