//! `cove bench`: what this installation does, measured over HTTP by the client everybody uses.

use std::future::Future;
use std::time::{Duration, Instant};

use cove_api::process::Exec;
use cove_api::sandbox::{CreateSandbox, ResourcesRequest};
use cove_client::{Client, ClientConfig, ClientError};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::args::{BenchArgs, Global};
use crate::connect;
use crate::output::{self, Progress, Table};
use crate::report::CliError;

mod beside;
mod docker;
mod idle;
mod kept;

use kept::Kept;

/// Execs timed one after the other, and for how long they are counted at once.
const EXECS: usize = 300;
const EXEC_WORKERS: usize = 8;
const EXEC_TIME: Duration = Duration::from_secs(3);
/// Of each sandbox measured with.
const CPU: f64 = 1.0;
const MEMORY_MB: u64 = 64;
const DISK_MB: u64 = 128;
/// Of each that only waits: a thousand must fit what a small host may promise.
const IDLE_CPU: f64 = 0.05;

/// Something that makes sandboxes: Cove, or what it is compared with.
pub trait Subject: Clone + Send + Sync + 'static {
    fn create(&self) -> impl Future<Output = Result<String, ClientError>> + Send;
    fn echo(&self, id: &str) -> impl Future<Output = Result<(), ClientError>> + Send;
    fn delete(&self, id: &str) -> impl Future<Output = Result<(), ClientError>> + Send;
}

#[derive(Clone)]
struct Cove {
    client: Client,
    image: String,
    cpu: f64,
}

impl Subject for Cove {
    async fn create(&self) -> Result<String, ClientError> {
        // Small ones, so that what the host may promise is not what is measured.
        let resources = ResourcesRequest {
            cpu: Some(self.cpu),
            memory_mb: Some(MEMORY_MB),
            disk_mb: Some(DISK_MB),
            ..ResourcesRequest::default()
        };
        let create = CreateSandbox {
            image: Some(self.image.clone()),
            resources: Some(resources),
            ..CreateSandbox::default()
        };
        Ok(self.client.create_sandbox(&create, None).await?.id)
    }

    async fn echo(&self, id: &str) -> Result<(), ClientError> {
        let exec = Exec {
            argv: Some(vec!["echo".into(), "hello".into()]),
            ..Exec::default()
        };
        let result = self.client.exec(id, &exec).await?;
        if result.exit.exit_code != 0 || result.stdout != "hello\n" {
            return Err(ClientError::Protocol("echo did not say hello"));
        }
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), ClientError> {
        self.client.delete_sandbox(id).await
    }
}

pub async fn run(client: &Client, args: &BenchArgs, global: &Global) -> Result<(), CliError> {
    let json = global.json;
    let cove = Cove {
        client: client.clone(),
        image: args.image.clone(),
        cpu: CPU,
    };
    let waiting = Cove {
        cpu: IDLE_CPU,
        ..cove.clone()
    };
    let measured = cove.clone();
    let mut figures = tidily(Kept::new(cove), |cove| async move {
        measure(&cove, args, json).await
    })
    .await?;
    // A key that may not look at hosts measures all the same.
    if let Ok(hosts) = client.runners().await {
        figures["warm"] = hosts.items.iter().map(|host| host.warm).sum::<u64>().into();
    }
    if args.streams > 0 {
        Progress::new(json).show("streams");
        let beside = tidily(Kept::new(measured), |cove| async move {
            beside::measure(&cove, client, args.streams).await
        })
        .await?;
        add(&mut figures, beside);
    }
    if args.idle > 0 {
        let data_dir = connect::data_dir(global);
        Progress::new(json).show("idle");
        let idle = tidily(Kept::new(waiting), |cove| async move {
            idle::measure(&cove, args.idle, &data_dir).await
        })
        .await?;
        add(&mut figures, idle);
    }
    let mut report = vec![("cove", figures)];
    if let Some(socket) = &args.docker {
        let client = Client::new(ClientConfig::new(
            format!("unix:{}", socket.display()),
            None,
        ))?;
        let docker = docker::Docker {
            client,
            image: args.docker_image.clone(),
        };
        let figures = tidily(Kept::new(docker), |docker| async move {
            measure(&docker, args, json).await
        });
        // What was measured of Cove is reported also when Docker fails.
        match figures.await {
            Ok(figures) => {
                let ratio = ratios(&report[0].1, &figures);
                report.push(("docker", figures));
                report.push(("docker/cove", ratio));
            }
            Err(error) => eprintln!("Docker could not be measured: {error}"),
        }
    }
    if json {
        let report: serde_json::Map<String, Value> = report
            .into_iter()
            .map(|(name, figures)| (name.to_owned(), figures))
            .collect();
        return output::json(&report);
    }
    let mut headings = vec!["FIGURE", "UNIT"];
    headings.extend(report.iter().map(|(name, _)| *name));
    let mut table = Table::new(&headings);
    for (key, unit, title) in FIGURES {
        let mut row = vec![(*title).to_owned(), (*unit).to_owned()];
        row.extend(
            report
                .iter()
                .map(|(_, figures)| match figures[*key].as_f64() {
                    Some(value) => format!("{value:.2}"),
                    None => "-".into(),
                }),
        );
        table.row(row);
    }
    table.print()
}

/// Whatever became of the work, nothing that it made is left.
async fn tidily<S: Subject, F: Future<Output = Result<Value, CliError>>>(
    subject: Kept<S>,
    work: impl FnOnce(Kept<S>) -> F,
) -> Result<Value, CliError> {
    let outcome = work(subject.clone()).await;
    match subject.clear().await {
        0 => {}
        left => eprintln!("{left} could not be deleted and are left"),
    }
    outcome
}

fn add(figures: &mut Value, more: Value) {
    if let (Value::Object(figures), Value::Object(more)) = (figures, more) {
        figures.extend(more);
    }
}

/// How many times what Cove has the other one has.
fn ratios(cove: &Value, other: &Value) -> Value {
    let ratio = |key: &str| {
        let (ours, theirs) = (cove[key].as_f64()?, other[key].as_f64()?);
        (ours > 0.0).then(|| (key.to_owned(), json!(theirs / ours)))
    };
    FIGURES
        .iter()
        .filter_map(|(key, _, _)| ratio(key))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

const FIGURES: &[(&str, &str, &str)] = &[
    ("warm", "", "sandboxes prepared ahead"),
    ("create_exec_p50_ms", "ms", "create + exec, median"),
    ("create_exec_p99_ms", "ms", "create + exec, p99"),
    ("create_p50_ms", "ms", "create, median"),
    ("create_p99_ms", "ms", "create, p99"),
    ("delete_p50_ms", "ms", "delete, median"),
    ("burst_p50_ms", "ms", "burst of create + exec, median"),
    ("burst_max_ms", "ms", "burst of create + exec, last"),
    ("burst_failed", "", "burst, failed"),
    (
        "sustained_per_s",
        "1/s",
        "create + exec + delete, sustained",
    ),
    ("exec_p50_ms", "ms", "exec, median"),
    ("exec_p99_ms", "ms", "exec, p99"),
    ("exec_per_s", "1/s", "exec on one sandbox, 8 at once"),
    ("streams", "", "streams open at once"),
    ("streams_exec_p50_ms", "ms", "exec beside them, median"),
    ("streams_exec_ratio", "", "exec beside them / exec alone"),
    ("idle_sandboxes", "", "sandboxes that only wait"),
    ("idle_server_mb", "MiB", "memory of the server with them"),
];

async fn measure<S: Subject>(subject: &S, args: &BenchArgs, json: bool) -> Result<Value, CliError> {
    let mut progress = Progress::new(json);
    progress.show("one after the other");
    let latency = one_by_one(subject, args.count.max(1)).await?;
    progress.show("at once");
    let burst = at_once(subject, args.burst).await?;
    progress.show("sustained");
    let sustained = sustain(
        subject,
        args.workers.max(1),
        Duration::from_secs(args.sustain),
    )
    .await?;
    progress.show("exec");
    let exec = execs(subject).await?;
    let mut all = json!({});
    for part in [latency, burst, sustained, exec] {
        add(&mut all, part);
    }
    Ok(all)
}

async fn one_by_one<S: Subject>(subject: &S, count: usize) -> Result<Value, CliError> {
    let (mut creates, mut both, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let started = Instant::now();
        let id = subject.create().await?;
        creates.push(started.elapsed());
        let echoed = subject.echo(&id).await;
        both.push(started.elapsed());
        let started = Instant::now();
        subject.delete(&id).await?;
        deletes.push(started.elapsed());
        echoed?;
    }
    Ok(json!({
        "create_exec_p50_ms": quantile(&mut both, 0.5), "create_exec_p99_ms": quantile(&mut both, 0.99),
        "create_p50_ms": quantile(&mut creates, 0.5), "create_p99_ms": quantile(&mut creates, 0.99),
        "delete_p50_ms": quantile(&mut deletes, 0.5),
    }))
}

async fn at_once<S: Subject>(subject: &S, count: usize) -> Result<Value, CliError> {
    if count == 0 {
        return Ok(json!({}));
    }
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..count {
        let subject = subject.clone();
        tasks.spawn(async move {
            let id = subject.create().await?;
            let echoed = subject.echo(&id).await;
            let took = started.elapsed();
            Ok::<_, ClientError>((id, echoed.map(|()| took)))
        });
    }
    let (mut times, mut ids, mut failed) = (Vec::new(), Vec::new(), 0);
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok(Ok((id, Ok(took)))) => {
                ids.push(id);
                times.push(took);
            }
            Ok(Ok((id, Err(_)))) => {
                ids.push(id);
                failed += 1;
            }
            Ok(Err(_)) | Err(_) => failed += 1,
        }
    }
    for id in ids {
        // What does not go now is tried again when everything is cleared away.
        subject.delete(&id).await.ok();
    }
    Ok(json!({
        "burst_p50_ms": quantile(&mut times, 0.5), "burst_max_ms": quantile(&mut times, 1.0),
        "burst_failed": failed,
    }))
}

async fn sustain<S: Subject>(
    subject: &S,
    workers: usize,
    time: Duration,
) -> Result<Value, CliError> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..workers {
        let subject = subject.clone();
        tasks.spawn(async move {
            let mut made = 0u64;
            while started.elapsed() < time {
                let id = subject.create().await?;
                let echoed = subject.echo(&id).await;
                subject.delete(&id).await?;
                echoed?;
                made += 1;
            }
            Ok::<_, ClientError>(made)
        });
    }
    let made = sum(tasks).await?;
    Ok(json!({ "sustained_per_s": made as f64 / started.elapsed().as_secs_f64() }))
}

async fn execs<S: Subject>(subject: &S) -> Result<Value, CliError> {
    let id = subject.create().await?;
    let figures = execs_in(subject, &id).await;
    subject.delete(&id).await?;
    Ok(figures?)
}

async fn execs_in<S: Subject>(subject: &S, id: &str) -> Result<Value, ClientError> {
    let mut times = Vec::new();
    for _ in 0..EXECS {
        let started = Instant::now();
        subject.echo(id).await?;
        times.push(started.elapsed());
    }
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..EXEC_WORKERS {
        let (subject, id) = (subject.clone(), id.to_owned());
        tasks.spawn(async move {
            let mut done = 0u64;
            while started.elapsed() < EXEC_TIME {
                subject.echo(&id).await?;
                done += 1;
            }
            Ok::<_, ClientError>(done)
        });
    }
    let done = sum(tasks).await?;
    Ok(json!({
        "exec_p50_ms": quantile(&mut times, 0.5), "exec_p99_ms": quantile(&mut times, 0.99),
        "exec_per_s": done as f64 / started.elapsed().as_secs_f64(),
    }))
}

async fn sum(mut tasks: JoinSet<Result<u64, ClientError>>) -> Result<u64, ClientError> {
    let mut total = 0;
    while let Some(done) = tasks.join_next().await {
        total += done.map_err(|_| ClientError::Protocol("a worker was interrupted"))??;
    }
    Ok(total)
}

/// In milliseconds; `None` of nothing.
fn quantile(times: &mut [Duration], at: f64) -> Option<f64> {
    times.sort();
    let index = ((times.len() as f64 * at).ceil() as usize).saturating_sub(1);
    times
        .get(index.min(times.len().saturating_sub(1)))
        .map(|time| time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_what_both_have() {
        let cove = json!({"exec_p50_ms": 2.0, "burst_failed": 0, "idle_server_mb": 9.0});
        let docker = json!({"exec_p50_ms": 8.0, "burst_failed": 0});
        assert_eq!(ratios(&cove, &docker), json!({"exec_p50_ms": 4.0}));
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut times: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut times, 0.5), Some(50.0));
        assert_eq!(quantile(&mut times, 0.99), Some(99.0));
        assert_eq!(quantile(&mut times, 1.0), Some(100.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }
}
