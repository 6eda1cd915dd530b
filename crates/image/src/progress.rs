//! What a long operation tells while it runs.

use std::sync::Arc;

use crate::bootstrap::Stage;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Asking the registry what the reference means.
    Resolving,
    /// A layer on its way from the registry.
    Layer {
        digest: String,
        done_bytes: u64,
        total_bytes: u64,
    },
    /// An archive being unpacked: uncompressed bytes and entries so far.
    Unpacking {
        digest: Option<String>,
        done_bytes: u64,
        entries: u64,
    },
    /// The default image being built; `percent` of the whole build.
    Bootstrapping {
        stage: Stage,
        percent: u8,
    },
    Warning(String),
    Done,
}

/// The caller's function, shared by the tasks of one operation.
#[derive(Clone)]
pub(crate) struct Report(Arc<dyn Fn(Progress) + Send + Sync>);

impl Report {
    pub fn new(progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(progress))
    }

    pub fn send(&self, progress: Progress) {
        (self.0)(progress);
    }
}
