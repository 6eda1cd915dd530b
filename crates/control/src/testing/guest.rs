//! A guest that knows a few answers by heart.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use cove_protocol::frame;
use cove_protocol::message::{
    Done, Error, ErrorCode, Exit, Info, Metrics, Open, Output, Process, Processes, Quiesced, Reply,
    ReplyKind, Request, Start,
};
use cove_runner_api::GuestStream;
use tokio::io::{AsyncReadExt, DuplexStream};

/// What is on its way in one direction at most.
const WIRE_BYTES: usize = 256 * 1024;
/// What a command says before and after the guest is captured.
const BEFORE: &str = "before,";
const AFTER: &str = "after\n";

/// Answers what its processes are; a command prints what it was given and exits with 0. As a real guest it
/// keeps a record of every command that it started, with what the start said about it.
#[derive(Debug, Clone, Default)]
pub struct ScriptedGuest {
    /// Processes that run beside those it is asked to start.
    pub processes: Vec<Process>,
    pub started: Arc<Mutex<Vec<Process>>>,
    /// Commands say nothing and run until [`ScriptedGuest::end_all`].
    pub lasting: bool,
    /// It is older than the kinds of processes, and keeps their mark only.
    pub old: bool,
    /// Breaks commands' output off after the first bytes, as a guest that is captured does; whoever
    /// comes back hears the rest.
    pub quiesces: bool,
}

impl ScriptedGuest {
    pub(super) fn connect(&self) -> GuestStream {
        // No descriptors, so that a test can hold thousands.
        let (ours, guest) = tokio::io::duplex(WIRE_BYTES);
        let script = self.clone();
        tokio::spawn(async move { script.answer(guest).await });
        GuestStream::Other(Box::new(ours))
    }

    /// Every command that runs ends.
    pub fn end_all(&self) {
        for process in self.table().iter_mut() {
            process.exit = Some(Exit::default());
        }
    }

    fn table(&self) -> MutexGuard<'_, Vec<Process>> {
        self.started.lock()
    }

    fn keep(&self, start: &Start) -> Process {
        let mut process = Process {
            id: start.id.clone(),
            argv: start.argv.clone(),
            pty: start.pty,
            kind: start.kind,
            owner: start.owner.clone(),
            tag: start.tag.clone(),
            mark: start.mark.clone(),
            viewers: start.follow.into(),
            exit: (!self.lasting).then(Exit::default),
            ..Process::default()
        };
        if self.old {
            process.kind = 0;
            process.owner.clear();
            process.tag.clear();
        }
        self.table().push(process.clone());
        process
    }

    async fn answer(self, mut stream: DuplexStream) {
        let opened = frame::FrameReader::default()
            .next::<_, Open>(&mut stream)
            .await;
        let Ok(open) = opened else {
            return;
        };
        let followed = match &open.request {
            Some(Request::Start(start)) if self.lasting && start.follow => Some(start.id.clone()),
            _ => None,
        };
        for kind in self.replies(open.request) {
            let reply = Reply { kind: Some(kind) };
            if frame::write(&mut stream, &reply).await.is_err() {
                return;
            }
        }
        if let Some(id) = followed {
            // Until the caller leaves.
            let _ = stream.read(&mut [0]).await;
            for process in self.table().iter_mut().filter(|process| process.id == id) {
                process.viewers = 0;
            }
        }
    }

    fn replies(&self, request: Option<Request>) -> Vec<ReplyKind> {
        match request {
            Some(Request::Info(_)) => vec![ReplyKind::Info(Info::default())],
            Some(Request::Metrics(_)) => vec![ReplyKind::Metrics(Metrics::default())],
            Some(Request::Processes(_)) => vec![
                ReplyKind::Processes(Processes {
                    processes: [self.processes.as_slice(), &self.table()].concat(),
                }),
                ReplyKind::Done(Done::default()),
            ],
            Some(Request::Start(start)) => {
                let said = format!(
                    "user={} cwd={} tag={} argv={:?} shell={:?} env={:?}\n",
                    start.user, start.cwd, start.tag, start.argv, start.shell, start.env
                );
                let started = Process {
                    exit: None,
                    ..self.keep(&start)
                };
                if !start.follow || self.lasting {
                    return vec![ReplyKind::Started(started)];
                }
                if self.quiesces {
                    return vec![
                        ReplyKind::Started(started),
                        ReplyKind::Output(Output {
                            data: BEFORE.into(),
                            ..Output::default()
                        }),
                        ReplyKind::Quiesce(Quiesced::default()),
                    ];
                }
                let length = said.len() as u64;
                vec![
                    ReplyKind::Started(started),
                    ReplyKind::Output(Output {
                        data: said.into(),
                        ..Output::default()
                    }),
                    ReplyKind::Exit(Exit {
                        stdout_bytes: length,
                        ..Exit::default()
                    }),
                ]
            }
            Some(Request::Output(from)) if self.quiesces => {
                let all = format!("{BEFORE}{AFTER}");
                let offset = from.stdout_from.min(all.len() as u64);
                let rest = all.as_bytes()[offset as usize..].to_vec();
                vec![
                    ReplyKind::Output(Output {
                        offset,
                        data: rest.into(),
                        ..Output::default()
                    }),
                    ReplyKind::Exit(Exit {
                        stdout_bytes: all.len() as u64,
                        ..Exit::default()
                    }),
                ]
            }
            _ => vec![ReplyKind::Error(Error {
                code: ErrorCode::Unsupported as i32,
                message: "not in the script".into(),
            })],
        }
    }
}
