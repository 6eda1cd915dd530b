//! What stays in the kernel after engines that ended badly, who may look at it, and who removes it.

use std::fs;

use cove_model::NetworkMode;
use cove_network::{Network, NetworkConfig, abandoned};
use cove_tests::engine_host::eventually;

use crate::bare::Bare;
use crate::packets::{self, Header, datagram, packet};
use crate::stage::*;
use crate::world::*;

fn tables(host: &Namespace) -> String {
    host.program("nft list tables").1
}

fn routes(host: &Namespace) -> String {
    host.program("ip route show table local").1
}

#[test]
fn administrators_can_list_every_rule_and_set() {
    let denials = std::sync::OnceLock::new();
    let bare = Bare::with(|network| {
        let opened = cove_network::Denials::open("0badcafe").expect("a group is free");
        let ports = cove_network::Ports {
            dns: 5053,
            tcp: 5080,
        };
        network
            .set_listeners(Some(ports), Some(opened.group()))
            .expect("nothing is built yet");
        denials.set(opened).expect("once");
    });
    let (closed, open, listed) = (bare.sandbox(), bare.open_sandbox(), bare.sandbox());
    listed.set(NetworkMode::Allowlist, &["1.2.3.4:7", "10.9.8.0/24:1-9"]);
    open.set(NetworkMode::Open, &["10.9.8.7"]);
    // Every set that rules fill has something in it.
    assert!(closed.inside.connect(PUBLIC, ECHO).is_err());
    open.inside.connect(PUBLIC, ECHO).expect("it is open");
    let header = Header {
        from: OTHER_PUBLIC,
        to: PUBLIC,
        id: 1,
        fragment: 0,
    };
    let forged = packet(&header, &datagram(1, 2, b"x"));
    packets::send(&closed.inside, PUBLIC, &forged);
    let (listed, text) = bare.world.host.program("nft list ruleset");
    assert!(listed, "{text}");
    let (listed, text) = bare
        .world
        .host
        .program("nft -j list table inet cove-0badcafe");
    assert!(listed, "{text}");
    let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let entries = value["nftables"].as_array().expect("a list");
    let sets: Vec<&serde_json::Value> = entries
        .iter()
        .filter_map(|entry| entry.get("set").or_else(|| entry.get("map")))
        .collect();
    for name in [
        "outer", "ours", "asking", "listed", "open", "flows", "private", "logged",
    ] {
        let set = sets.iter().find(|set| set["name"] == name);
        let filled = set.and_then(|set| set["elem"].as_array());
        assert!(
            filled.is_some_and(|elements| !elements.is_empty()),
            "{name}: {set:?}"
        );
    }
    assert!(
        text.contains("10.9.8.0") && text.contains(&format!("cv{}", open.index)),
        "{text}"
    );
    let chains = entries.iter().filter(|entry| entry.get("chain").is_some());
    assert!(chains.count() >= 8, "{text}");
}

#[test]
fn what_an_engine_left_that_is_gone_is_swept_and_what_lives_is_not() {
    let world = World::new();
    let open = |instance: &str| {
        let network = Network::open(NetworkConfig {
            instance: instance.into(),
            addresses: Default::default(),
        })
        .expect("the network opens");
        network.build().expect("the rules are made");
        network
    };
    let live = world.host.enter(|| {
        drop(open("0badcafe"));
        drop(open("00c0ffee"));
        open("0a11ce00")
    });
    let swept = world
        .host
        .enter(|| abandoned::sweep(|instance| instance == "00c0ffee", |_| false))
        .expect("it can be swept");
    // Nobody vouched for the one that lives, but its table is its own.
    assert_eq!(swept, 2, "a table and a route");
    let (left, ways) = (tables(&world.host), routes(&world.host));
    for (instance, stays) in [("0badcafe", false), ("00c0ffee", true), ("0a11ce00", true)] {
        assert_eq!(left.contains(&format!("cove-{instance}")), stays, "{left}");
        let metric = u32::from_str_radix(instance, 16).expect("digits");
        assert_eq!(ways.contains(&format!("metric {metric} ")), stays, "{ways}");
    }
    // Somebody else's table with a name like ours is left alone, and so is an address of the host's.
    world.host.program("nft add table inet cove-administrators");
    world.host.ip("addr add 198.19.0.1/32 dev lo");
    drop(live);
    let swept = world
        .host
        .enter(|| abandoned::sweep(|_| false, |_| false))
        .expect("it can be swept");
    assert_eq!(swept, 4);
    assert_eq!(tables(&world.host).trim(), "table inet cove-administrators");
    assert!(routes(&world.host).contains("198.19.0.1"));
    let again = world.host.enter(|| abandoned::sweep(|_| false, |_| false));
    assert_eq!(again.expect("it can be swept"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_engine_removes_what_one_left_whose_data_was_deleted() {
    let mut stage = Stage::new().await;
    let (_, guest) = stage.sandbox(listed(&["1.2.3.4:7"])).await;
    assert!(ask(&guest, PUBLIC).await.is_ok());
    let gateway = stage.gateway_pid();
    let table = format!("cove-{}", stage.engine.instance());
    stage.engine.kill();
    assert!(tables(&stage.world.host).contains(&table));
    // As good as deleted for everybody who looks for it; the pool in it is still mounted.
    let data = stage.engine.setup.data_dir();
    let hidden = data.with_extension("hidden");
    fs::rename(&data, &hidden).expect("nothing holds its name");
    fs::remove_file(hidden.join("gateway/log")).expect("the gateway has a log");
    let next = Stage::engine_in(&stage.world, |_| {}).await;
    let left = tables(&stage.world.host);
    assert!(!left.contains(&table), "{left}");
    assert!(left.contains(next.instance()), "{left}");
    let metric = u32::from_str_radix(stage.engine.instance(), 16).expect("digits");
    let ways = routes(&stage.world.host);
    assert!(!ways.contains(&format!("metric {metric} ")), "{ways}");
    // The sandbox runs on without the rules that bound it, so it must reach nothing.
    let (_, links) = stage.world.host.program("ip -o link show");
    assert!(!links.contains(" cv"), "{links}");
    assert!(!stage.engine.traces().processes.is_empty());
    eventually("the gateway without a home ends", || async {
        let line = fs::read(format!("/proc/{gateway}/cmdline")).unwrap_or_default();
        (!line.starts_with(b"cove-gateway")).then_some(())
    })
    .await;
    // Had it only been moved, it is back with everything. The other one lives, and has its own ranges.
    fs::rename(&hidden, &data).expect("nobody took its name");
    stage.engine.launch();
    let (_, guest) = stage.sandbox(listed(&["1.2.3.4:7"])).await;
    assert!(ask(&guest, PUBLIC).await.is_ok());
    next.finish();
    stage.finish();
}
