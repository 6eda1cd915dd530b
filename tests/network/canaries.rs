//! Where the values of secrets are after they were used in every way: memory of every process, captured memory,
//! every file. Only the terminator, and the server that was asked, may have them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_model::SnapshotId;
use cove_runner_api::{RunnerApi, SnapshotRequest};
use cove_tests::engine_host::{eventually, guest, output, shell};

use crate::secrets::{BASIC, BEARER, BOUND, HEADER, QUERY, Scene, basic};

const PIECE: usize = 1 << 20;

/// What the process can write to, which is all that it can have got from outside.
fn dump(pid: i32, to: &Path) {
    let mut file = File::create(to).expect("a file");
    // One that has ended holds nothing.
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else {
        return;
    };
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
        return;
    };
    let mut piece = vec![0; PIECE];
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (range, access) = (fields.next().expect("a range"), fields.next());
        if !access.expect("rights").starts_with("rw") {
            continue;
        }
        let (start, end) = range.split_once('-').expect("two ends");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        let (mut at, end) = (address(start), address(end));
        while at < end {
            let count = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
            // Memory of a device, or unmapped meanwhile.
            let Ok(read @ 1..) = memory.read_at(&mut piece[..count], at) else {
                break;
            };
            file.write_all(&piece[..read]).expect("written");
            at += read as u64;
        }
    }
}

/// Files below a directory, or the file itself, that have one of these texts.
fn having(texts: &[String], below: &Path) -> Vec<String> {
    let mut search = Command::new("grep");
    search.args(["-rlaF", "--devices=skip"]);
    for text in texts {
        search.args(["-e", text]);
    }
    let found = search.arg(below).output().expect("grep is installed");
    let found = String::from_utf8_lossy(&found.stdout);
    found.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_in_no_file_and_in_no_process_but_the_terminator() {
    let scene = Scene::new().await;
    let client = scene.stage.engine.client();
    let tiers = client.host().await.expect("a host").tiers;
    let captures = tiers[0].capabilities.contains(&"memory".to_owned());
    if !cove_tests::needs::has("criu", captures) {
        return;
    }
    let (made, pid) = scene.sandbox(None).await;
    let of = |name: &str| made.placeholders[name].clone();
    let mut talk = scene.connect(pid, BOUND);
    let bearer = format!("Bearer {}", of("bearer"));
    let login = basic(&format!("user:{}", of("basic")));
    let query = format!("GET /echo?key={}", of("query"));
    let asked = [
        talk.ask("GET /echo", &[("Authorization", &bearer)], ""),
        talk.ask("GET /gzip", &[("Authorization", &bearer)], ""),
        talk.ask("GET /echo", &[("Authorization", &login)], ""),
        talk.ask("GET /echo", &[("X-API-Key", &of("header"))], ""),
        talk.ask(&query, &[], ""),
    ];
    assert!(asked.iter().all(|it| it["status"] == 200), "{asked:?}");
    // A process inside holds all that came back, in memory and in a file.
    let inside = guest(&client, &made.id);
    let got = STANDARD.encode(serde_json::to_vec(&asked).expect("JSON"));
    let hold = "base64 -d > /root/got; all=$(cat /root/got); touch /root/ready; \
                while :; do sleep 1; done; echo $all";
    inside
        .start(shell(&format!("echo {got} | ({hold})")))
        .await
        .expect("it starts");
    eventually("the answers are inside", || async {
        let listed = output(&inside, "ls /root").await;
        listed.contains("ready").then_some(())
    })
    .await;
    let take = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: made.id.clone(),
        memory: true,
        unless_unchanged: false,
    };
    client.snapshot(take).await.expect("a snapshot with memory");

    let values = [BEARER, BASIC, HEADER, QUERY].map(str::to_owned);
    let percent = ["canary-basic%2B0123456789", "canary%20query%260123456789"];
    let encoded = [BEARER, HEADER, QUERY].map(|value| STANDARD.encode(value));
    let logged_in = basic(&format!("user:{BASIC}"));
    let mut looked_for = values.to_vec();
    looked_for.extend(percent.map(str::to_owned));
    // Without the padding, and the last group, which depends on what follows.
    looked_for.extend(encoded.map(|text| text[..text.len() - 4].to_owned()));
    looked_for.push(logged_in["Basic ".len()..logged_in.len() - 4].to_owned());
    let placeholder = [of("bearer")];

    let data = scene.stage.engine.setup.data_dir();
    assert_eq!(having(&looked_for, &data), [""; 0]);
    // The search finds what is there: captured memory and the disk of the sandbox have the placeholder.
    let there = having(&placeholder, &data);
    assert!(there.len() >= 2, "{there:?}");

    let file = scene.dir().join("memory");
    let mut holders = Vec::new();
    let mut searched = 0;
    let mut processes = scene.stage.engine.traces().processes;
    processes.insert(scene.stage.engine.engine_pid().try_into().expect("a pid"));
    for pid in processes {
        dump(pid, &file);
        searched += usize::from(!having(&placeholder, &file).is_empty());
        if !having(&looked_for, &file).is_empty() {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            holders.push(name.unwrap_or_default().trim().to_owned());
        }
    }
    holders.retain(|name| name != "cove-terminator");
    assert_eq!(holders, [""; 0], "a value is in the memory of these");
    // The guest and the process inside at least.
    assert!(searched >= 2, "{searched}");
}
