//! The calls that the privileged side makes itself: quiet before a capture, a look around after a
//! restore, the end. Their answers are distinguished by the length and the first bytes of one small
//! frame, so that no decoder of a guest's messages runs with privileges. Everything else that a guest
//! says goes to whoever was handed the connection.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::client::{CONNECT_DEADLINE, SHUTDOWN_MARGIN};
use crate::frame::{self, HEADER};
use crate::message::{Empty, ErrorCode, Open, Quiesce, Renew, Request, Shutdown};

/// The longest answer: a guest's refusal with its text, which the guest bounds to 1,024 bytes.
const ANSWER_MAX: usize = 1200;
/// Characters kept of what a guest says about a refusal, before they are escaped.
const QUOTE_MAX: usize = 300;

/// Keys of the fields of a `Reply`, and of those of an `Error` in it.
const ERROR: u8 = 1 << 3 | 2;
const DONE: u8 = 2 << 3 | 2;
const CODE: u8 = 1 << 3;
const MESSAGE: u8 = 2 << 3 | 2;

#[derive(Debug, thiserror::Error)]
pub enum BriefError {
    #[error("the guest cannot be reached")]
    Connect(#[source] io::Error),
    #[error("the connection to the guest failed")]
    Io(#[source] io::Error),
    #[error("the guest did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the guest sent an unexpected answer")]
    Unexpected,
    /// `quote` is the guest's own text, escaped, bounded and in quotation marks.
    #[error("the guest refused and says {quote}")]
    Refused { at_limit: bool, quote: String },
}

/// Asks the guest to let go of every connection, so that it can be captured. Returns once it has; it
/// then takes no call until it is sent SIGUSR1.
pub async fn quiesce<S: AsyncRead + AsyncWrite + Unpin>(
    connecting: impl Future<Output = io::Result<S>>,
    wait: Duration,
    margin: Duration,
) -> Result<(), BriefError> {
    let request = Request::Quiesce(Quiesce {
        wait_ms: milliseconds(wait),
    });
    let deadline = wait.saturating_add(margin);
    within(deadline, async {
        let mut stream = ask(connecting, request).await?;
        // Only its end of the connection counts, and that is closed when ours reads the end.
        match stream.read(&mut [0]).await {
            Ok(0) => Ok(()),
            Ok(_) => Err(BriefError::Unexpected),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(BriefError::Io(error)),
        }
    })
    .await
}

/// Tells a restored guest to look who it is now.
pub async fn refresh<S: AsyncRead + AsyncWrite + Unpin>(
    connecting: impl Future<Output = io::Result<S>>,
    deadline: Duration,
) -> Result<(), BriefError> {
    let asked = ask(connecting, Request::Refresh(Empty {}));
    within(deadline, asked).await.map(drop)
}

/// Lets the programs of a virtual machine go on, once its guest knows what time it is and who it is.
pub async fn renew<S: AsyncRead + AsyncWrite + Unpin>(
    connecting: impl Future<Output = io::Result<S>>,
    renew: Renew,
    deadline: Duration,
) -> Result<(), BriefError> {
    let asked = ask(connecting, Request::Renew(renew));
    within(deadline, asked).await.map(drop)
}

/// Has the guest write everything to its disk.
pub async fn flush<S: AsyncRead + AsyncWrite + Unpin>(
    connecting: impl Future<Output = io::Result<S>>,
    deadline: Duration,
) -> Result<(), BriefError> {
    let asked = ask(connecting, Request::Flush(Empty {}));
    within(deadline, asked).await.map(drop)
}

/// Ends every process inside and the guest itself. Returns when all is flushed.
pub async fn shutdown<S: AsyncRead + AsyncWrite + Unpin>(
    connecting: impl Future<Output = io::Result<S>>,
    grace: Duration,
) -> Result<(), BriefError> {
    let request = Request::Shutdown(Shutdown {
        grace_ms: milliseconds(grace),
    });
    let deadline = grace.saturating_add(SHUTDOWN_MARGIN);
    within(deadline, ask(connecting, request)).await.map(drop)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, BriefError>>,
) -> Result<T, BriefError> {
    timeout(deadline, work)
        .await
        .map_err(|_| BriefError::TimedOut(deadline))?
}

/// Sends one request and reads its outcome.
async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    connecting: impl Future<Output = io::Result<S>>,
    request: Request,
) -> Result<S, BriefError> {
    let mut stream = timeout(CONNECT_DEADLINE, connecting)
        .await
        .map_err(|_| BriefError::TimedOut(CONNECT_DEADLINE))?
        .map_err(BriefError::Connect)?;
    let open = Open::new(request);
    let mut out = BytesMut::new();
    frame::encode(&open, &mut out).map_err(|error| BriefError::Io(io::Error::other(error)))?;
    stream.write_all(&out).await.map_err(BriefError::Io)?;
    let mut header = [0; HEADER];
    stream
        .read_exact(&mut header)
        .await
        .map_err(BriefError::Io)?;
    let length = match frame::announced(&header) {
        Ok(Some(length)) if length <= ANSWER_MAX => length,
        _ => return Err(BriefError::Unexpected),
    };
    let mut answer = [0; ANSWER_MAX];
    let answer = &mut answer[..length];
    stream.read_exact(answer).await.map_err(BriefError::Io)?;
    outcome(answer).map(|()| stream)
}

/// What one answer means. Anything that is not exactly an outcome is an error.
fn outcome(answer: &[u8]) -> Result<(), BriefError> {
    match answer.split_first() {
        // Its figures mean nothing to these calls.
        Some((&DONE, rest)) => only(rest).map(drop),
        Some((&ERROR, rest)) => Err(refusal(only(rest)?)?),
        _ => Err(BriefError::Unexpected),
    }
}

/// The content of a field that must be the last one: a length of one or two bytes, and just as many bytes.
fn only(field: &[u8]) -> Result<&[u8], BriefError> {
    let (length, content) = match *field {
        [low @ 0..0x80, ref content @ ..] => (usize::from(low), content),
        [low @ 0x80..=0xff, high @ 1..0x80, ref content @ ..] => {
            (usize::from(low & 0x7f) | usize::from(high) << 7, content)
        }
        _ => return Err(BriefError::Unexpected),
    };
    match content.len() == length {
        true => Ok(content),
        false => Err(BriefError::Unexpected),
    }
}

fn refusal(error: &[u8]) -> Result<BriefError, BriefError> {
    let (code, rest) = match *error {
        [CODE, code @ 0..0x80, ref rest @ ..] => (i32::from(code), rest),
        // A code of 0 is not sent.
        ref rest => (0, rest),
    };
    let text = match rest.split_first() {
        None => &[][..],
        Some((&MESSAGE, rest)) => only(rest)?,
        Some(_) => return Err(BriefError::Unexpected),
    };
    Ok(BriefError::Refused {
        at_limit: code == ErrorCode::Limit as i32,
        quote: quoted(text),
    })
}

/// A guest's text as it may stand in a message: escaped, bounded, and marked as a quotation.
pub fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut quote = String::from("\"");
    for c in text.chars().take(QUOTE_MAX) {
        quote.extend(c.escape_debug());
    }
    if text.chars().nth(QUOTE_MAX).is_some() {
        quote.push('…');
    }
    quote.push('"');
    quote
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::message::{Done, Error, Info, Reply, ReplyKind};

    fn bytes(kind: ReplyKind) -> Vec<u8> {
        Reply { kind: Some(kind) }.encode_to_vec()
    }

    fn error(code: ErrorCode, message: &str) -> Vec<u8> {
        bytes(ReplyKind::Error(Error {
            code: code as i32,
            message: message.to_owned(),
        }))
    }

    #[test]
    fn outcomes_are_told_apart_as_the_decoder_would() {
        outcome(&bytes(ReplyKind::Done(Done::default()))).expect("done");
        for (code, limit) in [
            (ErrorCode::Limit, true),
            (ErrorCode::Internal, false),
            (ErrorCode::CommandNotFound, false),
        ] {
            for text in ["", "busy", &"x".repeat(1000)] {
                let Err(BriefError::Refused { at_limit, quote }) = outcome(&error(code, text))
                else {
                    panic!("{code:?} {text}");
                };
                assert_eq!(at_limit, limit);
                assert!(quote.contains(&text[..text.len().min(QUOTE_MAX)]));
            }
        }
        let other = bytes(ReplyKind::Info(Info::default()));
        assert!(matches!(outcome(&other), Err(BriefError::Unexpected)));
    }

    #[test]
    fn a_guests_text_stays_a_quotation() {
        let Err(BriefError::Refused { quote, .. }) =
            outcome(&error(ErrorCode::Limit, "a\u{1b}[2J\n\"b\" \u{202e}c"))
        else {
            panic!("a refusal");
        };
        assert_eq!(quote, "\"a\\u{1b}[2J\\n\\\"b\\\" \\u{202e}c\"");
    }

    /// Whatever comes, it is an outcome that a decoder would find as well, or refused.
    #[test]
    fn random_and_cut_answers_are_refused_or_mean_what_a_decoder_finds() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let good = [
            bytes(ReplyKind::Done(Done::default())),
            error(ErrorCode::Limit, "calls are still open"),
            error(ErrorCode::Internal, &"y".repeat(300)),
        ];
        for round in 0..50_000 {
            let mut answer = match round % 4 {
                0 => (0..random() % 40).map(|_| random() as u8).collect(),
                which => good[which - 1].clone(),
            };
            if round % 4 != 0 {
                let at = (random() % answer.len().max(1) as u64) as usize;
                match random() % 3 {
                    0 => answer.truncate(at),
                    1 => answer[at] = random() as u8,
                    _ => answer.push(random() as u8),
                }
            }
            match outcome(&answer) {
                Ok(()) => assert_eq!(answer.first(), Some(&DONE)),
                Err(BriefError::Refused { quote, .. }) => {
                    assert_eq!(answer.first(), Some(&ERROR));
                    assert!(quote.chars().count() <= QUOTE_MAX * 10 + 3);
                }
                Err(_) => {}
            }
        }
    }

    #[tokio::test]
    async fn an_endless_answer_is_refused_by_its_length() {
        let (near, mut far) = tokio::io::duplex(4096);
        let answering = tokio::spawn(async move {
            far.write_all(&(ANSWER_MAX as u32 + 1).to_le_bytes())
                .await
                .expect("it is read");
            far
        });
        let refused = refresh(async { Ok(near) }, Duration::from_secs(30)).await;
        assert!(
            matches!(refused, Err(BriefError::Unexpected)),
            "{refused:?}"
        );
        drop(answering.await.expect("it ends"));
    }

    #[tokio::test]
    async fn quiet_is_believed_only_at_the_end_of_the_connection() {
        for more in [&b""[..], b"x"] {
            let (near, mut far) = tokio::io::duplex(4096);
            let mut answer = BytesMut::new();
            let kind = Some(ReplyKind::Done(Done::default()));
            frame::encode(&Reply { kind }, &mut answer).expect("it is small");
            answer.extend_from_slice(more);
            let guest = async move {
                let length = far.read_u32_le().await.expect("the request comes");
                let mut request = vec![0; length as usize];
                far.read_exact(&mut request).await.expect("it comes whole");
                far.write_all(&answer).await.expect("there is room");
            };
            let time = Duration::from_secs(30);
            let (said, ()) = tokio::join!(quiesce(async { Ok(near) }, time, time), guest);
            assert_eq!(said.is_ok(), more.is_empty(), "{said:?}");
        }
    }
}
