//! Idle policies with real sandboxes and real guests.

use cove_api::process::{Exec, OutputEvent, ProcessKind, StartProcess};
use cove_client::{Client, ClientConfig};

use super::harness::{Cove, wait_for};

fn client(cove: &Cove) -> Client {
    let read = |name: &str| std::fs::read_to_string(cove.data_dir().join(name)).unwrap();
    let (url, key) = (read("url"), read("root.key"));
    Client::new(ClientConfig::new(url.trim(), Some(key.trim().to_owned()))).unwrap()
}

fn create(cove: &Cove, name: &str) {
    cove.ok([
        "create",
        "busybox",
        "--name",
        name,
        "--memory",
        "256M",
        "--disk",
        "1G",
        "--stop-after",
        "2s",
    ]);
}

fn state(cove: &Cove, name: &str) -> String {
    let shown = cove.json(["show", name]);
    shown["state"].as_str().unwrap().to_owned()
}

fn wait_until_stopped(cove: &Cove, name: &str) {
    wait_for("the sandbox is stopped for being idle", || {
        (state(cove, name) == "stopped").then_some(())
    });
}

/// Begins a quiet command and leaves as soon as it runs.
async fn leave(client: &Client, sandbox: &str, tag: Option<&str>) -> String {
    let exec = Exec {
        argv: Some(vec!["sleep".into(), "100000".into()]),
        tag: tag.map(str::to_owned),
        ..Exec::default()
    };
    let mut lines = client.exec_live(sandbox, &exec).await.unwrap();
    let Some(OutputEvent::Started { process }) = lines.next().await.unwrap() else {
        panic!("the command did not start");
    };
    assert_eq!(process.kind, ProcessKind::Command);
    assert_eq!(process.owner.as_deref(), Some("api"));
    assert_eq!(process.tag.as_deref(), tag);
    process.id
}

#[test]
fn a_quiet_command_whose_caller_left_keeps_its_sandbox_and_a_service_does_not() {
    let cove = Cove::start_with(&[
        "--lifecycle-every-s",
        "1",
        "--meter-every-s",
        "1",
        "--idle-cpu",
        "0.5",
        "--warm",
        "0",
    ]);
    let client = client(&cove);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut commands = Vec::new();
    for (name, tag) in [("plain", None), ("tagged", Some("background"))] {
        create(&cove, name);
        commands.push((name, runtime.block_on(leave(&client, name, tag))));
    }
    // Under the names by which commands and contexts were once known.
    for (name, tag) in [
        ("service", "foreground"),
        ("context", "code:python:default"),
    ] {
        create(&cove, name);
        let start = StartProcess {
            argv: Some(vec!["sleep".into(), "100000".into()]),
            tag: Some(tag.into()),
            ..StartProcess::default()
        };
        let started = runtime
            .block_on(client.start_process(name, &start))
            .unwrap();
        assert_eq!(started.kind, ProcessKind::Service);
        assert_eq!(started.tag.as_deref(), Some(tag));
    }
    let contexts = runtime.block_on(client.code_contexts("context")).unwrap();
    assert!(contexts.items.is_empty(), "a tag was taken for a context");
    wait_until_stopped(&cove, "service");
    wait_until_stopped(&cove, "context");
    // All the time that an idle sandbox has, once more.
    create(&cove, "later");
    wait_until_stopped(&cove, "later");
    for (name, process) in commands {
        assert_eq!(state(&cove, name), "running", "{name}");
        runtime
            .block_on(client.signal(name, &process, "KILL"))
            .unwrap();
        wait_until_stopped(&cove, name);
    }
}
