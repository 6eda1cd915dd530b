//! The lifecycle of a sandbox as a pure function: `step(state, event)`.
//!
//! ```text
//!            begin            booted              stop            exited
//!  (none) ──────────► creating ─────► running ─────────► stopping ────────► stopped
//!                        │ ▲             │ exited                              │
//!                        │ └─────────────┼────────────────── start ◄───────────┤
//!                 failed │               ▼                                     │
//!                        ▼            stopped (with the reason)                │
//!                     failed ─────────────── delete ──────► deleting ◄─ delete ┘
//!                                                              │ deleted
//!                                                              ▼
//!                                                            gone
//!
//!           freeze               pause               captured
//!  running ◄──────► frozen    running|frozen ─► pausing ─────► paused
//!            thaw                 ▲ capture failed │             │ resume
//!                                 └────────────────┘             ▼
//!                              running ◄──────── booted ───── resuming ── boot failed ──► paused
//!
//!  running|frozen|paused|stopped|failed ── roll back ──► restoring ─► running | stopped | failed
//! ```
//!
//! Requests (`start`, `stop`, `pause`, `delete`, …) may be refused; observations (`booted`,
//! `exited`, …) are facts and only those that cannot happen in a state are refused.

use serde::{Deserialize, Serialize};

/// State of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "SandboxState"))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Being created or started.
    Creating,
    Running,
    /// Its processes are suspended in memory; a thaw takes about a millisecond.
    Frozen,
    /// Its memory is being saved to disk; it keeps running if that fails.
    Pausing,
    /// No processes; memory and disk are kept on disk.
    Paused,
    /// Its memory is being restored from disk.
    Resuming,
    /// Being rolled back to a snapshot.
    Restoring,
    /// Its processes have received SIGTERM and have time to end.
    Stopping,
    /// No processes; the disk is kept.
    Stopped,
    /// Could not be created or started; the reason is in its events.
    Failed,
    Deleting,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A caller asks for a stopped or failed sandbox to run.
    Start,
    /// PID 1 answers.
    Booted,
    /// It could not be made to run.
    BootFailed,
    /// A caller asks it to hold still, memory kept.
    Freeze,
    /// It goes on after a freeze.
    Thaw,
    /// A caller asks for it to be put on disk, memory included.
    Pause,
    /// Its memory is on disk and proven to come back.
    Captured,
    /// Its memory could not be captured; it goes on as it was.
    CaptureFailed,
    /// A caller needs a paused sandbox to run.
    Resume,
    /// A caller asks for an earlier state in its place.
    Rollback,
    /// A rollback of the disk alone is done; nothing was to be started.
    Restored,
    /// A caller asks it to end.
    Stop,
    /// PID 1 is gone.
    Exited,
    /// A caller asks for it to be removed.
    Delete,
    /// Nothing of it is left.
    Deleted,
}

/// A request that is not possible in the present state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {request} a sandbox that is {state}")]
pub struct Refusal {
    pub request: &'static str,
    pub state: State,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl State {
    pub const ALL: [State; 12] = [
        State::Creating,
        State::Running,
        State::Frozen,
        State::Pausing,
        State::Paused,
        State::Resuming,
        State::Restoring,
        State::Stopping,
        State::Stopped,
        State::Failed,
        State::Deleting,
        State::Gone,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Running => "running",
            State::Frozen => "frozen",
            State::Pausing => "pausing",
            State::Paused => "paused",
            State::Resuming => "resuming",
            State::Restoring => "restoring",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
            State::Failed => "failed",
            State::Deleting => "deleting",
            State::Gone => "gone",
        }
    }

    /// Whether processes of it may exist on the host.
    pub fn may_have_processes(self) -> bool {
        matches!(
            self,
            State::Creating
                | State::Running
                | State::Frozen
                | State::Pausing
                | State::Resuming
                | State::Restoring
                | State::Stopping
                | State::Deleting
        )
    }
}

/// Where `state` goes on `step`. A refusal changes nothing.
pub fn step(state: State, step: Step) -> Result<State, Refusal> {
    use State::*;
    match (state, step) {
        (Stopped | Failed, Step::Start) => Ok(Creating),
        (Creating | Resuming | Restoring, Step::Booted) => Ok(Running),
        (Creating | Restoring, Step::BootFailed) => Ok(Failed),
        // The image that did not come back is kept: it may on another try, and its disk always can.
        (Resuming, Step::BootFailed | Step::Exited) => Ok(Paused),
        (Running, Step::Freeze) => Ok(Frozen),
        (Frozen, Step::Thaw) => Ok(Running),
        (Running | Frozen, Step::Pause) => Ok(Pausing),
        (Pausing, Step::Captured) => Ok(Paused),
        (Pausing, Step::CaptureFailed) => Ok(Running),
        (Paused, Step::Resume) => Ok(Resuming),
        (Running | Frozen | Paused | Stopped | Failed, Step::Rollback) => Ok(Restoring),
        (Restoring, Step::Restored) => Ok(Stopped),
        // Stopping what is paused gives its memory up and keeps the disk.
        (Running | Frozen | Paused, Step::Stop) => Ok(Stopping),
        // PID 1 can end by itself at any time after it was started, asked or not.
        (Creating, Step::Exited) => Ok(Failed),
        (Running | Frozen | Pausing | Stopping, Step::Exited) => Ok(Stopped),
        // The processes that were captured, or are being replaced, end after the fact.
        (Paused, Step::Exited) => Ok(Paused),
        (Restoring, Step::Exited) => Ok(Restoring),
        // A delete wins over everything but a delete that is done.
        (Gone, Step::Delete) => Err(Refusal {
            request: step.verb(),
            state,
        }),
        (_, Step::Delete) => Ok(Deleting),
        (
            Deleting,
            Step::Exited
            | Step::Booted
            | Step::BootFailed
            | Step::Captured
            | Step::CaptureFailed
            | Step::Restored,
        ) => Ok(Deleting),
        (Deleting, Step::Deleted) => Ok(Gone),
        (state, step) => Err(Refusal {
            request: step.verb(),
            state,
        }),
    }
}

impl Step {
    pub const ALL: [Step; 15] = [
        Step::Start,
        Step::Booted,
        Step::BootFailed,
        Step::Freeze,
        Step::Thaw,
        Step::Pause,
        Step::Captured,
        Step::CaptureFailed,
        Step::Resume,
        Step::Rollback,
        Step::Restored,
        Step::Stop,
        Step::Exited,
        Step::Delete,
        Step::Deleted,
    ];

    fn verb(self) -> &'static str {
        match self {
            Step::Start => "start",
            Step::Booted => "mark as booted",
            Step::BootFailed => "mark as failed",
            Step::Freeze => "freeze",
            Step::Thaw => "thaw",
            Step::Pause => "pause",
            Step::Captured => "mark as captured",
            Step::CaptureFailed => "mark as not captured",
            Step::Resume => "resume",
            Step::Rollback => "roll back",
            Step::Restored => "mark as restored",
            Step::Stop => "stop",
            Step::Exited => "mark as exited",
            Step::Delete => "delete",
            Step::Deleted => "mark as deleted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_sequence_of_steps_leaves_the_map(steps in prop::collection::vec(0..Step::ALL.len(), 0..60)) {
            let mut state = State::Creating;
            let mut deleting = false;
            for index in steps {
                match step(state, Step::ALL[index]) {
                    Ok(next) => {
                        prop_assert!(State::ALL.contains(&next));
                        deleting |= next == State::Deleting;
                        // Once a delete was accepted nothing brings the sandbox back.
                        prop_assert!(!deleting || matches!(next, State::Deleting | State::Gone));
                        state = next;
                    }
                    Err(refusal) => prop_assert_eq!(refusal.state, state),
                }
            }
        }

        #[test]
        fn a_delete_is_accepted_everywhere_but_after_the_end(steps in prop::collection::vec(0..Step::ALL.len(), 0..60)) {
            let state = steps.into_iter().fold(State::Creating, |s, i| step(s, Step::ALL[i]).unwrap_or(s));
            prop_assert_eq!(step(state, Step::Delete).is_ok(), state != State::Gone);
        }
    }

    #[test]
    fn gone_is_final() {
        for s in Step::ALL {
            assert!(step(State::Gone, s).is_err());
        }
    }

    #[test]
    fn every_state_can_be_reached_and_left() {
        let mut seen = std::collections::HashSet::from([State::Creating]);
        loop {
            let before = seen.len();
            for state in seen.clone() {
                seen.extend(Step::ALL.into_iter().filter_map(|s| step(state, s).ok()));
            }
            if seen.len() == before {
                break;
            }
        }
        assert_eq!(seen.len(), State::ALL.len());
    }

    #[test]
    fn refusals_name_the_request_and_the_state() {
        let refusal = step(State::Stopped, Step::Stop).unwrap_err();
        assert_eq!(refusal.to_string(), "cannot stop a sandbox that is stopped");
    }
}
