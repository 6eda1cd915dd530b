//! Counts one request against the budgets of the secrets that it uses: what it reserved before it was sent, what its
//! bodies use on the way, and what comes back when it is over.

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cove_model::secret::{BudgetScope, BudgetUnit};
use hyper::body::{Body, Frame, SizeHint};
use hyper::http::request::Parts;
use hyper::http::response;
use hyper::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use super::budgets::{Need, Part};
use super::refusal::Refusal;
use super::table::{Connection, Usable};
use crate::call::Purse;

/// What is set aside for an answer before it is known how long it is.
const ANSWER_RESERVED: u64 = 16 * 1024;
/// What a header takes besides its name and its value.
const HEADER_BYTES: usize = 4;

/// It gives back what is left when it is dropped, with both bodies.
pub struct Meter {
    connection: Arc<Connection>,
    parts: Mutex<Vec<Part>>,
    /// What more bytes are asked for with: the budgets of bytes.
    bytes: Vec<Need>,
    /// Why the request's body was cut.
    over: OnceLock<Refusal>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.connection.settle(&mut self.parts.lock());
    }
}

impl Meter {
    /// Reserves what the request may use at most, and waits for blocks where there are none. `None` where no secret
    /// of the request has a budget. Nothing has been sent when it is refused.
    pub async fn reserve(
        connection: &Arc<Connection>,
        used: &[&Usable],
        head: &Parts,
        body: &SizeHint,
        upgrading: bool,
    ) -> Result<Option<Arc<Self>>, Refusal> {
        let mut purses = BTreeSet::new();
        let mut needs = Vec::new();
        for secret in used {
            for limit in &secret.binding.limits {
                let own = limit.per == BudgetScope::Sandbox;
                let purse = Purse {
                    secret: secret.slots.1,
                    sandbox: own.then_some(secret.slots.0),
                    of: limit.of,
                };
                if !purses.insert(purse) {
                    continue;
                }
                let amount = match limit.of {
                    BudgetUnit::Requests => 1,
                    BudgetUnit::Bytes => {
                        let known = body.exact().unwrap_or(0);
                        request_head(head)
                            .saturating_add(known)
                            .saturating_add(ANSWER_RESERVED)
                    }
                };
                needs.push(Need {
                    purse,
                    id: secret.key.0.clone(),
                    name: secret.name.to_string(),
                    asker: secret.slots.0,
                    amount,
                });
            }
        }
        if needs.is_empty() {
            return Ok(None);
        }
        let counts_bytes = |need: &&Need| need.purse.of == BudgetUnit::Bytes;
        // What passes after an upgrade is not looked at.
        if upgrading && needs.iter().any(|need| counts_bytes(&need)) {
            return Err(Refusal::Uncountable);
        }
        let parts = connection.reserve(&needs).await?;
        Ok(Some(Arc::new(Self {
            connection: Arc::clone(connection),
            parts: Mutex::new(parts),
            bytes: needs.iter().filter(counts_bytes).cloned().collect(),
            over: OnceLock::new(),
        })))
    }

    /// It is on its way now, whatever becomes of it.
    pub fn sent(&self, head: u64) {
        let mut parts = self.parts.lock();
        for part in parts.iter_mut() {
            match part.of() {
                BudgetUnit::Requests => part.spend(1),
                BudgetUnit::Bytes => part.spend(head),
            };
        }
    }

    /// What is missing for so many bytes, of each budget; the rest is used up.
    fn spend(&self, bytes: u64) -> Vec<Need> {
        let mut parts = self.parts.lock();
        let mut missing = Vec::new();
        for need in &self.bytes {
            let found = parts.iter_mut().filter(|part| part.is_of(need));
            let rest = found.fold(bytes, |rest, part| rest - part.spend(rest));
            if rest > 0 {
                missing.push(Need {
                    amount: rest,
                    ..need.clone()
                });
            }
        }
        missing
    }

    /// So many bytes pass. `None` when blocks have to be waited for, with [`Meter::wait_for`].
    fn pass(&self, bytes: u64) -> Result<(), Vec<Need>> {
        let missing = self.spend(bytes);
        match missing.is_empty() || self.connection.try_spend(&missing) {
            true => Ok(()),
            false => Err(missing),
        }
    }

    async fn wait_for(&self, missing: &[Need]) -> Result<(), Refusal> {
        for part in &mut self.connection.reserve(missing).await? {
            part.spend(u64::MAX);
        }
        Ok(())
    }

    /// An answer's head, and its body where its length is known: one that is too long is not begun.
    pub async fn answered(
        &self,
        head: &response::Parts,
        of_head: bool,
        length: Option<u64>,
    ) -> Result<(), Refusal> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let bytes = headers(&head.headers).saturating_add(HEADER_BYTES as u64);
        if let Err(missing) = self.pass(bytes) {
            self.wait_for(&missing).await?;
        }
        let bodiless = is_bodiless(head.status, of_head);
        let length = length.filter(|_| !bodiless).unwrap_or(0);
        let mut more = Vec::new();
        for need in &self.bytes {
            let parts = self.parts.lock();
            let there: u64 = parts
                .iter()
                .filter(|it| it.is_of(need))
                .map(Part::left)
                .sum();
            if length > there {
                more.push(Need {
                    amount: length - there,
                    ..need.clone()
                });
            }
        }
        if !more.is_empty() {
            let parts = self.connection.reserve(&more).await?;
            self.parts.lock().extend(parts);
        }
        Ok(())
    }

    /// Why the request's body was cut, if it was.
    pub fn over(&self) -> Option<Refusal> {
        self.over.get().cloned()
    }
}

pub fn request_head(head: &Parts) -> u64 {
    let path = head.uri.path_and_query().map_or(1, |it| it.as_str().len());
    headers(&head.headers) + (path + head.method.as_str().len() + HEADER_BYTES) as u64
}

fn headers(headers: &HeaderMap) -> u64 {
    let each = headers.iter();
    each.map(|(name, value)| (name.as_str().len() + value.len() + HEADER_BYTES) as u64)
        .sum()
}

pub fn is_bodiless(status: StatusCode, head: bool) -> bool {
    head || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

type Waiting = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send>>;

/// A body that is counted on its way; as it is where there is no budget.
pub struct Metered<B> {
    body: B,
    meter: Option<Arc<Meter>>,
    /// Bytes that have to be paid for before they pass.
    held: Option<(Bytes, Waiting)>,
}

impl<B> Metered<B> {
    pub fn new(body: B, meter: Option<Arc<Meter>>) -> Self {
        Self {
            body,
            meter,
            held: None,
        }
    }
}

impl<B> Body for Metered<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        loop {
            if let Some((piece, waiting)) = &mut this.held {
                let paid = ready!(waiting.as_mut().poll(cx));
                let piece = std::mem::take(piece);
                this.held = None;
                return Poll::Ready(Some(match paid {
                    Ok(()) => Ok(Frame::data(piece)),
                    Err(refusal) => {
                        let told = io::Error::other(refusal.to_string());
                        if let Some(meter) = &this.meter {
                            let _ = meter.over.set(refusal);
                        }
                        Err(told)
                    }
                }));
            }
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                Some(Ok(frame)) => frame,
            };
            let Some(meter) = this.meter.as_ref().filter(|it| !it.bytes.is_empty()) else {
                return Poll::Ready(Some(Ok(frame)));
            };
            let bytes = match (frame.data_ref(), frame.trailers_ref()) {
                (Some(piece), _) => piece.len() as u64,
                (None, Some(trailers)) => headers(trailers),
                (None, None) => 0,
            };
            let Err(missing) = meter.pass(bytes) else {
                return Poll::Ready(Some(Ok(frame)));
            };
            let Ok(piece) = frame.into_data() else {
                // Trailers are short and the last: they need no wait.
                return Poll::Ready(Some(Err(io::Error::other("the budget is used up"))));
            };
            let meter = Arc::clone(meter);
            let waiting = Box::pin(async move { meter.wait_for(&missing).await });
            this.held = Some((piece, waiting));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.held {
            None => self.body.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}
