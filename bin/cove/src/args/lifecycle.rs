//! Arguments about when a sandbox is put away and which states of it are kept.

use clap::Args;
use cove_api::lifecycle::{AutoSnapshot, Lifecycle};

use crate::units::duration_s;

#[derive(Debug, Clone, Args)]
#[group(id = "lifecycle", multiple = true)]
pub struct LifecycleArgs {
    /// Freeze it when idle for this long, like 30s; memory is kept
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub freeze_after: Option<u64>,
    /// Pause it to disk when idle for this long, like 10m
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub pause_after: Option<u64>,
    /// Stop it when idle for this long, like 2h
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub stop_after: Option<u64>,
    /// Delete it when idle for this long
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub delete_after: Option<u64>,
    /// Delete it after this long, idle or not
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub max_lifetime: Option<u64>,
    /// Do not wake it for requests when it is frozen or paused
    #[arg(long)]
    pub no_auto_resume: bool,
    /// Take a snapshot this often, when something changed
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub snapshot_every: Option<u64>,
    /// Take a snapshot before each command, when something changed
    #[arg(long)]
    pub snapshot_before_exec: bool,
    /// Automatic snapshots to keep; default: 10
    #[arg(long, value_name = "COUNT")]
    pub snapshot_keep: Option<u32>,
}

impl LifecycleArgs {
    /// Absent when nothing was asked for.
    pub fn request(&self) -> Option<Lifecycle> {
        let auto = AutoSnapshot {
            every_s: self.snapshot_every,
            before_exec: self.snapshot_before_exec,
            keep: self.snapshot_keep,
        };
        let lifecycle = Lifecycle {
            freeze_after_s: self.freeze_after,
            pause_after_s: self.pause_after,
            stop_after_s: self.stop_after,
            delete_after_s: self.delete_after,
            max_lifetime_s: self.max_lifetime,
            auto_resume: self.no_auto_resume.then_some(false),
            auto_snapshot: Some(auto).filter(|asked| *asked != AutoSnapshot::default()),
        };
        Some(lifecycle).filter(|asked| *asked != Lifecycle::default())
    }
}
