//! The server killed again and again under load: what it acknowledged is there afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cove_api::file::{ReadFile, WriteFile};
use cove_api::process::{OutputEvent, OutputQuery, StartProcess};
use cove_api::sandbox::{CreateSandbox, ListSandboxes, ResourcesRequest};
use cove_client::{Client, ClientConfig, ClientError, Outgoing};
use rustix::process::Signal;

use super::harness::{Cove, DEADLINE, signal};

/// Kills in all; every fourth hits the supervisor, the others one of its children.
const KILLS: u64 = 100;
const WORKERS: u64 = 4;
/// A worker that holds this many sandboxes deletes before it creates.
const HELD_MAX: usize = 3;

/// Small, seeded and good enough to choose by.
struct Dice(u64);

impl Dice {
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
    held: Vec<Held>,
    deleted: Vec<String>,
    creates: u64,
}

struct Held {
    id: String,
    files: Vec<(String, String)>,
    counting: Option<String>,
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
            Some(client) => match tokio::time::timeout(Duration::from_secs(20), ask(&client)).await
            {
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

async fn work(worker: u64, finder: Arc<Finder>, over: Arc<AtomicBool>) -> Acknowledged {
    let mut dice = Dice(0x1234_5678 + worker);
    let mut done = Acknowledged::default();
    while !over.load(Ordering::Relaxed) {
        match dice.roll(4) {
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
                let key = format!("chaos-{worker}-{}", done.creates);
                let create = CreateSandbox {
                    image: Some("busybox".into()),
                    labels: [("create".to_owned(), key.clone())].into(),
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
                done.held.push(Held {
                    id: made.id,
                    files: Vec::new(),
                    counting,
                });
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
                written.unwrap_or_else(|error| panic!("write {path}: {error:?}"));
                held.files.push((path, content));
            }
        }
    }
    done
}

#[test]
fn a_server_killed_a_hundred_times_keeps_every_promise() {
    let mut cove = Cove::start();
    let finder = Arc::new(Finder {
        data_dir: cove.data_dir(),
    });
    let over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (finder, over) = (Arc::clone(&finder), Arc::clone(&over));
            std::thread::spawn(move || runtime().block_on(work(worker, finder, over)))
        })
        .collect();
    let mut dice = Dice(0x9e37_79b9);
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_millis(dice.roll(400)));
        match kill % 4 {
            3 => {
                cove.kill_server();
                cove.serve();
            }
            2 => signal(cove.role_pid("runner"), Signal::KILL),
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

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

async fn verify(finder: &Finder, results: Vec<Acknowledged>) {
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
            assert_eq!(found.state.as_str(), "running", "{found:?}");
            check_files(finder, held).await;
            check_counting(finder, held).await;
        }
    }
    let held: usize = results.iter().map(|result| result.held.len()).sum();
    assert_eq!(all.len(), held, "sandboxes nobody asked for: {all:?}");
    assert!(
        creates > 10 && held > 0,
        "the load was no load: {creates} creates, {held} held"
    );
    // And nothing of them stays behind.
    for sandbox in &all {
        insist(finder, async |client| {
            client.delete_sandbox(&sandbox.id).await
        })
        .await
        .unwrap();
    }
    let runner = insist(finder, async |client| client.runners().await)
        .await
        .unwrap()
        .items
        .remove(0);
    assert_eq!((runner.sandboxes, runner.running), (0, 0));
    assert_eq!(runner.promised_memory_bytes, 0);
}

async fn check_files(finder: &Finder, held: &Held) {
    for (path, content) in &held.files {
        let read = ReadFile {
            path: path.clone(),
            user: None,
        };
        let bytes = insist(finder, async |client| {
            let mut stream = client.read_file(&held.id, &read, None).await?;
            let mut bytes = Vec::new();
            while let Some(chunk) = stream.next().await? {
                bytes.extend_from_slice(&chunk);
            }
            Ok(bytes)
        })
        .await
        .unwrap_or_else(|error| panic!("{path} in {}: {error:?}", held.id));
        assert!(
            bytes == content.as_bytes(),
            "{path} in {} is not what was written",
            held.id
        );
    }
}

/// The command that was started then has counted to its end without a gap.
async fn check_counting(finder: &Finder, held: &Held) {
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
