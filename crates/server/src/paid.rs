//! Answers on their way to the socket: what of them is held in memory is on the account of who asked,
//! until its last byte was handed over, and tells its connection that it waits.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Method;
use axum::response::Response;
use cove_control::{Account, Charge, ControlError};
use hyper::body::{Frame, SizeHint};

use crate::pulse::Flight;
use crate::room::{NoRoomLeft, Room};

/// Answers up to this size are sent in any case: a refusal is one, and what was done must be reported.
const SMALL: u64 = 64 * 1024;
/// What must be free before an answer that goes on is asked for more of itself.
const ROOM: usize = 64 * 1024;

/// Who pays for an answer, and what was paid when it was made. Left in the response.
#[derive(Clone)]
pub struct Payer {
    account: Account,
    prepaid: Option<Arc<Charge>>,
}

/// Puts an answer on its account. One in one piece must fit, unless it tells of something that was done.
pub fn put_on(
    account: Account,
    answer: &mut Response,
    may_refuse: bool,
) -> Result<(), ControlError> {
    let mut prepaid = None;
    if let Some(size) = answer.body().size_hint().exact()
        && size > 0
    {
        let mut charge = account.charge();
        let bytes = usize::try_from(size).unwrap_or(usize::MAX);
        match may_refuse && size > SMALL {
            true => charge.take(bytes)?,
            false => charge.force(bytes),
        }
        prepaid = Some(Arc::new(charge));
    }
    answer.extensions_mut().insert(Payer { account, prepaid });
    Ok(())
}

/// The answer as it goes to its connection.
pub fn send(
    mut answer: Response,
    asked: &Method,
    flight: Arc<Flight>,
    patience: Duration,
) -> Response {
    let payer = answer.extensions_mut().remove::<Payer>();
    let goes_on = answer.body().size_hint().exact().is_none();
    if *asked == Method::HEAD || answer.body().is_end_stream() {
        flight.answered();
    }
    flight.handed();
    answer.map(|inner| {
        Body::new(Sending {
            inner,
            payer,
            flight,
            goes_on,
            patience,
            room: Room::default(),
        })
    })
}

struct Sending {
    inner: Body,
    payer: Option<Payer>,
    flight: Arc<Flight>,
    goes_on: bool,
    /// How long an answer may find no room before it is given up.
    patience: Duration,
    room: Room,
}

impl Sending {
    /// Ready when there is room for more of an answer that goes on.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NoRoomLeft>> {
        let Some(payer) = self.payer.as_ref().filter(|_| self.goes_on) else {
            return Poll::Ready(Ok(()));
        };
        self.room
            .poll(cx, self.patience, || payer.account.fits(ROOM))
    }

    fn held(&mut self, bytes: Bytes) -> Bytes {
        let paid = self.payer.as_mut().map(|payer| match payer.prepaid.take() {
            Some(charge) => charge,
            None => {
                let mut charge = payer.account.charge();
                charge.force(bytes.len());
                Arc::new(charge)
            }
        });
        Bytes::from_owner(Sent {
            bytes,
            _paid: paid,
            _flight: Arc::clone(&self.flight),
        })
    }
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.poll_room(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(axum::Error::new(error)))),
            Poll::Pending => {
                self.flight.waits();
                return Poll::Pending;
            }
        }
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let Poll::Ready(frame) = polled else {
            self.flight.waits();
            return Poll::Pending;
        };
        self.flight.answered();
        self.flight.handed();
        let frame = frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.held(bytes))));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Bytes of an answer that were not handed to the socket yet.
struct Sent {
    bytes: Bytes,
    _paid: Option<Arc<Charge>>,
    _flight: Arc<Flight>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
