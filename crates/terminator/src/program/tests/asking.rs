//! Requests with a secret that asks: held, refused, and sent exactly as often as was approved.

use std::sync::atomic::{AtomicUsize, Ordering};

use cove_model::ApprovalId;
use cove_model::approval::{APPROVAL_BODY_MAX, APPROVALS_PENDING_MAX, ApprovalState, Decision};
use hyper::client::conn::http2::SendRequest;

use super::*;
use crate::call::{Asked, Decided};

const LONG: Duration = Duration::from_secs(600);

struct Asking {
    sender: SendRequest<Full<Bytes>>,
    table: Arc<Table>,
    /// Requests that the server got, with the value.
    served: Arc<AtomicUsize>,
}

impl Asking {
    async fn new(usage: &str, hold: Duration) -> Self {
        let served = Arc::new(AtomicUsize::new(0));
        let count = served.clone();
        let serve = |server| async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let count = count.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    let head = format!("{} {:?}", parts.uri, parts.headers);
                    let body = String::from_utf8_lossy(&body).into_owned();
                    if (head + &body).contains(VALUE) {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from("served"))))
                }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder
                .serve_connection(TokioIo::new(server), service)
                .await;
        };
        let (client, table) = connect_asking(usage, VALUE, Some(hold), b"h2", serve).await;
        let shaken =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client));
        let (sender, connection) = shaken.await.unwrap();
        tokio::spawn(connection);
        Self {
            sender,
            table,
            served,
        }
    }

    /// The status, the approval that a refusal names, and what it says.
    fn send<B: Into<Bytes>>(
        &self,
        method: &str,
        path: &str,
        body: B,
    ) -> impl Future<Output = (StatusCode, Option<ApprovalId>, String)> + use<B> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://{HOST}{path}"))
            .version(Version::HTTP_2)
            .header("authorization", format!("Bearer {PLACEHOLDER}"))
            .body(Full::new(body.into()))
            .unwrap();
        self.send_it(request)
    }

    fn send_it(
        &self,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = (StatusCode, Option<ApprovalId>, String)> + use<> {
        let mut sender = self.sender.clone();
        async move {
            let answer = sender.send_request(request).await.unwrap();
            let id = answer.headers().get("cove-approval");
            let id = id.map(|id| id.to_str().unwrap().parse().unwrap());
            let status = answer.status();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, id, String::from_utf8_lossy(&body).into_owned())
        }
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }

    /// Waits until so many requests are held.
    async fn waiting(&self, count: u32) -> Vec<Asked> {
        loop {
            let asked = self.table.asked(None);
            if asked.iter().map(|it| it.waiting).sum::<u32>() == count {
                return asked;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_held_request_is_sent_when_it_is_approved_and_never_again() {
    let asking = Asking::new("bearer", LONG).await;
    let first = tokio::spawn(asking.send("POST", "/v1?a=b", "pay 1"));
    let second = tokio::spawn(asking.send("POST", "/v1?a=b", "pay 1"));
    let asked = asking.waiting(2).await;
    let [one] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!((&*one.method, &*one.path), ("POST", "/v1?a=b"));
    assert_eq!(one.body, Some(crate::program::body::digest(b"pay 1")));
    assert_eq!(asking.served(), 0);
    assert_eq!(asking.table.decide(&one.id, Decision::Once), Decided::Done);
    // One of the two is sent, the other asks anew.
    let asked = asking.waiting(1).await;
    assert_ne!(asked[0].id, one.id);
    assert_eq!(
        asking.table.decide(&one.id, Decision::Once),
        Decided::Unknown
    );
    assert_eq!(
        asking.table.decide(&asked[0].id, Decision::Deny),
        Decided::Done
    );
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let mut statuses = [first.0, second.0];
    statuses.sort();
    assert_eq!(statuses, [StatusCode::OK, StatusCode::FORBIDDEN]);
    assert_eq!(asking.served(), 1);
    let (status, id, text) = asking.send("POST", "/v1?a=b", "pay 1").await;
    assert_eq!(
        (status, id.as_ref()),
        (StatusCode::FORBIDDEN, Some(&asked[0].id))
    );
    assert!(text.contains("denied"), "{text}");
    assert_eq!(asking.served(), 1);
}

#[tokio::test]
async fn a_retry_passes_after_approval_and_a_changed_one_asks() {
    let asking = Asking::new("bearer", Duration::ZERO).await;
    let (status, id, text) = asking.send("POST", "/v1", "a").await;
    let id = id.unwrap();
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        text.contains(&format!("cove approvals approve {id}")),
        "{text}"
    );
    assert_eq!(asking.table.decide(&id, Decision::Once), Decided::Done);
    for (method, path, body) in [
        ("POST", "/v1", "b"),
        ("POST", "/v2", "a"),
        ("PUT", "/v1", "a"),
    ] {
        let (status, other, _) = asking.send(method, path, body).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert_ne!(other, Some(id.clone()));
    }
    assert_eq!(asking.served(), 0);
    assert_eq!(asking.send("POST", "/v1", "a").await.0, StatusCode::OK);
    assert_eq!(
        asking.send("POST", "/v1", "a").await.0,
        StatusCode::FORBIDDEN
    );
    assert_eq!(asking.served(), 1);
    // A sandbox that is told to be another one starts over.
    for number in 0..APPROVALS_PENDING_MAX {
        asking.send("GET", &format!("/{number}"), "").await;
    }
    let (status, id, text) = asking.send("GET", "/another", "").await;
    assert_eq!(
        (status, id),
        (StatusCode::TOO_MANY_REQUESTS, None),
        "{text}"
    );
}

#[tokio::test]
async fn what_cannot_be_shown_or_held_is_not_approved_once() {
    let asking = Asking::new("bearer", LONG).await;
    let long = vec![b'x'; APPROVAL_BODY_MAX + 1];
    let held = tokio::spawn(asking.send("POST", "/long", long.clone()));
    let asked = asking.waiting(1).await;
    let id = &asked[0].id;
    assert_eq!(asking.table.decide(id, Decision::Once), Decided::NotOnce);
    assert_eq!(asking.table.decide(id, Decision::For(3600)), Decided::Done);
    // Its length was known, so none of it was read.
    assert_eq!(held.await.unwrap().0, StatusCode::OK);
    assert_eq!(asking.send("PUT", "/other", long).await.0, StatusCode::OK);
    assert_eq!(asking.served(), 2);
    assert_eq!(asking.table.asked(None)[0].state, ApprovalState::Timed);
    asking.table.decide(id, Decision::Deny);
    // What was approved for a time is not any more; the connection that used it is cut.
    while !asking.sender.is_closed() {
        tokio::task::yield_now().await;
    }

    let asking = Asking::new("bearer", LONG).await;
    let path = format!("/{}", "x".repeat(5000));
    assert_eq!(
        asking.send("GET", &path, "").await.0,
        StatusCode::BAD_REQUEST
    );
    let tunnelled = Request::post(format!("https://{HOST}/"))
        .version(Version::HTTP_2)
        .header("authorization", format!("Bearer {PLACEHOLDER}"))
        .header("X-HTTP-Method-Override", "DELETE")
        .body(Full::default())
        .unwrap();
    assert_eq!(asking.send_it(tunnelled).await.0, StatusCode::BAD_REQUEST);
    // Without the secret nothing is asked.
    let plain = Request::get(format!("https://{HOST}/")).version(Version::HTTP_2);
    let plain = plain.body(Full::default()).unwrap();
    assert_eq!(asking.send_it(plain).await.0, StatusCode::OK);
    assert!(asking.table.asked(None).is_empty());
    assert_eq!(asking.served(), 0);
}

#[tokio::test]
async fn a_field_of_a_form_asks_too() {
    let asking = Asking::new("form:key", Duration::ZERO).await;
    let form = |text: String| {
        Request::post(format!("https://{HOST}/form"))
            .version(Version::HTTP_2)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(text)))
            .unwrap()
    };
    let used = || form(format!("key={PLACEHOLDER}&amount=1"));
    let (status, id, _) = asking.send_it(used()).await;
    assert_eq!((status, asking.served()), (StatusCode::FORBIDDEN, 0));
    asking.table.decide(&id.unwrap(), Decision::Once);
    let other = form(format!("key={PLACEHOLDER}&amount=2"));
    assert_eq!(asking.send_it(other).await.0, StatusCode::FORBIDDEN);
    assert_eq!(asking.send_it(form("a=b".into())).await.0, StatusCode::OK);
    assert_eq!(asking.served(), 0);
    assert_eq!(asking.send_it(used()).await.0, StatusCode::OK);
    assert_eq!(asking.served(), 1);
}
