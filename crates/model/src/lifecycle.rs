//! The lifecycle of a sandbox as a pure function: `step(state, event)`.
//!
//! ```text
//!            begin            booted              stop            stopped
//!  (none) ──────────► creating ─────► running ─────────► stopping ────────► stopped
//!                        │ ▲             │ exited                              │
//!                        │ └─────────────┼────────────────── start ◄───────────┤
//!                 failed │               ▼                                     │
//!                        ▼            stopped (with the reason)                │
//!                     failed ─────────────── delete ──────► deleting ◄─ delete ┘
//!                                                              │ deleted
//!                                                              ▼
//!                                                            gone
//! ```
//!
//! Requests (`begin start`, `stop`, `delete`) may be refused; observations (`booted`, `exited`, …)
//! are facts and only those that cannot happen in a state are refused.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Being made or started; not yet answering.
    Creating,
    Running,
    /// Asked to end; its processes are getting their chance to.
    Stopping,
    /// No processes; the disk is kept.
    Stopped,
    /// Could not be made or started; the reason is in its events.
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
    /// A caller asks it to end.
    Stop,
    /// PID 1 is gone.
    Exited,
    /// A caller asks for it to be removed.
    Delete,
    /// Nothing of it is left.
    Deleted,
}

/// A request that makes no sense now.
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
    pub const ALL: [State; 7] = [
        State::Creating,
        State::Running,
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
            State::Creating | State::Running | State::Stopping | State::Deleting
        )
    }
}

/// Where `state` goes on `step`. A refusal changes nothing.
pub fn step(state: State, step: Step) -> Result<State, Refusal> {
    use State::*;
    match (state, step) {
        (Stopped | Failed, Step::Start) => Ok(Creating),
        (Creating, Step::Booted) => Ok(Running),
        (Creating, Step::BootFailed) => Ok(Failed),
        (Running, Step::Stop) => Ok(Stopping),
        // PID 1 can end by itself at any time after it was started, asked or not.
        (Creating, Step::Exited) => Ok(Failed),
        (Running | Stopping, Step::Exited) => Ok(Stopped),
        // A delete wins over everything but a delete that is done.
        (Creating | Running | Stopping | Stopped | Failed | Deleting, Step::Delete) => Ok(Deleting),
        (Deleting, Step::Exited | Step::Booted | Step::BootFailed) => Ok(Deleting),
        (Deleting, Step::Deleted) => Ok(Gone),
        (state, step) => Err(Refusal {
            request: step.verb(),
            state,
        }),
    }
}

impl Step {
    pub const ALL: [Step; 7] = [
        Step::Start,
        Step::Booted,
        Step::BootFailed,
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
