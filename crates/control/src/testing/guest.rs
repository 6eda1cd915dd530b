//! A guest that knows a few answers by heart.

use cove_protocol::frame;
use cove_protocol::message::{
    Done, Error, ErrorCode, Exit, Info, Metrics, Open, Output, Process, Processes, Quiesced, Reply,
    ReplyKind, Request,
};
use cove_runner::GuestStream;
use tokio::net::UnixStream;

/// What a command says before and after the guest is captured.
const BEFORE: &str = "before,";
const AFTER: &str = "after\n";

/// Answers what its processes are; a command prints what it was given and exits with 0.
#[derive(Debug, Clone, Default)]
pub struct ScriptedGuest {
    pub processes: Vec<Process>,
    /// Breaks commands' output off after the first bytes, as a guest that is captured does; whoever
    /// comes back hears the rest.
    pub quiesces: bool,
}

impl ScriptedGuest {
    pub(super) fn connect(&self) -> GuestStream {
        let (ours, guest) = UnixStream::pair().expect("a socket pair can be made");
        let script = self.clone();
        tokio::spawn(async move { script.answer(guest).await });
        GuestStream::Unix(ours)
    }

    async fn answer(self, mut stream: UnixStream) {
        let opened = frame::FrameReader::default()
            .next::<_, Open>(&mut stream)
            .await;
        let Ok(open) = opened else {
            return;
        };
        for kind in self.replies(open.request) {
            let reply = Reply { kind: Some(kind) };
            if frame::write(&mut stream, &reply).await.is_err() {
                return;
            }
        }
    }

    fn replies(self, request: Option<Request>) -> Vec<ReplyKind> {
        match request {
            Some(Request::Info(_)) => vec![ReplyKind::Info(Info::default())],
            Some(Request::Metrics(_)) => vec![ReplyKind::Metrics(Metrics::default())],
            Some(Request::Processes(_)) => vec![
                ReplyKind::Processes(Processes {
                    processes: self.processes,
                }),
                ReplyKind::Done(Done::default()),
            ],
            Some(Request::Start(start)) => {
                let said = format!(
                    "user={} cwd={} tag={} argv={:?} shell={:?} env={:?}\n",
                    start.user, start.cwd, start.tag, start.argv, start.shell, start.env
                );
                let started = Process {
                    id: start.id,
                    argv: start.argv,
                    ..Process::default()
                };
                if !start.follow {
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
