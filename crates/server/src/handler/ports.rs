//! Ports inside: who listens, and who may visit.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use cove_api::port::{PortShare, SharePort};
use cove_api::{ErrorCode, NoQuery};
use cove_control::{GuestAction, ShareRequest};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;

use super::processes::process_failure;
use super::{Answer, nothing, ok, with_status};
use crate::convert;
use crate::extract::{Caller, JsonOr, Names, Query};
use crate::failure::Failure;
use crate::preview::{PreviewUrl, TOKEN_FIELD};
use crate::state::App;
use crate::streaming::Counted;
use cove_dialect::Kind;

/// The protocol a connection to a port is asked for with.
const TCP: &str = "tcp";
/// For each direction of a connection.
const BUFFER: usize = 64 * 1024;

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::PortList)
        .await?;
    let ports = access.guest().ports().await.map_err(process_failure)?;
    let id = &access.sandbox().id;
    let public = app.control.public_ports(id).await?;
    let show = |port: cove_protocol::message::Port| {
        let number = u16::try_from(port.port).ok();
        let place = app.config.previews.as_ref().zip(number);
        let url = place.map(|(place, port)| place.host_url(id, port));
        let open = number.is_some_and(|port| public.contains(&port));
        convert::port(port, url, open)
    };
    ok(convert::everything(ports.into_iter().map(show).collect()))
}

pub async fn share(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, port)): Names<(String, String)>,
    JsonOr(request): JsonOr<SharePort>,
) -> Answer {
    let port = number(&port)?;
    let place = previews(&app)?;
    let request = ShareRequest {
        expires_s: request.expires_s,
        public: request.public,
    };
    let share = app
        .control
        .share_port(&caller.principal, &id, port, request)
        .await?;
    let signed = |url: String| match &share.token {
        Some(token) => format!("{url}?{TOKEN_FIELD}={token}"),
        None => url,
    };
    let answer = PortShare {
        url: signed(place.host_url(&share.sandbox, port)),
        path_url: place.path_url(&share.sandbox, port),
        public: share.public,
        expires_at: share.expires_at.map(Into::into),
        token: share.token,
    };
    with_status(StatusCode::CREATED, answer)
}

pub async fn unshare(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, port)): Names<(String, String)>,
) -> Answer {
    let port = number(&port)?;
    app.control
        .unshare_port(&caller.principal, &id, port)
        .await?;
    nothing()
}

/// A connection to a port inside: once it stands the request's own connection becomes it, each direction
/// ending by itself.
pub async fn connect(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, port)): Names<(String, String)>,
    mut request: Request,
) -> Answer {
    let port = number(&port)?;
    let asked = request.headers().get(header::UPGRADE);
    if !asked.is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(TCP.as_bytes())) {
        return Err(Failure::invalid("this route opens connections")
            .hint("send `Connection: upgrade` and `Upgrade: tcp`, or use `cove port-forward`"));
    }
    let admission = app.control.admission_of(&caller.principal);
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::PortConnect)
        .await?;
    let slot = app.front.streams.enter(&access.sandbox().org, Kind::Port)?;
    let mut stream = access
        .guest()
        .connect_port(port)
        .await
        .map_err(process_failure)?;
    let caller_side = hyper::upgrade::on(&mut request);
    let counted = Counted::new(&app);
    let ending = app.closing.clone();
    app.sessions.spawn(async move {
        let carry = async {
            let caller = caller_side.await.map_err(std::io::Error::other)?;
            let mut caller = TokioIo::new(caller);
            copy_bidirectional_with_sizes(&mut caller, &mut stream, BUFFER, BUFFER).await
        };
        tokio::select! {
            // Whoever broke it off knows.
            _ = carry => {}
            () = ending.cancelled() => {}
            () = admission.ended() => {}
        }
        drop((access, counted, slot));
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, TCP)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

pub fn number(text: &str) -> Result<u16, Failure> {
    text.parse()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Failure::invalid("port must be a number between 1 and 65535"))
}

fn previews(app: &App) -> Result<&PreviewUrl, Failure> {
    app.config.previews.as_ref().ok_or_else(|| {
        Failure::new(ErrorCode::Unsupported, "this server has no previews")
            .hint("start it with --preview-listen ADDRESS")
    })
}
