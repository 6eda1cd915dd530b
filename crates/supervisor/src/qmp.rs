//! QEMU's control connection. Whoever takes QEMU over speaks here too: lines are bounded, events are skipped, only the
//! answer to the last command counts, and what it says changes nothing but what becomes of this machine.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::console::Tail;

/// Longest line that is read.
const LINE_MAX: usize = 64 * 1024;
/// How long QEMU may take to answer. Emulated machines finish a piece of code first.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long the state of the devices may take on its way.
const MOVE_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// What QEMU calls the descriptor that state moves over.
const STATE: &str = "state";

#[derive(Serialize)]
struct Command {
    execute: &'static str,
    id: u64,
    #[serde(skip_serializing_if = "Value::is_null")]
    arguments: Value,
}

#[derive(Deserialize)]
struct Line {
    id: Option<u64>,
    error: Option<Refused>,
    #[serde(rename = "return", default)]
    answer: Option<Answer>,
}

#[derive(Deserialize)]
struct Refused {
    desc: String,
}

/// What is looked at in any answer.
#[derive(Deserialize, Default)]
struct Answer {
    status: Option<String>,
}

type Waiting = Option<(u64, oneshot::Sender<io::Result<Answer>>)>;

pub struct Qmp {
    socket: Rc<AsyncFd<OwnedFd>>,
    waiting: Rc<RefCell<Waiting>>,
    next: Cell<u64>,
    is_open: Cell<bool>,
    /// Nothing is read any more.
    is_over: Rc<Cell<bool>>,
}

impl Qmp {
    /// Reads as fast as QEMU writes, so that nothing piles up in it. Nothing is said before the first command.
    pub fn new(socket: AsyncFd<OwnedFd>) -> Self {
        let socket = Rc::new(socket);
        let waiting = Rc::new(RefCell::new(None));
        let is_over = Rc::new(Cell::new(false));
        let (heard, told, over) = (Rc::clone(&socket), Rc::clone(&waiting), Rc::clone(&is_over));
        spawn_local(async move {
            listen(&heard, &told).await;
            over.set(true);
            // Whoever waits hears of it.
            told.replace(None);
        });
        Self {
            socket,
            waiting,
            next: Cell::new(1),
            is_open: Cell::new(false),
            is_over,
        }
    }

    async fn command(&self, execute: &'static str, arguments: Value) -> io::Result<Answer> {
        self.command_with(execute, arguments, &[]).await
    }

    async fn command_with(
        &self,
        execute: &'static str,
        arguments: Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Answer> {
        let over = || io::Error::other("QEMU's answers cannot be read");
        if self.is_over.get() {
            return Err(over());
        }
        let id = self.next.get();
        self.next.set(id + 1);
        let command = Command {
            execute,
            id,
            arguments,
        };
        let mut line = serde_json::to_vec(&command)?;
        line.push(b'\n');
        let (answer, answered) = oneshot::channel();
        self.waiting.replace(Some((id, answer)));
        let mut sent = 0;
        while sent < line.len() {
            let descriptors = if sent == 0 { descriptors } else { &[] };
            let write = self.socket.async_io(Interest::WRITABLE, |socket| {
                cove_wire::descriptor::send(socket, &line[sent..], descriptors)
            });
            sent += timeout(ANSWER_LIMIT, write).await??;
        }
        let answered = timeout(ANSWER_LIMIT, answered).await?;
        answered.unwrap_or_else(|_| Err(over()))
    }

    /// To be called before anything else.
    async fn open(&self) -> io::Result<()> {
        if self.is_open.get() {
            return Ok(());
        }
        self.command("qmp_capabilities", Value::Null).await?;
        // The memory does not move: it is in a file that is kept beside the state.
        let wanted = json!({"capabilities": [{"capability": "x-ignore-shared", "state": true}]});
        self.command("migrate-set-capabilities", wanted).await?;
        self.is_open.set(true);
        Ok(())
    }

    /// Stops the machine where it is.
    pub async fn stop(&self) -> io::Result<()> {
        self.open().await?;
        self.command("stop", Value::Null).await.map(drop)
    }

    /// Lets the machine go on, whatever was being done to it. May be repeated.
    pub async fn go_on(&self) -> io::Result<()> {
        self.open().await?;
        self.command("migrate_cancel", Value::Null).await?;
        timeout(MOVE_LIMIT, async {
            while self.is_moving().await? {
                sleep(LOOK_EVERY).await;
            }
            io::Result::Ok(())
        })
        .await??;
        self.command("cont", Value::Null).await.map(drop)
    }

    async fn progress(&self) -> io::Result<String> {
        let found = self.command("query-migrate", Value::Null).await?;
        Ok(found.status.unwrap_or_default())
    }

    async fn is_moving(&self) -> io::Result<bool> {
        let over = ["", "none", "completed", "failed", "cancelled"];
        Ok(!over.contains(&&*self.progress().await?))
    }

    /// Has QEMU write the state of a stopped machine to `to`.
    pub async fn save(&self, to: OwnedFd) -> io::Result<()> {
        let name = json!({"fdname": STATE});
        self.command_with("getfd", name, &[to.as_fd()]).await?;
        drop(to);
        let uri = json!({"uri": format!("fd:{STATE}")});
        self.command("migrate", uri).await.map(drop)
    }

    /// Has QEMU, which waits for it, read the state of a machine from `from`.
    pub async fn load(&self, from: OwnedFd) -> io::Result<()> {
        self.open().await?;
        let name = json!({"fdname": STATE});
        self.command_with("getfd", name, &[from.as_fd()]).await?;
        drop(from);
        let uri = json!({"uri": format!("fd:{STATE}")});
        self.command("migrate-incoming", uri).await.map(drop)
    }

    /// Returns when all of the state was moved.
    pub async fn moved(&self) -> io::Result<()> {
        let whole = async {
            loop {
                match &*self.progress().await? {
                    "completed" => return Ok(()),
                    "failed" | "cancelled" => {
                        return Err(io::Error::other("QEMU could not move the state"));
                    }
                    _ => sleep(LOOK_EVERY).await,
                }
            }
        };
        timeout(MOVE_LIMIT, whole).await?
    }
}

/// Until nothing more can be read.
async fn listen(socket: &AsyncFd<OwnedFd>, waiting: &RefCell<Waiting>) {
    let (mut line, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let read = socket.async_io(Interest::READABLE, |socket| {
            Ok(rustix::io::read(socket, &mut piece[..])?)
        });
        let Ok(got @ 1..) = read.await else { return };
        for byte in &piece[..got] {
            match byte {
                b'\n' => take(&std::mem::take(&mut line), waiting),
                byte => line.push(*byte),
            }
        }
        if line.len() > LINE_MAX {
            return;
        }
    }
}

/// Hands an answer to the command that waits for it; anything else is skipped.
fn take(line: &[u8], waiting: &RefCell<Waiting>) {
    let Ok(line) = serde_json::from_slice::<Line>(line) else {
        return;
    };
    let mut waiting = waiting.borrow_mut();
    let is_awaited = waiting.as_ref().is_some_and(|(id, _)| line.id == Some(*id));
    if !is_awaited {
        return;
    }
    if let Some((_, answer)) = waiting.take() {
        let _ = answer.send(match line.error {
            None => Ok(line.answer.unwrap_or_default()),
            Some(refused) => Err(io::Error::other(Tail::of(refused.desc.as_bytes()).line())),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Talks to what a thread plays QEMU with.
    fn with(qemu: impl FnOnce(UnixStream) + Send + 'static, check: impl AsyncFnOnce(Qmp)) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let played = std::thread::spawn(move || qemu(theirs));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let both = Interest::READABLE | Interest::WRITABLE;
            let socket = crate::machine::watch_fd(ours.into(), both).expect("watched");
            check(Qmp::new(socket)).await;
        });
        played.join().expect("it ends");
    }

    fn asked(reader: &mut impl BufRead) -> Option<(String, u64)> {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        let command: Value = serde_json::from_str(&line).ok()?;
        Some((
            command["execute"].as_str()?.to_owned(),
            command["id"].as_u64()?,
        ))
    }

    #[test]
    fn events_stale_answers_and_garbage_are_skipped() {
        let qemu = |mut socket: UnixStream| {
            let mut reader = BufReader::new(socket.try_clone().expect("a copy"));
            writeln!(socket, r#"{{"QMP": {{"version": {{}}}}}}"#).expect("written");
            while let Some((_, id)) = asked(&mut reader) {
                for noise in [
                    r#"{"event": "STOP", "data": {"status": "completed"}}"#.to_owned(),
                    r#"{"event": "RESUME", "id": 1, "return": 7}"#.into(),
                    format!(r#"{{"id": {}, "return": {{"status": "failed"}}}}"#, id + 7),
                    r#"{"return": {"status": "failed"}}"#.into(),
                    "\u{0}\u{1b}[2J nonsense".into(),
                    "[".repeat(5000),
                ] {
                    writeln!(socket, "{noise}").expect("written");
                }
                writeln!(
                    socket,
                    r#"{{"id": {id}, "return": {{"status": "completed"}}}}"#
                )
                .expect("written");
            }
        };
        with(qemu, async |qmp| {
            qmp.stop().await.expect("stopped");
            qmp.moved().await.expect("moved");
            qmp.go_on().await.expect("goes on");
        });
    }

    #[test]
    fn refusals_are_quoted_as_one_plain_line_and_endless_lines_end_the_talk() {
        let qemu = |mut socket: UnixStream| {
            let mut reader = BufReader::new(socket.try_clone().expect("a copy"));
            let (_, id) = asked(&mut reader).expect("asked");
            let refusal = r#"{"class": "x", "desc": "no\n\u001b[2J such thing"}"#;
            writeln!(socket, r#"{{"id": {id}, "error": {refusal}}}"#).expect("written");
            asked(&mut reader).expect("asked again");
            let _ = socket.write_all(&vec![b'x'; LINE_MAX + 8192]);
        };
        with(qemu, async |qmp| {
            let refused = qmp.stop().await.expect_err("refused").to_string();
            assert_eq!(refused, "no [2J such thing");
            let ended = qmp.stop().await.expect_err("ended").to_string();
            assert!(ended.contains("cannot be read"), "{ended}");
            let ended = qmp.stop().await.expect_err("still").to_string();
            assert!(ended.contains("cannot be read"), "{ended}");
        });
    }

    #[test]
    fn state_that_was_not_moved_is_no_success() {
        let qemu = |mut socket: UnixStream| {
            let mut reader = BufReader::new(socket.try_clone().expect("a copy"));
            for status in ["active", "device", "failed"] {
                let (_, id) = asked(&mut reader).expect("asked");
                writeln!(
                    socket,
                    r#"{{"id": {id}, "return": {{"status": "{status}"}}}}"#
                )
                .expect("written");
            }
        };
        with(qemu, async |qmp| {
            let failed = qmp.moved().await.expect_err("it failed");
            assert!(failed.to_string().contains("could not move"), "{failed}");
        });
    }
}
