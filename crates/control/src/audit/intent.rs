//! One call into a sandbox, from its intent to how it ended. What the guest answers is heard where calls
//! to guests are made, so it is the same whoever makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cove_protocol::client::{GuestError, Observe};
use cove_protocol::message::Request;
use cove_store::{AuditRecord, StoreError};

use super::journal::UNKNOWN;
use super::log::UnderWay;
use crate::Control;
use crate::guest::code_of;

/// The guest was never asked for what was announced.
const NOT_DONE: &str = "not_done";

/// Ends with the last of the guest's clients that carry it.
pub struct Intent {
    control: Control,
    position: u64,
    call: Arc<UnderWay>,
    /// For a caller that only listens, listening is what it asked for.
    listens: bool,
    asked: AtomicBool,
    failed: AtomicBool,
}

impl Intent {
    pub(super) fn begin(
        control: &Control,
        record: AuditRecord,
        listens: bool,
    ) -> Result<Self, StoreError> {
        let call = Arc::new(UnderWay::new(record));
        Ok(Self {
            position: control.0.audit.begin(&call)?,
            control: control.clone(),
            call,
            listens,
            asked: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        })
    }
}

impl Observe for Intent {
    fn wants(&self, request: &Request) -> bool {
        match request {
            Request::Start(_)
            | Request::StartService(_)
            | Request::RemoveService(_)
            | Request::Stdin(_)
            | Request::Signal(_)
            | Request::Resize(_)
            | Request::WriteFile(_)
            | Request::MakeDir(_)
            | Request::Move(_)
            | Request::Remove(_)
            | Request::SetAttributes(_)
            | Request::ArchiveIn(_)
            | Request::ConnectPort(_)
            | Request::Shutdown(_) => true,
            Request::Output(_) => self.listens,
            _ => false,
        }
    }

    fn asked(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    fn answered(&self, outcome: Result<(), &GuestError>) {
        match outcome {
            // Of several steps the one that failed counts.
            Ok(()) if self.failed.load(Ordering::Relaxed) => {}
            Ok(()) => self.call.note("ok"),
            // A guest that was not reached may be reached by another try.
            Err(error @ GuestError::Connect(_)) => {
                if self.call.so_far().is_none() {
                    self.call.note(code_of(error).as_str());
                }
            }
            Err(error) => {
                self.failed.store(true, Ordering::Relaxed);
                self.call.note(code_of(error).as_str());
            }
        }
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let result = match self.call.so_far() {
            Some(result) => result,
            None if self.asked.load(Ordering::Relaxed) => UNKNOWN,
            None => NOT_DONE,
        };
        self.control.0.audit.end(self.position, &self.call, result);
    }
}
