//! Requests with a secret that has a budget, against sandboxes that try to use more than there is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cove_model::secret::{BudgetUnit, block};
use hyper::client::conn::http2::SendRequest;
use parking_lot::Mutex;

use super::*;
use crate::call::{Granted, Purse, Wanted};

/// The database and all that is between: what is left of each budget.
struct Ledger {
    left: Mutex<HashMap<Purse, u64>>,
    table: Arc<Table>,
}

impl Ledger {
    /// Answers whenever the terminator rings.
    fn serve(world: &World, left: impl IntoIterator<Item = (Purse, u64)>) -> Arc<Self> {
        let (near, far) = tokio::net::UnixStream::pair().unwrap();
        world.table.hang_bell(far);
        let ledger = Arc::new(Self {
            left: Mutex::new(left.into_iter().collect()),
            table: world.table.clone(),
        });
        let serving = ledger.clone();
        tokio::spawn(async move {
            let mut near = near;
            while near.read_u8().await.is_ok() {
                serving.answer();
            }
        });
        ledger
    }

    fn answer(&self) {
        let mut granted = Vec::new();
        for wanted in self.table.take_wanted() {
            let mut left = self.left.lock();
            match wanted {
                Wanted::Need {
                    purse, need, more, ..
                } => {
                    let left = left.get_mut(&purse).unwrap();
                    let amount = block(*left, need, more);
                    *left -= amount;
                    granted.push(Granted {
                        purse,
                        amount,
                        left: *left,
                        day: 20_000,
                        lasts_ms: 3_600_000,
                        renews_ms: Some(u64::MAX / 2),
                    });
                }
                Wanted::Back { purse, amount, .. } => *left.get_mut(&purse).unwrap() += amount,
            }
        }
        self.table.grant(&granted);
    }

    fn left(&self, purse: Purse) -> u64 {
        self.left.lock()[&purse]
    }

    /// The terminator gives back what it does not use until that is left; nothing else comes back for a while.
    async fn settles(&self, is_settled: impl Fn(&HashMap<Purse, u64>) -> bool) {
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        let mut since: Option<std::time::Instant> = None;
        loop {
            self.table.take_uses();
            self.answer();
            let left = self.left.lock().clone();
            let settled = is_settled(&left);
            since = since.filter(|_| settled);
            // Longer than purses rest.
            let first = *since.get_or_insert_with(std::time::Instant::now);
            if settled && first.elapsed() > Duration::from_secs(3) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "{left:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn shared(of: BudgetUnit) -> Purse {
    Purse {
        secret: 0,
        sandbox: None,
        of,
    }
}

fn own(slot: u32, of: BudgetUnit) -> Purse {
    Purse {
        sandbox: Some(slot),
        ..shared(of)
    }
}

fn limited(limits: &[&str]) -> World {
    let binding = SecretBinding {
        hosts: vec![HOST.parse().unwrap()],
        usage: "bearer".parse().unwrap(),
        ask: false,
        limits: limits.iter().map(|it| it.parse().unwrap()).collect(),
    };
    World::new(VALUE, binding, Duration::ZERO)
}

/// What a server got with the value, and bytes of bodies that it got.
#[derive(Default)]
struct Served {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Served {
    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }
}

/// Answers with so many bytes as the path says, `/endless/` without telling how many there will be.
async fn respond(
    served: Arc<Served>,
    request: Request<Incoming>,
) -> Result<Response<http_body_util::combinators::UnsyncBoxBody<Bytes, hyper::Error>>, hyper::Error>
{
    if request.headers()["authorization"] == format!("Bearer {VALUE}") {
        served.requests.fetch_add(1, Ordering::SeqCst);
    }
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        let bytes = frame?.data_ref().map_or(0, Bytes::len);
        served.bytes.fetch_add(bytes as u64, Ordering::SeqCst);
    }
    let length = path.rsplit('/').next().and_then(|it| it.parse().ok());
    let bytes = Bytes::from(vec![b'x'; length.unwrap_or(0)]);
    let answer = match path.starts_with("/endless") {
        true => {
            let pieces: Vec<_> = bytes
                .chunks(1000)
                .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
                .collect();
            StreamBody::new(futures_of(pieces)).boxed_unsync()
        }
        false => Full::new(bytes)
            .map_err(|never| match never {})
            .boxed_unsync(),
    };
    Ok(Response::new(answer))
}

async fn h2(world: &World, sandbox: &SandboxId, served: &Arc<Served>) -> SendRequest<Full<Bytes>> {
    let served = served.clone();
    let serve = |server| async move {
        let service = service_fn(move |request| respond(served.clone(), request));
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(server), service)
            .await;
    };
    let client = world.connect(sandbox, b"h2", serve).await;
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client));
    let (sender, connection) = shaken.await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(format!("https://{HOST}{path}"))
        .version(Version::HTTP_2)
        .header("authorization", format!("Bearer {PLACEHOLDER}"))
        .body(Full::new(body.into()))
        .unwrap()
}

/// Statuses of so many requests at once, sorted.
async fn at_once(sender: &SendRequest<Full<Bytes>>, count: usize) -> Vec<u16> {
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..count {
        let mut sender = sender.clone();
        running.spawn(async move {
            sender.ready().await.unwrap();
            let answer = sender.send_request(request("/1", "")).await.unwrap();
            let status = answer.status();
            answer.into_body().collect().await.unwrap();
            status.as_u16()
        });
    }
    let mut statuses = running.join_all().await;
    statuses.sort_unstable();
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_requests_get_what_there_is_and_no_more() {
    let world = limited(&["requests=37/day"]);
    let of = shared(BudgetUnit::Requests);
    let ledger = Ledger::serve(&world, [(of, 37)]);
    let (sandbox, served) = (world.place(1), Arc::new(Served::default()));
    let sender = h2(&world, &sandbox, &served).await;
    let statuses = at_once(&sender, 100).await;
    assert_eq!(statuses, [vec![200; 37], vec![429; 63]].concat());
    assert_eq!((served.requests(), ledger.left(of)), (37, 0));
    let refused = sender.clone().send_request(request("/", "")).await.unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(
        text.contains("'token'") && text.contains("0 requests left"),
        "{text}"
    );
    // Without the secret nothing is counted, and another connection changes nothing.
    let mut plain = request("/", "");
    plain
        .headers_mut()
        .insert("authorization", "none".parse().unwrap());
    let plain = sender.clone().send_request(plain).await.unwrap();
    assert_eq!(plain.status(), StatusCode::OK);
    let again = h2(&world, &sandbox, &served).await;
    assert_eq!(at_once(&again, 3).await, [429; 3]);
    assert_eq!(served.requests(), 37);
    // What was used stays used.
    ledger.settles(|left| left[&of] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_share_a_budget_and_have_one_of_their_own() {
    let world = limited(&["requests=10/sandbox", "requests=33/organisation"]);
    let of = BudgetUnit::Requests;
    let slots = 1..=5;
    let each = slots.clone().map(|slot| (own(slot, of), 10));
    let ledger = Ledger::serve(&world, each.chain([(shared(of), 33)]));
    let mut served = Vec::new();
    let mut running = tokio::task::JoinSet::new();
    for slot in slots {
        let one = Arc::new(Served::default());
        let sender = h2(&world, &world.place(slot), &one).await;
        served.push(one);
        running.spawn(async move { at_once(&sender, 20).await });
    }
    let statuses = running.join_all().await.concat();
    assert_eq!(statuses.iter().filter(|it| **it == 200).count(), 33);
    assert!(
        statuses.iter().all(|it| [200, 429].contains(it)),
        "{statuses:?}"
    );
    let counts: Vec<_> = served.iter().map(|it| it.requests()).collect();
    assert_eq!(counts.iter().sum::<u64>(), 33);
    assert!(counts.iter().all(|count| *count <= 10), "{counts:?}");
    // What was reserved of a sandbox's own for requests that the shared one refused has come back.
    let rest = |left: &HashMap<Purse, u64>| (1..=5).map(|slot| left[&own(slot, of)]).sum::<u64>();
    ledger.settles(|left| rest(left) == 50 - 33).await;
}

#[tokio::test]
async fn pipelined_requests_count_each_by_itself() {
    let world = limited(&["requests=3/day"]);
    Ledger::serve(&world, [(shared(BudgetUnit::Requests), 3)]);
    let served = Arc::new(Served::default());
    let count = served.clone();
    let serve = |server| async move {
        let service = service_fn(move |request| respond(count.clone(), request));
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .await;
    };
    let mut client = world.connect(&world.place(1), b"http/1.1", serve).await;
    let one = |close: &str| {
        format!(
            "GET /1 HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {PLACEHOLDER}\r\n{close}\r\n"
        )
    };
    let all = one("").repeat(9) + &one("Connection: close\r\n");
    client.write_all(all.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    let _ = client.read_to_end(&mut got).await;
    let got = String::from_utf8(got).unwrap();
    assert_eq!(got.matches("HTTP/1.1 200").count(), 3, "{got}");
    assert_eq!(got.matches("HTTP/1.1 429").count(), 7, "{got}");
    assert_eq!(served.requests(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_pass_as_far_as_there_are_bytes() {
    const MAX: u64 = 1 << 20;
    let world = limited(&["bytes=1048576/day"]);
    let of = shared(BudgetUnit::Bytes);
    let ledger = Ledger::serve(&world, [(of, MAX)]);
    let (sandbox, served) = (world.place(1), Arc::new(Served::default()));
    let sender = h2(&world, &sandbox, &served).await;
    let send = |path: &str, body: Vec<u8>| {
        let (mut sender, request) = (sender.clone(), request(path, body));
        async move {
            let answer = sender.send_request(request).await.unwrap();
            let (status, mut body) = (answer.status(), answer.into_body());
            let (mut bytes, mut whole) = (0, true);
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => bytes += frame.data_ref().map_or(0, Bytes::len),
                    Err(_) => {
                        whole = false;
                        break;
                    }
                }
            }
            (status.as_u16(), bytes as u64, whole)
        }
    };
    // None of one that is known to be too long is sent, and it takes nothing.
    let (status, _, _) = send("/", vec![b'x'; 2 << 20]).await;
    assert_eq!((status, served.requests()), (429, 0));
    assert_eq!(send("/1000", vec![b'x'; 1000]).await, (200, 1000, true));
    ledger
        .settles(|left| (MAX - 4000..MAX - 2000).contains(&left[&of]))
        .await;
    // An answer that is known to be too long is refused before its body.
    let (status, bytes, _) = send("/3000000", Vec::new()).await;
    assert!((status, bytes) < (430, 400), "{status} {bytes}");
    let mut passed = 2000;
    // One of unknown length is cut where the bytes end.
    let (status, bytes, whole) = send("/endless/3000000", Vec::new()).await;
    assert_eq!((status, whole), (200, false));
    passed += bytes;
    assert!(passed <= MAX && passed > MAX / 2, "{passed}");
    while !matches!(send("/endless/1000", Vec::new()).await, (429, _, _)) {
        passed += 1000;
        assert!(passed <= MAX, "{passed}");
    }
    assert!(served.bytes() + passed <= MAX + 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_bodies_of_requests_are_cut_and_broken_ones_give_back() {
    const MAX: u64 = 1 << 20;
    let world = limited(&["bytes=1048576/sandbox"]);
    let of = own(1, BudgetUnit::Bytes);
    let ledger = Ledger::serve(&world, [(of, MAX)]);
    let (sandbox, served) = (world.place(1), Arc::new(Served::default()));
    let count = served.clone();
    let serve = |server| async move {
        let service = service_fn(move |request| respond(count.clone(), request));
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .await;
    };
    // Announces much, sends little and goes away.
    let mut client = world.connect(&sandbox, b"http/1.1", serve).await;
    let head =
        format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {PLACEHOLDER}\r\n");
    let announced = format!("{head}Content-Length: 1000000\r\n\r\nlittle");
    client.write_all(announced.as_bytes()).await.unwrap();
    while served.bytes() < 6 {
        tokio::task::yield_now().await;
    }
    assert!(ledger.left(of) < MAX - 1_000_000);
    drop(client);
    ledger
        .settles(|left| (MAX - 1000..MAX).contains(&left[&of]))
        .await;
    // Never ends.
    let count = served.clone();
    let serve = |server| async move {
        let service = service_fn(move |request| respond(count.clone(), request));
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .await;
    };
    let mut client = world.connect(&sandbox, b"http/1.1", serve).await;
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    client.write_all(chunked.as_bytes()).await.unwrap();
    let piece = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    // Far beyond the budget, and reads nothing before all of it is sent: the answer waits for it.
    for _ in 0..64 {
        client.write_all(piece.as_bytes()).await.unwrap();
    }
    let mut got = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&got).contains("HTTP/1.1 429") {
        let read = client.read(&mut piece).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..read]);
    }
    assert!(served.bytes() <= MAX, "{}", served.bytes());
    // It was not cut long before: what passed stays used. The server may not have read it yet.
    ledger.settles(|left| left[&of] < MAX / 2).await;
    assert!(served.bytes() <= MAX, "{}", served.bytes());
}

#[tokio::test]
async fn upgrades_are_refused_where_bytes_are_counted() {
    let world = limited(&["bytes=1048576/day"]);
    Ledger::serve(&world, [(shared(BudgetUnit::Bytes), 1 << 20)]);
    let mut client = world
        .connect(&world.place(1), b"http/1.1", |_| async {})
        .await;
    let head = format!(
        "GET /socket HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {PLACEHOLDER}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut got = [0; 12];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"HTTP/1.1 403");
}

#[tokio::test]
async fn nothing_is_sent_when_nobody_says_what_is_left() {
    let world = limited(&["requests=10/day"]);
    let connection = world.table.connect(world.place(1)).unwrap();
    let usable = connection.usable(&cove_model::network::Name::from_text(HOST).unwrap(), 443);
    let parts = Request::get("/").body(()).unwrap().into_parts().0;
    let used: Vec<_> = usable.secrets.iter().collect();
    let connection = Arc::new(connection);
    let length = hyper::body::SizeHint::with_exact(0);
    let reserved =
        super::super::meter::Meter::reserve(&connection, &used, &parts, &length, false).await;
    assert_eq!(
        reserved.err(),
        Some(super::super::refusal::Refusal::Unchecked)
    );
}
