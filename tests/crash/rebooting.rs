//! A reboot of the host, as an engine sees it: another boot id, no processes, groups, interfaces or mounts.

use std::collections::HashSet;
use std::fs;

use cove_model::{EventKind, SandboxId, State};
use cove_runner_api::RunnerApi;
use cove_tests::engine_host::{World, output, succeed};

use crate::PROGRAM;

#[tokio::test(flavor = "multi_thread")]
async fn what_had_processes_is_stopped_and_what_was_paused_stays_paused() {
    let boot_id = tempfile::NamedTempFile::new().unwrap();
    fs::write(boot_id.path(), "first\n").unwrap();
    let mut world = World::with(PROGRAM, |setup| {
        setup.boot_id_file = Some(boot_id.path().to_owned());
    })
    .await;
    let client = world.client();
    let [running, frozen, paused, stopped] = {
        let mut made = Vec::new();
        for name in ["running", "frozen", "paused", "stopped"] {
            let id = world.create().await.id;
            let command = format!("echo {name} > /root/file; echo {name} > /dev/shm/memory; sync");
            succeed(&world.guest(&id), &command).await;
            made.push(id);
        }
        made.try_into().unwrap()
    };
    client.freeze(&frozen).await.unwrap();
    client.pause(&paused).await.unwrap();
    client.stop(&stopped, 0).await.unwrap();

    world.kill();
    world.traces().remove_from_host();
    fs::write(boot_id.path(), "second\n").unwrap();
    world.launch();

    let told = client.events(0, 0).await.unwrap().events;
    let states: HashSet<(SandboxId, State)> = told
        .into_iter()
        .filter_map(|event| match event.kind {
            // The states of the others are reported again with the reasons they had.
            EventKind::State { state, reason }
                if reason.as_deref() == Some("the host restarted") =>
            {
                Some((event.sandbox, state))
            }
            _ => None,
        })
        .collect();
    let expected = [&running, &frozen].map(|id| (id.clone(), State::Stopped));
    assert_eq!(states, HashSet::from(expected));
    for (id, state) in [
        (&running, State::Stopped),
        (&frozen, State::Stopped),
        (&paused, State::Paused),
        (&stopped, State::Stopped),
    ] {
        assert_eq!(client.get(id).await.unwrap().state, state);
    }
    let host = client.host().await.unwrap();
    assert_eq!((host.running, host.promised_memory_bytes), (0, 0));
    // Each comes back with its disk, and the paused one with its memory.
    client.resume(&paused).await.unwrap();
    assert_eq!(
        output(&world.guest(&paused), "cat /root/file /dev/shm/memory").await,
        "paused\npaused"
    );
    for (id, name) in [
        (&running, "running"),
        (&frozen, "frozen"),
        (&stopped, "stopped"),
    ] {
        client.start(id).await.unwrap();
        assert_eq!(output(&world.guest(id), "cat /root/file").await, name);
    }
    world.finish();
}
