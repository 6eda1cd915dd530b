//! What the control plane itself costs: its own work and its database on a real disk, with a host in
//! memory that answers at once. `cargo bench -p cove-control`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_control::testing::{GuestKind, MemoryRunner, ScriptedGuest};
use cove_control::{
    ApiToken, CommandRequest, Control, ControlConfig, CreateSandbox, Origin, Principal, RateLimit,
    SystemClock,
};

const ROUNDS: usize = 400;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder on a real disk");
    let store = cove_store::open_sqlite(&folder.path().join("cove.db"))
        .await
        .expect("a new database");
    let runner = MemoryRunner::new(Arc::new(SystemClock));
    runner.set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    let config = ControlConfig {
        rate_limit: RateLimit {
            per_second: 0.0,
            burst: 0.0,
        },
        audit_journal: Some(folder.path().join("audit")),
        ..ControlConfig::default()
    };
    let control = Control::new(config, store, runner, Arc::new(SystemClock));
    control.prepare().await.expect("an empty installation");
    let token = ApiToken::random();
    let root = control.bootstrap_root_key(&token.hash()).await;
    root.expect("a first key");
    for width in [1, 8, 32] {
        creates(&control, &token, width).await;
    }
    execs(&control, &token).await;
}

async fn login(control: &Control, token: &ApiToken) -> Principal {
    let principal = control
        .authenticate(token.reveal(), Origin::default())
        .await;
    principal.expect("the key is valid")
}

async fn creates(control: &Control, token: &ApiToken, width: usize) {
    let begun = Instant::now();
    let workers: Vec<_> = (0..width)
        .map(|_| {
            let (control, token) = (control.clone(), token.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                for _ in 0..ROUNDS.div_ceil(width) {
                    let principal = login(&control, &token).await;
                    let start = Instant::now();
                    let made = control
                        .create_sandbox(&principal, CreateSandbox::default())
                        .await;
                    times.push(start.elapsed());
                    let id = made.expect("created").sandbox.id;
                    let deleted = control.delete_sandbox(&principal, id.as_str()).await;
                    deleted.expect("deleted");
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await.expect("the worker ends"));
    }
    let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
    println!(
        "create, {width:2} at once: {} ; create+delete {rate:.0}/s",
        spread(&mut times)
    );
}

async fn execs(control: &Control, token: &ApiToken) {
    let principal = login(control, token).await;
    let made = control
        .create_sandbox(&principal, CreateSandbox::default())
        .await;
    let id = made.expect("created").sandbox.id.to_string();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let principal = login(control, token).await;
        let ran = control
            .exec(&principal, &id, CommandRequest::shell("true"))
            .await;
        ran.expect("ran");
        times.push(start.elapsed());
    }
    println!("exec, scripted guest:  {}", spread(&mut times));
}

fn spread(times: &mut [Duration]) -> String {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    format!("p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99))
}
