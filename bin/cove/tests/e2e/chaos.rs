//! The server killed again and again under load: what it acknowledged is there afterwards.
//!
//! In rounds: workers create, write, snapshot, rest and delete while the parts of the server are killed or
//! held up, then everything that was acknowledged is looked for. `scripts/chaos` runs it for as long as it is
//! told (`COVE_CHAOS_SECONDS`), from a seed of its own (`COVE_CHAOS_SEED`), over PostgreSQL that is restarted
//! as well, hangs, and refuses writes (`COVE_CHAOS_POSTGRES=1`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_api::file::{ReadFile, WriteFile};
use cove_api::process::{OutputEvent, OutputQuery, StartProcess};
use cove_api::sandbox::{
    CreateSandbox, ListSandboxes, Network, NetworkMode, ResourcesRequest, Sandbox,
};
use cove_api::snapshot::TakeSnapshot;
use cove_client::{Client, ClientConfig, ClientError, Outgoing};
use rustix::process::Signal;

use super::cluster::Cluster;
use super::harness::{Cove, DEADLINE, signal};

mod records;

/// Rounds when no time is given, and faults in each: a hundred in all.
const ROUNDS: u64 = 4;
const FAULTS: u64 = 25;
const WORKERS: u64 = 4;
const SEED: u64 = 0x9e37_79b9;
/// When an answer counts as lost, and is asked for again.
const TRY: Duration = Duration::from_secs(60);
/// A worker that holds this many sandboxes deletes before it creates.
const HELD_MAX: usize = 3;

/// Small, seeded and good enough to choose by.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike, and zero would stay zero.
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        dice.roll(1);
        dice
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What a worker was told is done.
#[derive(Default)]
struct Acknowledged {
    held: Vec<KnownSandbox>,
    deleted: Vec<String>,
    creates: u64,
}

struct KnownSandbox {
    id: String,
    files: Vec<(String, String)>,
    counting: Option<String>,
    /// Each with how many of the files were written before it.
    snapshots: Vec<(String, usize)>,
}

const COUNT_TO: u32 = 200;

fn counting() -> StartProcess {
    let command = format!("for i in $(seq 1 {COUNT_TO}); do echo $i; sleep 0.02; done");
    StartProcess {
        command: Some(command),
        ..StartProcess::default()
    }
}

/// A client that finds the server again after it moved to another port.
struct Finder {
    data_dir: std::path::PathBuf,
}

impl Finder {
    fn client(&self) -> Option<Client> {
        let read = |name: &str| std::fs::read_to_string(self.data_dir.join(name)).ok();
        let config = ClientConfig::new(
            read("url")?.trim(),
            Some(read("root.key")?.trim().to_owned()),
        );
        Client::new(config).ok()
    }
}

/// Tries until the server says yes or no; a broken connection is neither.
async fn insist<T>(
    finder: &Finder,
    mut ask: impl AsyncFnMut(&Client) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let started = Instant::now();
    loop {
        let error = match finder.client() {
            None => None,
            Some(client) => match tokio::time::timeout(TRY, ask(&client)).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(ClientError::Refused {
                    status,
                    detail,
                    retry_after_s,
                })) if status.is_client_error() => {
                    return Err(ClientError::Refused {
                        status,
                        detail,
                        retry_after_s,
                    });
                }
                Ok(Err(error)) => Some(error),
                Err(_) => None,
            },
        };
        assert!(
            started.elapsed() < DEADLINE,
            "the server never answered: {error:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn work(worker: u64, seed: u64, finder: Arc<Finder>, over: Arc<AtomicBool>) -> Acknowledged {
    let mut dice = Dice::new(seed.wrapping_add(worker));
    let mut done = Acknowledged::default();
    while !over.load(Ordering::Relaxed) {
        match dice.roll(6) {
            0 if done.held.len() >= HELD_MAX => {
                let held = done.held.remove(0);
                let deleted = insist(&finder, async |client| {
                    client.delete_sandbox(&held.id).await
                })
                .await;
                // A repeat of a delete whose answer was lost finds nothing, which is as good.
                if let Err(error) = deleted {
                    assert_eq!(
                        error.code(),
                        Some(cove_api::ErrorCode::NotFound),
                        "{error:?}"
                    );
                }
                done.deleted.push(held.id);
            }
            0 | 1 if done.held.len() < HELD_MAX => {
                done.creates += 1;
                let key = format!("chaos-{seed:x}-{worker}-{}", done.creates);
                // Some may reach something, so that there is a gateway to be killed.
                let network = (done.creates % 3 == 0).then(|| Network {
                    mode: NetworkMode::Allowlist,
                    allow: Some(vec!["chaos.invalid".into()]),
                    ..Network::default()
                });
                let create = CreateSandbox {
                    image: Some("busybox".into()),
                    labels: [("create".to_owned(), key.clone())].into(),
                    network: network.map(Into::into),
                    resources: Some(ResourcesRequest {
                        memory_mb: Some(64),
                        disk_mb: Some(256),
                        ..ResourcesRequest::default()
                    }),
                    ..CreateSandbox::default()
                };
                let made = insist(&finder, async |client| {
                    client.create_sandbox(&create, Some(&key)).await
                })
                .await;
                let made = made.unwrap_or_else(|error| panic!("create {key}: {error:?}"));
                let counting = insist(&finder, async |client| {
                    client.start_process(&made.id, &counting()).await
                })
                .await;
                let counting = counting.ok().map(|process| process.id);
                done.held.push(KnownSandbox {
                    id: made.id,
                    files: Vec::new(),
                    counting,
                    snapshots: Vec::new(),
                });
            }
            2 if !done.held.is_empty() => {
                let at = dice.roll(done.held.len() as u64) as usize;
                let held = &mut done.held[at];
                let key = format!("{}-{}-{}", held.id, held.files.len(), held.snapshots.len());
                let taken = insist(&finder, async |client| {
                    let take = TakeSnapshot::default();
                    client.take_snapshot(&held.id, &take, Some(&key)).await
                })
                .await;
                // A refusal (nothing can be taken of it right now) promises nothing.
                if let Ok(taken) = taken {
                    held.snapshots.push((taken.id, held.files.len()));
                }
            }
            3 if !done.held.is_empty() => {
                let at = dice.roll(done.held.len() as u64) as usize;
                let id = &done.held[at].id;
                let how = dice.roll(3);
                // At rest or refused: it wakes for the next who needs it.
                let _ = insist(&finder, async |client| match how {
                    0 => client.pause_sandbox(id).await,
                    1 => client.freeze_sandbox(id).await,
                    _ => client.resume_sandbox(id).await,
                })
                .await;
            }
            _ => {
                let count = done.held.len() as u64;
                let Some(held) = (count > 0)
                    .then(|| dice.roll(count) as usize)
                    .map(|at| &mut done.held[at])
                else {
                    continue;
                };
                let path = format!("/tmp/file-{}", held.files.len());
                let content = format!("{worker} {} {}", held.id, dice.roll(u64::MAX)).repeat(50);
                let write = WriteFile {
                    path: path.clone(),
                    sync: true,
                    ..WriteFile::default()
                };
                let written = insist(&finder, async |client| {
                    client
                        .write_file(&held.id, &write, Outgoing::bytes(content.clone()))
                        .await
                })
                .await;
                if let Err(error) = written {
                    let now = insist(&finder, async |client| client.sandbox(&held.id).await).await;
                    panic!("write {path}: {error:?}; the sandbox is {now:?}");
                }
                held.files.push((path, content));
            }
        }
    }
    done
}

/// What every thread that panicked said, in order.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn remember_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.lock().unwrap().push(panic.to_string());
        before(panic);
    }));
}

/// Says what was found and how to repeat it, as the very last lines: a log is often kept only from its end.
struct Report {
    seed: u64,
    round: u64,
}

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for panic in PANICS.lock().unwrap().iter() {
                eprintln!("chaos: {panic}");
            }
            eprintln!(
                "chaos: VIOLATION in round {}; repeat with COVE_CHAOS_SEED={}",
                self.round, self.seed
            );
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn a_server_killed_a_hundred_times_keeps_every_promise() {
    let seed = number("COVE_CHAOS_SEED").unwrap_or(SEED);
    let until =
        number("COVE_CHAOS_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    remember_panics();
    // Before the server, so that it is dropped after it.
    let mut report = Report { seed, round: 0 };
    let mut cluster = (number("COVE_CHAOS_POSTGRES") == Some(1)).then(Cluster::start);
    let mut cove = match &cluster {
        Some(cluster) => {
            let address = runtime().block_on(cluster.database("chaos"));
            Cove::start_with(&["--database", &address])
        }
        None => Cove::start(),
    };
    loop {
        report.round += 1;
        play(&mut cove, cluster.as_mut(), seed.wrapping_add(report.round));
        let is_over = match until {
            Some(until) => Instant::now() >= until,
            None => report.round >= ROUNDS,
        };
        if is_over {
            break;
        }
    }
    eprintln!("chaos: {} rounds, seed {seed}: no violation", report.round);
}

/// One round: load and faults, then every promise is looked at.
fn play(cove: &mut Cove, mut cluster: Option<&mut Cluster>, seed: u64) {
    let finder = Arc::new(Finder {
        data_dir: cove.data_dir(),
    });
    let over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (finder, over) = (Arc::clone(&finder), Arc::clone(&over));
            std::thread::spawn(move || runtime().block_on(work(worker, seed, finder, over)))
        })
        .collect();
    let mut dice = Dice::new(seed ^ SEED);
    for _ in 0..FAULTS {
        std::thread::sleep(Duration::from_millis(dice.roll(400)));
        match dice.roll(10) {
            0 | 1 => {
                cove.kill_server();
                cove.serve();
            }
            2..=4 => signal(cove.role_pid("runner"), Signal::KILL),
            5 => {
                let role = if dice.roll(2) == 0 {
                    "runner"
                } else {
                    "control"
                };
                let held = cove.role_pid(role);
                signal(held, Signal::STOP);
                std::thread::sleep(Duration::from_millis(dice.roll(500)));
                signal(held, Signal::CONT);
            }
            6 => kill_gateway(cove),
            7 | 8 if cluster.is_some() => {
                if let Some(cluster) = cluster.as_deref_mut() {
                    disturb(cluster, &mut dice);
                }
            }
            _ => signal(cove.role_pid("control"), Signal::KILL),
        }
    }
    over.store(true, Ordering::Relaxed);
    let results = workers
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .collect();
    runtime().block_on(verify(&finder, results));
}

/// Restarts the database, makes it hang, or has it refuse writes for a moment.
fn disturb(cluster: &mut Cluster, dice: &mut Dice) {
    let how = dice.roll(3);
    let moment = Duration::from_millis(dice.roll(2000));
    let set_read_only = |cluster: &Cluster, on: &str| {
        let sql = format!("ALTER SYSTEM SET default_transaction_read_only = {on}");
        for sql in [&sql, "SELECT pg_reload_conf()"] {
            runtime().block_on(cluster.run_sql("postgres", sql));
        }
    };
    match how {
        0 => cluster.restart(),
        1 => {
            cluster.signal_all(Signal::STOP);
            std::thread::sleep(moment);
            cluster.signal_all(Signal::CONT);
        }
        _ => {
            set_read_only(cluster, "on");
            std::thread::sleep(moment);
            set_read_only(cluster, "off");
        }
    }
}

/// Where a sandbox had a network, and the gateway is the one that its file names.
fn kill_gateway(cove: &Cove) {
    let file = cove.data_dir().join("engine/gateway/process");
    let pid = std::fs::read_to_string(file)
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<i32>().ok());
    let Some(pid) = pid else { return };
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if line.starts_with(b"cove-gateway") {
        signal(pid, Signal::KILL);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Every sandbox there is, once none of them is on its way out: a create that failed because a part was just
/// killed is shown as `deleting` until the host has answered again.
async fn settled(finder: &Finder) -> Vec<Sandbox> {
    let started = Instant::now();
    loop {
        let all = insist(finder, async |client| {
            client
                .list_sandboxes(&ListSandboxes {
                    limit: Some(1000),
                    ..ListSandboxes::default()
                })
                .await
        })
        .await
        .unwrap()
        .items;
        if all
            .iter()
            .all(|sandbox| sandbox.state.as_str() != "deleting")
        {
            return all;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "some are never deleted: {all:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn verify(finder: &Finder, results: Vec<Acknowledged>) {
    let all = settled(finder).await;
    let mut creates = 0;
    for result in &results {
        creates += result.creates;
        for id in &result.deleted {
            assert!(
                all.iter().all(|sandbox| sandbox.id != *id),
                "{id} was deleted and is back"
            );
        }
        for held in &result.held {
            let found = all.iter().find(|sandbox| sandbox.id == held.id);
            let found = found.unwrap_or_else(|| panic!("{} was created and is gone", held.id));
            assert!(
                ["running", "frozen", "paused"].contains(&found.state.as_str()),
                "{found:?}"
            );
            check_files(finder, &held.id, &held.files).await;
            check_counting(finder, held).await;
            check_snapshots(finder, held).await;
        }
    }
    let held: usize = results.iter().map(|result| result.held.len()).sum();
    assert_eq!(all.len(), held, "sandboxes nobody asked for: {all:?}");
    assert!(
        creates > 3 && held > 0,
        "the load was no load: {creates} creates, {held} held"
    );
    let strange = insist(finder, async |client| client.quarantine().await)
        .await
        .unwrap()
        .items;
    assert!(strange.is_empty(), "left in quarantine: {strange:?}");
    // And nothing of them stays behind.
    for sandbox in &all {
        insist(finder, async |client| {
            client.delete_sandbox(&sandbox.id).await
        })
        .await
        .unwrap();
    }
    let started = Instant::now();
    loop {
        let runner = insist(finder, async |client| client.runners().await)
            .await
            .unwrap()
            .items
            .remove(0);
        let left = (
            runner.sandboxes,
            runner.running,
            runner.promised_memory_bytes,
        );
        if left == (0, 0, 0) {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "left behind: {left:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    records::check(finder, &results).await;
}

/// Every snapshot is there, and the last one holds what was written before it.
async fn check_snapshots(finder: &Finder, held: &KnownSandbox) {
    let last = held.snapshots.len().saturating_sub(1);
    for (at, (snapshot, files)) in held.snapshots.iter().enumerate() {
        insist(finder, async |client| client.snapshot(snapshot).await)
            .await
            .unwrap_or_else(|error| panic!("{snapshot} of {}: {error:?}", held.id));
        if at == last {
            let create = CreateSandbox {
                snapshot: Some(snapshot.clone()),
                ..CreateSandbox::default()
            };
            let copy = insist(finder, async |client| {
                client.create_sandbox(&create, Some(snapshot)).await
            })
            .await
            .unwrap_or_else(|error| panic!("from {snapshot}: {error:?}"));
            check_files(finder, &copy.id, &held.files[..*files]).await;
            insist(finder, async |client| client.delete_sandbox(&copy.id).await)
                .await
                .unwrap();
        }
        insist(finder, async |client| {
            client.delete_snapshot(snapshot).await
        })
        .await
        .unwrap();
    }
}

async fn check_files(finder: &Finder, id: &str, files: &[(String, String)]) {
    for (path, content) in files {
        let read = ReadFile {
            path: path.clone(),
            user: None,
        };
        let bytes = insist(finder, async |client| {
            let mut stream = client.read_file(id, &read, None).await?;
            let mut bytes = Vec::new();
            while let Some(chunk) = stream.next().await? {
                bytes.extend_from_slice(&chunk);
            }
            Ok(bytes)
        })
        .await
        .unwrap_or_else(|error| panic!("{path} in {id}: {error:?}"));
        assert!(
            bytes == content.as_bytes(),
            "{path} in {id} is not what was written"
        );
    }
}

/// The command that was started then has counted to its end without a gap.
async fn check_counting(finder: &Finder, held: &KnownSandbox) {
    let Some(process) = &held.counting else {
        return;
    };
    let query = OutputQuery {
        follow: true,
        ..OutputQuery::default()
    };
    let text = insist(finder, async |client| {
        let mut lines = client.output(&held.id, process, &query).await?;
        let mut text = String::new();
        while let Some(event) = lines.next().await? {
            match event {
                OutputEvent::Stdout(chunk) => text.push_str(&chunk.text.unwrap_or_default()),
                OutputEvent::Exit(exit) => {
                    assert_eq!(exit.exit_code, 0);
                    return Ok(text);
                }
                _ => {}
            }
        }
        Err(ClientError::Protocol("no exit"))
    })
    .await
    .unwrap();
    let expected: String = (1..=COUNT_TO).map(|i| format!("{i}\n")).collect();
    assert_eq!(text, expected, "in {}", held.id);
}
