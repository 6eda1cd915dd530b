//! State changes as they happen, over Socket.IO: as much of it as the SDKs speak, on a WebSocket.
//!
//! Of Engine.IO 4 that is the opening, pings and messages; of Socket.IO the connection to one namespace,
//! refused or not, and events. Nothing is acknowledged and nothing resumed: whoever comes back asks how
//! things stand.

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use cove_control::{EventItem, Principal};
use cove_dialect::{Front, Kind};
use cove_model::{EventKind, SandboxId};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::convert;
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;
use crate::streams::{self, DONE, Out, Stream};

const PING_EVERY: Duration = Duration::from_secs(25);
const PONG_WAIT: Duration = Duration::from_secs(20);
/// For the first word of a caller, which says who it is.
const GREETING: Duration = Duration::from_secs(10);
/// Bytes of one message: a token, or the answer to a ping. Whoever sends the first one is not known yet.
const PAYLOAD: usize = 16 * 1024;
/// Sandboxes whose last state is remembered for one listener.
const REMEMBERED: usize = 4096;

#[derive(Debug, Deserialize)]
struct Greeting {
    token: String,
}

pub async fn listen(State(front): State<Front>, place: ServerAddress, request: Request) -> Answer {
    let query = request.uri().query().unwrap_or("");
    if !streams::is_upgrade(&request) || !query.contains("EIO=4") {
        return Err(Refusal::invalid(
            "events are sent over Socket.IO on a WebSocket (EIO=4, transport=websocket)",
        ));
    }
    let extensions = request.extensions().clone();
    let (upgrade, wire) = streams::upgrade_within(&front, request, PAYLOAD).await?;
    let tracker = front.sessions.clone();
    Ok(upgrade
        .on_upgrade(move |socket| {
            tracker.track_future(async move {
                let (sink, stream) = socket.split();
                let mut stream = Stream::new(stream, wire.clone());
                let mut out = Out::new(sink);
                let end = async {
                    let opening = json!({
                        "sid": sid(),
                        "upgrades": [],
                        "pingInterval": PING_EVERY.as_millis() as u64,
                        "pingTimeout": PONG_WAIT.as_millis() as u64,
                        "maxPayload": PAYLOAD,
                    });
                    out.text(format!("0{opening}")).await?;
                    let first = timeout(GREETING, streams::heard(&mut stream))
                        .await
                        .ok()??;
                    let known = async {
                        let text = first.strip_prefix(b"40").unwrap_or(b"");
                        let greeting: Greeting = serde_json::from_slice(text).map_err(|_| {
                            Refusal::invalid("the first message must be a connect with a token")
                        })?;
                        let caller = front.caller(&extensions, &greeting.token).await?;
                        let seat = front.seat(&caller, Kind::Live)?;
                        Ok::<_, Refusal>((caller, seat))
                    };
                    match known.await {
                        Ok((caller, seat)) => {
                            wire.pay(&front.control.budget().account(&caller));
                            out.text(format!("40{}", json!({ "sid": sid() }))).await?;
                            tokio::select! {
                                told = tell(&front, &caller, &place, &mut out, &mut stream) => told,
                                () = seat.ended() => Some(()),
                            }
                        }
                        Err(refusal) => {
                            let told = json!({ "message": refusal.message() });
                            out.text(format!("44{told}")).await?;
                            Some(())
                        }
                    }
                };
                let ended = tokio::select! {
                    ended = end => ended,
                    () = front.draining.cancelled() => Some(()),
                };
                if ended.is_some() {
                    out.close(DONE, "").await;
                }
            })
        })
        .into_response())
}

fn sid() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Until the caller leaves (`None`) or there is nothing more to tell.
async fn tell(
    front: &Front,
    caller: &Principal,
    place: &ServerAddress,
    out: &mut Out,
    stream: &mut Stream,
) -> Option<()> {
    let mut events = front.control.events(caller, None, None).await.ok()?;
    let mut pings = interval(PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.tick().await;
    let mut last: HashMap<SandboxId, &'static str> = HashMap::new();
    loop {
        tokio::select! {
            heard = streams::heard(stream) => {
                let heard = heard?;
                // Goodbye, in either protocol's words; all else is answers to pings.
                if heard.starts_with(b"1") || heard.starts_with(b"41") {
                    return Some(());
                }
            }
            _ = pings.tick() => out.text("2".into()).await?,
            event = events.next() => {
                let Ok(Some(EventItem::Event(event))) = event else {
                    match event {
                        Ok(Some(EventItem::Lost { .. })) => continue,
                        _ => return Some(()),
                    }
                };
                let EventKind::State { state, .. } = event.kind else {
                    continue;
                };
                let new = convert::state_word(state);
                if last.len() >= REMEMBERED {
                    last.clear();
                }
                let old = last.insert(event.sandbox.clone(), new);
                let id = event.sandbox.as_str();
                let sandbox = match front.control.sandbox_of(caller, &event).await {
                    Ok(Some(sandbox)) => {
                        serde_json::to_value(convert::sandbox(sandbox, place.toolbox())).ok()?
                    }
                    Ok(None) | Err(_) => json!({ "id": id, "state": "destroyed" }),
                };
                let told = match (old, new) {
                    (None, "creating") => json!(["sandbox.created", sandbox]),
                    _ => json!(["sandbox.state.updated", {
                        "sandbox": sandbox,
                        "oldState": old.unwrap_or("unknown"),
                        "newState": new,
                    }]),
                };
                out.text(format!("42{told}")).await?;
            }
        }
    }
}
