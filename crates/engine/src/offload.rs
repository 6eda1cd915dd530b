//! Work that may wait for a disk, kept from holding up tasks that do not.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Runs what may block. Other tasks of an async worker go on elsewhere meanwhile; on any other thread, and on
/// a runtime of one thread, it is a plain call.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let on_worker = Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    match on_worker {
        true => block_in_place(work),
        false => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    /// With one worker the first task would otherwise wait for the second for ever.
    #[test]
    fn a_task_goes_on_while_the_only_worker_is_blocked() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (sender, receiver) = mpsc::channel();
            let waiting = tokio::spawn(async move { super::blocking(|| receiver.recv()) });
            let sending = tokio::spawn(async move { sender.send(7) });
            sending.await.unwrap().unwrap();
            assert_eq!(waiting.await.unwrap(), Ok(7));
        });
    }

    #[test]
    fn any_other_thread_just_calls() {
        assert_eq!(super::blocking(|| 7), 7);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        assert_eq!(runtime.block_on(async { super::blocking(|| 7) }), 7);
    }
}
