//! A command beside many open streams: how long it takes while events and output go to all of them,
//! compared with the same command on a quiet server.

use std::time::{Duration, Instant};

use cove_api::process::{OutputQuery, StartProcess};
use cove_client::{Client, ClientError};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Subject, quantile};
use crate::report::CliError;

/// Commands timed with and without the streams.
const RUNS: usize = 100;
/// One stream in so many follows the output of a process, the others follow events.
const OUTPUT_EVERY: usize = 5;
/// Something happens so often for those that follow events.
const STIR_EVERY: Duration = Duration::from_millis(50);
/// Prints a line so often for those that follow output, and goes on for longer than is measured.
const SCRIPT: &str = "n=0; while [ $n -lt 6000 ]; do n=$((n+1)); echo line; sleep 0.1; done";

pub async fn measure<S: Subject>(
    subject: &S,
    client: &Client,
    streams: usize,
) -> Result<Value, CliError> {
    let (quiet, loud) = (subject.create().await?, subject.create().await?);
    let figures = beside(subject, client, &quiet, &loud, streams).await;
    for id in [quiet, loud] {
        // What does not go now is tried again when everything is cleared away.
        subject.delete(&id).await.ok();
    }
    Ok(figures?)
}

async fn beside<S: Subject>(
    subject: &S,
    client: &Client,
    quiet: &str,
    loud: &str,
    streams: usize,
) -> Result<Value, ClientError> {
    let alone = median(subject, quiet).await?;
    let start = StartProcess {
        argv: Some(["sh", "-c", SCRIPT].map(str::to_owned).to_vec()),
        ..StartProcess::default()
    };
    let process = client.start_process(loud, &start).await?;
    let mut open = JoinSet::new();
    for number in 0..streams {
        // Dropped at the end, which closes them.
        if number % OUTPUT_EVERY == 0 {
            let query = OutputQuery {
                follow: true,
                ..OutputQuery::default()
            };
            let mut lines = client.output(loud, &process.id, &query).await?;
            open.spawn(async move { while let Ok(Some(_)) = lines.next().await {} });
        } else {
            let mut events = client.follow_events(None, None).await?;
            open.spawn(async move { while let Ok(Some(_)) = events.next().await {} });
        }
    }
    let stirred = client.clone();
    let busy = loud.to_owned();
    open.spawn(async move {
        loop {
            let frozen = stirred.freeze_sandbox(&busy).await;
            if frozen.is_err() || stirred.resume_sandbox(&busy).await.is_err() {
                return;
            }
            tokio::time::sleep(STIR_EVERY).await;
        }
    });
    let beside = median(subject, quiet).await;
    open.shutdown().await;
    let beside = beside?;
    let ratio = alone.zip(beside).map(|(alone, beside)| beside / alone);
    Ok(json!({
        "streams": streams,
        "streams_exec_p50_ms": beside,
        "streams_exec_ratio": ratio,
    }))
}

async fn median<S: Subject>(subject: &S, id: &str) -> Result<Option<f64>, ClientError> {
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let started = Instant::now();
        subject.echo(id).await?;
        times.push(started.elapsed());
    }
    Ok(quantile(&mut times, 0.5))
}
