//! PostgreSQL that is killed, hangs, answers late, takes no writes or fails over: callers are refused
//! at once or within the bound of an operation, nothing acknowledged is lost, and the store goes on by
//! itself when the database does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "conformance/cluster.rs"]
mod cluster;
#[path = "faults/proxy.rs"]
mod proxy;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::Cluster;
use cove_store::{Store, StoreError};
use proxy::{Mode, Proxy};
use rustix::process::Signal;

/// The most one operation may take, with what a busy machine adds. Who is not refused waits for ever, or in a line
/// of minutes.
const BOUND: Duration = Duration::from_secs(60);
/// Far longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(180);
/// Callers at the same time: were each few of them to wait for the ones before, the last would wait for minutes.
const CALLERS: u32 = 400;
/// Calls in a row that are all refused at once; were each to wait, they would take minutes.
const REFUSED_CALLS: u32 = 50;

/// A database that answers, but may be late on a busy machine: who finds it so tries again.
async fn try_open(address: &str) -> Result<Arc<dyn Store>, StoreError> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match cove_store::open(address).await {
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => {}
            opened => return opened,
        }
    }
}

async fn open(address: &str) -> Arc<dyn Store> {
    try_open(address).await.unwrap()
}

/// What a setting is, from a database that is back.
async fn kept(store: &Arc<dyn Store>, name: &str) -> Option<String> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match store.setting(name).await {
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            found => return found.unwrap(),
        }
    }
}

/// The same for a setting that is written.
async fn put(store: &Arc<dyn Store>, name: &str) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match store.put_setting(name, "kept").await {
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            written => return written.unwrap(),
        }
    }
}

async fn eventually(
    what: &str,
    store: &Arc<dyn Store>,
    wanted: fn(&Result<(), StoreError>) -> bool,
) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let found = store.check().await;
        if wanted(&found) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_down(found: &Result<(), StoreError>) -> bool {
    matches!(found, Err(StoreError::Unavailable(_)))
}

fn is_read_only(found: &Result<(), StoreError>) -> bool {
    matches!(found, Err(StoreError::ReadOnly))
}

/// It was not in time, and nothing else is wrong.
fn is_late(error: &StoreError) -> bool {
    format!("{error:?}").contains("no answer within")
}

/// Everything is refused, and nobody waits.
async fn refuses_at_once(store: &Arc<dyn Store>) {
    let began = Instant::now();
    for _ in 0..REFUSED_CALLS {
        let error = store.setting("x").await.unwrap_err();
        assert!(
            matches!(error, StoreError::Unavailable(_) | StoreError::ReadOnly),
            "{error:?}"
        );
        store.put_setting("x", "y").await.unwrap_err();
    }
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_down_is_refused_at_once_and_found_again() {
    let mut cluster = Cluster::start();
    let store = open(&cluster.database("down").await).await;
    put(&store, "before").await;
    cluster.kill();
    eventually("the database is known to be down", &store, is_down).await;
    refuses_at_once(&store).await;
    cluster.start_again();
    eventually("database connection restored", &store, Result::is_ok).await;
    assert_eq!(kept(&store, "before").await.as_deref(), Some("kept"));
    put(&store, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_holds_nobody_longer_than_an_operation_may_take() {
    let cluster = Cluster::start();
    let store = open(&cluster.database("hung").await).await;
    put(&store, "before").await;
    cluster.signal_all(Signal::STOP);
    // More callers than connections: those in line are bounded too.
    let began = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                match n % 3 {
                    0 => store.setting("before").await.map(drop),
                    1 => store.put_setting("during", "x").await,
                    _ => store.check().await,
                }
            })
        })
        .collect();
    for caller in callers {
        let error = caller.await.unwrap().unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    }
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    refuses_at_once(&store).await;
    // A process that starts meanwhile is not held up either.
    let began = Instant::now();
    let error = cove_store::open(&cluster.address("hung"))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    cluster.signal_all(Signal::CONT);
    eventually("the database goes on", &store, Result::is_ok).await;
    put(&store, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_delays_or_swallows_everything_is_bounded_and_recovers() {
    let cluster = Cluster::start();
    cluster.database("network").await;
    let proxy = Proxy::start(cluster.folder());
    let store = open(&proxy.address("network")).await;
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    for n in 0..5 {
        put(&store, &format!("late-{n}")).await;
    }
    proxy.set(Mode::Swallow);
    let began = Instant::now();
    let error = store.put_setting("swallowed", "x").await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    refuses_at_once(&store).await;
    proxy.set(Mode::Pass);
    eventually("the network is back", &store, Result::is_ok).await;
    assert_eq!(kept(&store, "late-4").await.as_deref(), Some("kept"));
    // Cut connections cost nobody a failed call, unless a busy machine is late to let anybody in again.
    let deadline = Instant::now() + DEADLINE;
    loop {
        proxy.cut();
        match store.put_setting("after", "kept").await {
            Err(error) if is_late(&error) && Instant::now() < deadline => {
                eventually("the database is not late", &store, Result::is_ok).await;
            }
            written => break written.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_says_so_and_is_used_again_when_it_takes_writes() {
    let cluster = Cluster::start();
    let store = open(&cluster.database("settings").await).await;
    let switch = async |on: &str| {
        let sql = format!("ALTER SYSTEM SET default_transaction_read_only = {on}");
        cluster.run_sql("postgres", &sql).await;
        cluster.run_sql("postgres", "SELECT pg_reload_conf()").await;
    };
    switch("on").await;
    eventually("the database is read-only", &store, is_read_only).await;
    refuses_at_once(&store).await;
    let error = try_open(&cluster.address("settings")).await.err().unwrap();
    assert!(matches!(error, StoreError::ReadOnly), "{error:?}");
    switch("off").await;
    eventually("the database takes writes", &store, Result::is_ok).await;
    put(&store, "after").await;
}

/// Writers that note what was acknowledged, until asked to end.
struct Load {
    end: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<String>>>,
    writers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(store: &Arc<dyn Store>) -> Self {
        let (end, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let writers = (0..4)
            .map(|writer| {
                let (store, end) = (Arc::clone(store), Arc::clone(&end));
                let acknowledged: Arc<Mutex<Vec<String>>> = Arc::clone(&acknowledged);
                tokio::spawn(async move {
                    for n in 0.. {
                        if end.load(Ordering::Relaxed) {
                            return;
                        }
                        let name = format!("{writer}-{n}");
                        match store.put_setting(&name, "x").await {
                            Ok(()) => acknowledged.lock().unwrap().push(name),
                            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                        }
                    }
                })
            })
            .collect();
        Self {
            end,
            acknowledged,
            writers,
        }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Until that many more writes were acknowledged.
    async fn grow_by(&self, more: usize) {
        let (wanted, deadline) = (self.count() + more, Instant::now() + DEADLINE);
        while self.count() < wanted {
            assert!(Instant::now() < deadline, "writes go on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn check(self, store: &Arc<dyn Store>) {
        self.end.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await.unwrap();
        }
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        for name in acknowledged {
            let found = kept(store, &name).await;
            assert!(found.is_some(), "{name} was acknowledged and is gone");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_it_is_killed_and_stopped_under_load() {
    let mut cluster = Cluster::start();
    let store = open(&cluster.database("load").await).await;
    let load = Load::start(&store);
    for _ in 0..2 {
        load.grow_by(50).await;
        cluster.kill();
        eventually("the database is down", &store, is_down).await;
        cluster.start_again();
        load.grow_by(50).await;
        cluster.signal_all(Signal::STOP);
        eventually("the database hangs", &store, is_down).await;
        cluster.signal_all(Signal::CONT);
        load.grow_by(50).await;
        cluster.restart();
    }
    load.grow_by(50).await;
    load.check(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_a_standby_takes_over_under_load() {
    let mut primary = Cluster::start();
    primary.database("failover").await;
    let standby = primary.standby().await;
    // The name of the standby comes first: it is passed over as long as it takes no writes.
    let address = standby.address_with(&primary, "failover");
    let store = open(&address).await;
    let error = try_open(&standby.address("failover")).await.err().unwrap();
    assert!(matches!(error, StoreError::ReadOnly), "{error:?}");
    let load = Load::start(&store);
    load.grow_by(100).await;
    primary.kill();
    eventually("only the standby is left", &store, |found| found.is_err()).await;
    standby.run_sql("postgres", "SELECT pg_promote()").await;
    load.grow_by(100).await;
    load.check(&store).await;
}
