//! Fifty sandboxes that were one: the same memory, the same process, the same ports.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::time::Instant;

use cove_model::{SandboxId, SnapshotId};
use cove_protocol::client::Guest;
use cove_runner_api::{
    EgressEntry, EgressQuery, EgressVerdict, FromSnapshot, RunnerApi, SnapshotRequest,
};
use cove_tests::engine_host::{eventually, output, shell, succeed};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::stage::*;
use crate::world::*;

const FORKS: usize = 50;
const SAME_PORT: u16 = 5555;

/// Waits for a word, then says it from the same port to the same server, and once more when asked.
const PROCESS: &str = "mkfifo /root/word /root/more; touch /root/ready; \
    read word < /root/word; \
    (echo $word; read more < /root/more; echo $word $more) \
    | nc -w 300 1.2.3.4 7 > /root/answer 2> /root/error; echo done >> /root/error";

struct Fork {
    id: SandboxId,
    guest: Guest,
    word: String,
    allowed: bool,
}

/// Of another length in every fork, so that bytes alone tell whose they are.
fn word(number: usize) -> String {
    format!("fork-{number}-{}", "x".repeat(number))
}

async fn lines(stage: &Stage, id: &SandboxId) -> Vec<EgressEntry> {
    let query = EgressQuery {
        sandbox: id.clone(),
        after: 0,
        limit: 100,
        wait_ms: 0,
        verdict: None,
    };
    let batch = stage.engine.client().egress(query).await.expect("a log");
    batch.entries
}

/// Leaves one port for connections in every sandbox there is.
fn only_port(stage: &Stage) {
    let gateway = i32::try_from(stage.gateway_pid()).expect("a pid");
    let mut inside = stage.engine.traces().processes;
    assert!(inside.remove(&gateway), "the gateway is a trace as well");
    for pid in inside {
        let Ok(namespace) = File::open(format!("/proc/{pid}/ns/net")) else {
            continue;
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), network).expect("root may enter");
                let range = format!("{SAME_PORT} {SAME_PORT}");
                fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).expect("root may");
            });
        });
    }
}

async fn contains(guest: &Guest, file: &str, text: &str) {
    eventually(&format!("{file} has {text}"), || async {
        let said = output(guest, &format!("cat {file}")).await;
        said.contains(text).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_memory_forks_get_their_own_bytes_policy_and_log_lines() {
    let stage = Stage::new().await;
    let client = stage.engine.client();
    let tiers = client.host().await.expect("a host").tiers;
    let captures = tiers[0].capabilities.contains(&"memory".to_owned());
    if !cove_tests::needs::has("criu", captures) {
        return stage.finish();
    }
    let (parent, guest) = stage.sandbox(listed(&["1.2.3.4:7"])).await;
    guest.start(shell(PROCESS)).await.expect("it starts");
    eventually("the process waits", || async {
        let listed = output(&guest, "ls /root").await;
        listed.contains("ready").then_some(())
    })
    .await;
    let snapshot = SnapshotId::random();
    client
        .snapshot(SnapshotRequest {
            id: snapshot.clone(),
            sandbox: parent.clone(),
            memory: true,
            unless_unchanged: false,
        })
        .await
        .expect("a snapshot with memory");

    let mut forks = Vec::new();
    for number in 0..FORKS {
        // Every fifth may not.
        let allowed = number % 5 != 0;
        let policy = listed(if allowed {
            &["1.2.3.4:7"]
        } else {
            &["5.6.7.8:7"]
        });
        let from = FromSnapshot {
            snapshot: snapshot.clone(),
            memory: true,
        };
        let (id, guest) = stage.grown(policy, Some(from)).await;
        let word = word(number);
        forks.push(Fork {
            id,
            guest,
            word,
            allowed,
        });
    }
    only_port(&stage);
    // All connections are open at once, from the same address and port to the same server.
    for fork in &forks {
        succeed(&fork.guest, &format!("echo {} > /root/word", fork.word)).await;
    }
    for fork in forks.iter().filter(|fork| fork.allowed) {
        contains(&fork.guest, "/root/answer", &fork.word).await;
        let ports = output(&fork.guest, "netstat -tn").await;
        assert!(
            ports.contains(&format!("198.19.0.2:{SAME_PORT}")) && ports.contains("ESTABLISHED"),
            "{ports}"
        );
    }
    for fork in &forks {
        succeed(&fork.guest, "echo again > /root/more").await;
    }
    for fork in &forks {
        contains(&fork.guest, "/root/error", "done").await;
        let answer = output(&fork.guest, "cat /root/answer").await;
        let word = &fork.word;
        let own = format!("{HOST} {word}\n{HOST} {word} again");
        assert_eq!(answer, if fork.allowed { own.as_str() } else { "" });
    }
    for fork in &forks {
        let sent = 2 * fork.word.len() as u64 + "\n again\n".len() as u64;
        let deadline = Instant::now() + PATIENCE;
        let entries = loop {
            // An allowed connection comes again when it is over.
            let entries = lines(&stage, &fork.id).await;
            let told = |entry: &EgressEntry| !fork.allowed || entry.sent_bytes > 0;
            if entries.iter().any(told) || Instant::now() > deadline {
                break entries;
            }
            tokio::task::yield_now().await;
        };
        let [entry] = entries.as_slice() else {
            panic!("{} has other lines than its own: {entries:#?}", fork.word);
        };
        assert_eq!(
            (entry.address, entry.port),
            (Some(PUBLIC.into()), Some(ECHO))
        );
        if fork.allowed {
            assert_eq!(entry.verdict, EgressVerdict::Allowed);
            assert_eq!(entry.sent_bytes, sent, "{}", fork.word);
        } else {
            assert_eq!(entry.verdict, EgressVerdict::Denied);
        }
    }
    assert!(lines(&stage, &parent).await.is_empty());
    for fork in &forks {
        client.delete(&fork.id).await.expect("it is deleted");
    }
    client
        .delete_snapshot(&snapshot)
        .await
        .expect("it is deleted");
    stage.finish();
}
