//! Policies through the engine, from inside sandboxes as root.

use cove_model::NetworkMode;
use cove_model::{NetworkPolicy, SandboxId};
use cove_runner_api::{EgressEntry, EgressVerdict, RunnerApi, RunnerError};
use cove_tests::engine_host::{exec, output};

use crate::stage::*;
use crate::world::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_allow_list_holds_from_its_first_entry_to_its_last() {
    let stage = Stage::new().await;
    let most = cove_model::network::ALLOW_ENTRIES_MAX;
    let mut entries: Vec<String> = (0..most - 1)
        .map(|number| match number % 2 {
            0 => format!("8.{}.{}.9:{}", number / 256, number % 256, 1000 + number),
            _ => format!("*.name{number}.example"),
        })
        .collect();
    entries.push("1.2.3.4:7".into());
    let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
    let (_, guest) = stage.sandbox(listed(&entries)).await;
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    assert!(ask(&guest, OTHER_PUBLIC).await.is_err());
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_sandbox_goes_through_the_gateway_and_every_decision_is_logged() {
    let mut stage = Stage::new().await;
    let (id, guest) = stage.sandbox(listed(&["1.2.3.4:7"])).await;
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    assert!(ask(&guest, OTHER_PUBLIC).await.is_err());
    assert!(ask(&guest, HOST).await.is_err());
    assert!(ask(&guest, METADATA).await.is_err());
    let to = |address: std::net::Ipv4Addr, verdict| {
        move |entry: &EgressEntry| entry.address == Some(address.into()) && entry.verdict == verdict
    };
    let carried = stage.logged(&id, to(PUBLIC, EgressVerdict::Allowed)).await;
    assert_eq!(carried.port, Some(ECHO));
    let denied = stage
        .logged(&id, to(OTHER_PUBLIC, EgressVerdict::Denied))
        .await;
    // What only the packet filter sees is in the same log.
    let asked = exec(&guest, &format!("nslookup example.org {OTHER_PUBLIC}")).await;
    assert_ne!(asked.exit.code, 0, "another resolver answered");
    stage
        .logged(&id, |entry| {
            entry.protocol == cove_runner_api::EgressProtocol::Udp && entry.port == Some(53)
        })
        .await;

    // Another engine takes the gateway over; streams go on.
    let pid = stage.gateway_pid();
    stage.engine.restart();
    assert_eq!(stage.gateway_pid(), pid, "the gateway was replaced");
    assert!(ask(&guest, PUBLIC).await.is_ok());
    assert!(ask(&guest, OTHER_PUBLIC).await.is_err());

    // Killed, it comes back with every policy; until then all is refused.
    cove_tests::engine_host::signal(pid, rustix::process::Signal::KILL);
    cove_tests::engine_host::eventually("the gateway is back", || async {
        assert!(ask(&guest, OTHER_PUBLIC).await.is_err());
        ask(&guest, PUBLIC).await.ok()
    })
    .await;
    stage.logged(&id, |entry| *entry == denied).await;

    // Stopped, and with every process of before gone, its log can still be read.
    let stopped = stage.engine.client().stop(&id, 0).await;
    stopped.expect("it stops");
    let pid = stage.gateway_pid();
    stage.engine.kill();
    cove_tests::engine_host::signal(pid, rustix::process::Signal::KILL);
    let socket = "gateway/control.sock";
    std::fs::remove_file(stage.engine.setup.data_dir().join(socket)).expect("it was bound");
    stage.engine.launch();
    stage.logged(&id, |entry| *entry == denied).await;
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_policies_change_nothing() {
    let stage = Stage::new().await;
    let (id, guest) = stage.sandbox(mode(NetworkMode::Open)).await;
    let client = stage.engine.client();
    for bad in [
        NetworkPolicy {
            mode: NetworkMode::Allowlist,
            ..NetworkPolicy::default()
        },
        NetworkPolicy {
            mode: NetworkMode::None,
            ..listed(&["example.com"])
        },
        NetworkPolicy {
            mode: NetworkMode::Open,
            ..listed(&["example.com"])
        },
        listed(&["example.com"; cove_model::network::ALLOW_ENTRIES_MAX + 1]),
        listed(&["preset:there-is-none"]),
        NetworkPolicy {
            bandwidth_up_mbit: Some(0),
            ..mode(NetworkMode::Open)
        },
    ] {
        let refused = client.set_network(&id, bad.clone()).await;
        assert!(refused.is_err(), "{bad:?}");
        let view = client.get(&id).await.expect("it is there");
        assert_eq!(view.spec.network, mode(NetworkMode::Open), "{bad:?}");
        assert!(ask(&guest, PUBLIC).await.is_ok(), "{bad:?}");
    }
    let gone = client
        .set_network(&SandboxId::random(), mode(NetworkMode::None))
        .await;
    assert!(
        matches!(gone, Err(RunnerError::NotFound { .. })),
        "{gone:?}"
    );
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn root_inside_cannot_touch_interfaces_routes_or_raw_packets() {
    let stage = Stage::new().await;
    let (_, guest) = stage.sandbox(mode(NetworkMode::Open)).await;
    for attempt in [
        "ip link set eth0 down",
        "ip link set eth0 address 02:00:00:00:00:09",
        "ip addr add 198.18.112.7/32 dev eth0",
        "ip addr del 198.19.0.2/30 dev eth0",
        "ip route add 10.0.0.0/8 dev eth0",
        "ip route del default",
        "ip link add x0 type veth",
        "ip link add b0 type bridge",
        "ip tuntap add t0 mode tun",
        "ip rule add table 9",
        "arping -c 1 -I eth0 198.19.0.1",
        "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "nc -w 2 ::ffff:10.9.8.7 7",
        "nc -w 2 fe80::1%eth0 7",
        "nc -w 2 2001:db8::1 7",
        "nc -w 2 0x0a090807 7",
        "nc -w 2 012.011.010.07 7",
        "nc -w 2 167905287 7",
    ] {
        let result = exec(&guest, &format!("{attempt} < /dev/null")).await;
        assert_ne!(result.exit.code, 0, "'{attempt}' worked");
    }
    assert!(
        ask(&guest, PUBLIC).await.is_ok(),
        "and its network is as before"
    );
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn churn_and_kills_leave_no_interface_rule_or_route() {
    let mut stage = Stage::new().await;
    for round in 0..3 {
        let mut made = Vec::new();
        for number in 0..8 {
            let policy = match number % 3 {
                0 => mode(NetworkMode::None),
                1 => mode(NetworkMode::Open),
                _ => listed(&["1.2.3.4:7"]),
            };
            made.push(stage.sandbox(policy).await);
        }
        if round == 1 {
            stage.engine.restart();
        }
        let client = stage.engine.client();
        for (number, (id, guest)) in made.iter().enumerate() {
            assert_eq!(ask(guest, PUBLIC).await.is_ok(), number % 3 != 0);
            client.delete(id).await.expect("it is deleted");
        }
    }
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_has_the_network_it_was_created_with_and_it_changes_live() {
    let mut stage = Stage::new().await;
    let (id, guest) = stage.sandbox(mode(NetworkMode::Open)).await;
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    // One that may reach nothing has no interface to try it with.
    let (none_id, none) = stage.sandbox(mode(NetworkMode::None)).await;
    let said = ask(&none, PUBLIC).await.unwrap_err();
    assert!(said.contains("unreachable"), "{said}");
    let interfaces = "ls /sys/class/net | tr '\\n' ' '";
    assert_eq!(output(&none, interfaces).await.trim(), "lo");
    assert_eq!(output(&guest, interfaces).await.trim(), "eth0 lo");
    assert_eq!(
        output(&guest, "cat /etc/resolv.conf | head -n1").await,
        "nameserver 198.19.0.1"
    );

    let client = stage.engine.client();
    let sample = client.sample(&id).await.expect("figures");
    assert!(sample.network_sent_bytes > 100, "{sample:?}");
    assert!(sample.network_received_bytes > 100, "{sample:?}");

    let view = client
        .set_network(&id, mode(NetworkMode::None))
        .await
        .expect("a change");
    assert_eq!(view.spec.network.mode, NetworkMode::None);
    assert!(ask(&guest, PUBLIC).await.unwrap_err().contains("refused"));
    client
        .set_network(&id, mode(NetworkMode::Open))
        .await
        .expect("a change");
    assert!(ask(&guest, PUBLIC).await.is_ok());

    let before = client.sample(&id).await.expect("figures");
    assert!(before.network_sent_bytes > sample.network_sent_bytes);
    stage.engine.restart();
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    assert!(ask(&none, PUBLIC).await.is_err());
    stage
        .engine
        .client()
        .set_network(&none_id, mode(NetworkMode::Open))
        .await
        .expect("a change");
    assert_eq!(ask(&none, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    for guest in [&guest, &none] {
        let groups = output(guest, "cat /proc/sys/net/ipv4/ping_group_range").await;
        assert_eq!(groups, "0\t65535", "not everybody may ping");
    }
    // What is metered grows over restarts of the engine and of the sandbox, and never begins again.
    let client = stage.engine.client();
    let after = client.sample(&id).await.expect("figures");
    assert!(after.network_sent_bytes > before.network_sent_bytes);
    client.stop(&id, 0).await.expect("it stops");
    let stopped = client.sample(&id).await.expect("figures");
    assert!(stopped.network_sent_bytes >= after.network_sent_bytes);
    assert!(stopped.network_received_bytes >= after.network_received_bytes);
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_was_written_down_is_put_in_force_by_the_next_engine() {
    let mut stage = Stage::new().await;
    let (id, guest) = stage.sandbox(mode(NetworkMode::None)).await;
    stage.engine.kill();
    // As an engine leaves it that dies between the two.
    let data = stage.engine.setup.data_dir();
    let path = data.join("records").join(format!("{id}.json"));
    let text = std::fs::read(&path).expect("its record");
    let mut record: serde_json::Value = serde_json::from_slice(&text).expect("its record");
    record["spec"]["network"]["mode"] = "open".into();
    std::fs::write(&path, record.to_string()).expect("its record");
    stage.engine.launch();
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    // And found in force by the one after it.
    stage.engine.restart();
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_fails_half_way_opens_nothing() {
    let stage = Stage::new().await;
    let (id, _guest) = stage.sandbox(listed(&[])).await;
    let (_, links) = stage.world.host.program("ip -o link show");
    let link = links
        .split_whitespace()
        .find(|word| word.starts_with("cv"))
        .and_then(|word| word.split(['@', ':']).next())
        .expect("its interface");
    // Rules come first and limits after them, which need the interface.
    stage.world.host.ip(&format!("link del {link}"));
    let wide = NetworkPolicy {
        bandwidth_down_mbit: Some(10),
        ..mode(NetworkMode::Open)
    };
    let client = stage.engine.client();
    client.set_network(&id, wide).await.unwrap_err();
    let table = format!("inet cove-{}", stage.engine.instance());
    let (_, open) = stage
        .world
        .host
        .program(&format!("nft list set {table} open"));
    assert!(open.contains("set open"), "{open}");
    assert!(!open.contains("elements"), "{open}");
    let view = client.get(&id).await.expect("it is there");
    assert_eq!(view.spec.network, listed(&[]));
    stage.finish();
}
