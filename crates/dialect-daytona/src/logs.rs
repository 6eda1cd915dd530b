//! A command's output as it comes.

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::IntoResponse;
use bytes::{BufMut, BytesMut};
use cove_control::{GuestAccess, GuestAction, Principal};
use cove_dialect::{Following, Front, Kind};
use cove_protocol::client::FollowEvent;
use cove_protocol::message::{Channel, OutputFrom, Process};
use futures_util::StreamExt;

use crate::asking::{Caller, Names};
use crate::refusal::Answer;
use crate::sessions;
use crate::streams::{self, DONE, FAILED, Out, Stream};

/// What goes before each piece.
const STDOUT: [u8; 3] = [1, 1, 1];
const STDERR: [u8; 3] = [2, 2, 2];

/// In one piece; or over a WebSocket until the end, when that is what asks.
pub async fn logs(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name, cmd)): Names<(String, String, String)>,
    uri: Uri,
    request: Request,
) -> Answer {
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessRead)
        .await?;
    let process = sessions::found(&access, &name, &cmd).await?;
    if follows(&uri, &request) {
        return follow(&front, &caller, access, process, request).await;
    }
    sessions::logs(&front, access, process).await
}

/// Whether the output is asked for over a WebSocket.
pub fn follows(uri: &Uri, request: &Request) -> bool {
    let query = uri.query().unwrap_or_default();
    query.contains("follow=true") && streams::is_upgrade(request)
}

pub async fn follow(
    front: &Front,
    caller: &Principal,
    access: GuestAccess,
    process: Process,
    request: Request,
) -> Answer {
    let from = OutputFrom {
        id: process.id,
        follow: true,
        ..OutputFrom::default()
    };
    let seat = front.seat(caller, Kind::Live)?;
    let (upgrade, wire) = streams::upgrade(front, caller, request, Vec::new()).await?;
    let mut following = Following::attach(access, from).await?;
    let (tracker, draining) = (front.sessions.clone(), front.draining.clone());
    Ok(upgrade
        .on_upgrade(move |socket| {
            tracker.track_future(async move {
                let (sink, stream) = socket.split();
                let mut stream = Stream::new(stream, wire);
                let mut out = Out::new(sink);
                let told = async {
                    loop {
                        let next = Box::pin(following.next());
                        match out.while_waiting(next).await? {
                            Ok(Some(FollowEvent::Output {
                                channel,
                                data,
                                dropped,
                                ..
                            })) => {
                                let mark = match channel {
                                    Channel::Stdout => STDOUT,
                                    Channel::Stderr => STDERR,
                                };
                                let missing = sessions::dropped_remark(dropped);
                                let mut frame = BytesMut::with_capacity(
                                    data.len() + missing.len() + mark.len(),
                                );
                                frame.put_slice(&mark);
                                frame.put_slice(missing.as_bytes());
                                frame.put_slice(&data);
                                out.bytes(frame).await?;
                            }
                            Ok(Some(FollowEvent::Exit(_)) | None) => {
                                return Some((DONE, String::new()));
                            }
                            Ok(Some(FollowEvent::Started(_) | FollowEvent::Refused(_))) => {}
                            Err(error) => {
                                let refusal = crate::refusal::Refusal::from(error);
                                return Some((FAILED, refusal.message().to_owned()));
                            }
                        }
                    }
                };
                // Whoever follows says nothing but goodbye.
                let left = async { while streams::heard(&mut stream).await.is_some() {} };
                let end = tokio::select! {
                    end = told => end,
                    () = left => None,
                    () = draining.cancelled() => Some((1012, "the server is restarting".into())),
                    () = seat.ended() => Some(streams::taken_back()),
                };
                if let Some((code, reason)) = end {
                    out.close(code, &reason).await;
                }
            })
        })
        .into_response())
}
