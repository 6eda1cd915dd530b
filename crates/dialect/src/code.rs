//! Code that runs for one caller.

use std::time::Duration;

use cove_control::{CodeEvent, CodeOutcome, CodeRun, ControlError, Principal};
use tokio::time::timeout;

use crate::Front;

/// How long interrupted code has to end before its context is given to the next caller in any case.
const INTERRUPTED_WAIT: Duration = Duration::from_secs(5);

/// Dropped before its end, the code is interrupted, so that its context is free for whoever asks next. Where the
/// server itself ends, the code goes on.
pub struct LiveCode {
    /// Taken when it is dropped.
    run: Option<CodeRun>,
    front: Front,
    principal: Principal,
    sandbox: String,
    over: bool,
}

impl LiveCode {
    pub fn new(front: &Front, principal: &Principal, sandbox: &str, run: CodeRun) -> Self {
        Self {
            run: Some(run),
            front: front.clone(),
            principal: principal.clone(),
            sandbox: sandbox.to_owned(),
            over: false,
        }
    }

    fn run(&mut self) -> &mut CodeRun {
        self.run.as_mut().expect("only a drop takes it")
    }

    /// The next thing that the code says; `None` at its end.
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, ControlError> {
        let said = self.run().next().await;
        self.over = !matches!(said, Ok(Some(_)));
        said
    }

    pub fn outcome(&mut self) -> CodeOutcome {
        self.run().outcome()
    }
}

impl Drop for LiveCode {
    fn drop(&mut self) {
        let leaves = self.over || self.front.closing.is_cancelled();
        let Some(mut run) = self.run.take().filter(|_| !leaves) else {
            return;
        };
        let (control, principal) = (self.front.control.clone(), self.principal.clone());
        let sandbox = std::mem::take(&mut self.sandbox);
        self.front.sessions.spawn(async move {
            let context = run.context().id.clone();
            let told = control.interrupt_code(&principal, &sandbox, &context);
            if let Err(error) = told.await {
                tracing::debug!(%error, sandbox, "abandoned code cannot be interrupted");
            }
            let rest = async { while let Ok(Some(_)) = run.next().await {} };
            timeout(INTERRUPTED_WAIT, rest).await.ok();
        });
    }
}
