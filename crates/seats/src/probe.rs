//! What only doing it can tell: a tier boots a machine that holds nothing but the guest, and ends it again.

use std::fs;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cove_isolation::{IsolationError, Machine};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long a good answer is used.
const GOOD_AGE: Duration = Duration::from_secs(600);
/// How long a bad one is. Only callers that waited for the same probe share it: the cause may be gone by the next.
const BAD_AGE: Duration = Duration::from_secs(2);

type Answer = Result<String, String>;

/// What the last probe said, and when.
#[derive(Default)]
pub struct Probed(Arc<Mutex<Option<(Instant, Answer)>>>);

impl Probed {
    /// The last answer, or that of `probe`. One probe runs at a time. Each has its own task and comes to its end
    /// also when the caller leaves: what it booted must be ended.
    pub async fn get(
        &self,
        probe: impl Future<Output = Result<String, IsolationError>> + Send + 'static,
    ) -> Answer {
        let last = Arc::clone(&self.0);
        let task = tokio::spawn(async move {
            let mut last = last.lock().await;
            if let Some((when, answer)) = &*last {
                let age = match answer {
                    Ok(_) => GOOD_AGE,
                    Err(_) => BAD_AGE,
                };
                if when.elapsed() < age {
                    return answer.clone();
                }
            }
            let answer = probe.await.map_err(|error| told(&error));
            *last = Some((Instant::now(), answer.clone()));
            answer
        });
        match task.await {
            Ok(answer) => answer,
            Err(error) => Err(format!("the probe did not come to its end: {error}")),
        }
    }
}

/// A directory of a probe, removed however it ends; one that a killed engine left is removed first.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// May wait.
    pub fn make(dir: PathBuf, inside: &[&str]) -> io::Result<Self> {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let scratch = Self(dir);
        for name in inside {
            fs::create_dir_all(scratch.0.join(name))?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Ends a machine that a probe booted.
pub async fn end(machine: &dyn Machine) -> Result<(), IsolationError> {
    machine.kill().await?;
    machine.exited().await;
    machine.dispose().await
}

fn told(error: &IsolationError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_probe_comes_to_its_end_when_its_caller_leaves() {
        let probed = Probed::default();
        let (began, hears) = tokio::sync::oneshot::channel();
        let (go_on, waits) = tokio::sync::oneshot::channel::<()>();
        let (ended, end) = tokio::sync::oneshot::channel();
        let asked = probed.get(async move {
            let _ = began.send(());
            let _ = waits.await;
            let _ = ended.send(());
            Ok("booted".into())
        });
        tokio::select! {
            _ = asked => unreachable!("nobody let it go on"),
            begun = hears => begun.expect("it began"),
        }
        go_on.send(()).expect("it waits");
        end.await.expect("it came to its end");
        let other = async { Err(IsolationError::Exhausted("place")) };
        assert_eq!(probed.get(other).await, Ok("booted".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_answer_is_not_kept() {
        let (probed, tries) = (Probed::default(), Arc::new(AtomicU32::new(0)));
        let ask = || {
            let tries = Arc::clone(&tries);
            probed.get(async move {
                match tries.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(IsolationError::Exhausted("place")),
                    _ => Ok("booted".into()),
                }
            })
        };
        assert!(ask().await.is_err());
        assert!(ask().await.is_err(), "whoever waited shares it");
        tokio::time::advance(BAD_AGE).await;
        assert_eq!(ask().await, Ok("booted".into()));
        assert_eq!(ask().await, Ok("booted".into()));
        assert_eq!(tries.load(Ordering::Relaxed), 2);
    }
}
