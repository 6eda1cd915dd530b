//! `cove node`: further hosts of a fleet.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use cove_api::node::{CreateJoinToken, JoinNode, Node, NodeState, PatchNode};
use cove_client::{Client, ClientConfig};
use cove_model::HostTraits;
use cove_node::{Identity, JoinAnswer, JoinRequest, JoinToken, NodeKey, check_name};

use crate::args::{Global, NodeCommand};
use crate::connect;
use crate::output::{self, Table};
use crate::report::CliError;
use crate::units::each_once;

/// The key of a join whose answer has not come: asked again, the control plane gives the same answer.
const PENDING_KEY: &str = "joining.key";
/// Where a control plane listens whose address names no port.
const DEFAULT_PORT: u16 = 7070;

pub async fn run(global: &Global, command: NodeCommand) -> Result<(), CliError> {
    let json = global.json;
    if let NodeCommand::Join {
        control,
        token,
        name,
        listen,
        address,
        traits,
    } = command
    {
        let traits = HostTraits {
            zone: traits.zone.unwrap_or_default(),
            labels: each_once("label", traits.label.into_iter())?,
            taints: traits.taint.into_iter().collect(),
        };
        return join(global, &control, &token, name, listen, address, traits).await;
    }
    let client = connect::client(global)?;
    match command {
        NodeCommand::Token { expires } => token(&client, expires, json).await,
        NodeCommand::Ls => list(&client, json).await,
        NodeCommand::Show { node } => show(&client, &node, json).await,
        NodeCommand::Cordon { nodes } => cordon(&client, &nodes, true, json).await,
        NodeCommand::Uncordon { nodes } => cordon(&client, &nodes, false, json).await,
        NodeCommand::Set {
            node,
            zone,
            label,
            no_label,
            taint,
            no_taint,
        } => {
            let set = label.into_iter().map(|(key, value)| (key, Some(value)));
            let removed = no_label.into_iter().map(|key| (key, None));
            let labels = each_once("label", set.chain(removed))?;
            let there = taint.into_iter().map(|taint| (taint, true));
            let gone = no_taint.into_iter().map(|taint| (taint, false));
            let taints = each_once("taint", there.chain(gone))?;
            let patch = PatchNode {
                zone,
                labels,
                taints,
                ..PatchNode::default()
            };
            client.patch_node(&node, &patch).await?;
            output::done("changed", &node, json)
        }
        NodeCommand::Rm { nodes, lost } => {
            for node in nodes {
                client.delete_node(&node, lost).await?;
                output::done("removed", &node, json)?;
            }
            Ok(())
        }
        NodeCommand::Join { .. } | NodeCommand::Run(_) => unreachable!("dispatched before"),
    }
}

async fn token(client: &Client, valid_s: Option<u64>, json: bool) -> Result<(), CliError> {
    let made = client
        .create_join_token(&CreateJoinToken { valid_s })
        .await?;
    match json {
        true => output::json(&made),
        false => output::line(&made.token),
    }
}

async fn cordon(
    client: &Client,
    nodes: &[String],
    cordoned: bool,
    json: bool,
) -> Result<(), CliError> {
    let patch = PatchNode {
        cordoned: Some(cordoned),
        ..PatchNode::default()
    };
    for node in nodes {
        client.patch_node(node, &patch).await?;
        let done = match cordoned {
            true => "cordoned",
            false => "uncordoned",
        };
        output::done(done, node, json)?;
    }
    Ok(())
}

fn state(node: &Node) -> String {
    let state = match node.state {
        NodeState::Joining => "joining",
        NodeState::Ready => "ready",
        NodeState::Away => "away",
    };
    match node.cordoned {
        true => format!("{state}, cordoned"),
        false => state.into(),
    }
}

/// Zone, labels and taints.
fn traits(node: &Node) -> [String; 3] {
    let labels = node.labels.iter();
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let taints: Vec<&str> = node.taints.iter().map(String::as_str).collect();
    let zone = node.zone.clone().unwrap_or_default();
    [zone, labels.join(", "), taints.join(", ")].map(|text| match text.is_empty() {
        true => "-".into(),
        false => text,
    })
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let nodes = client.nodes().await?.items;
    if json {
        return output::json(&nodes);
    }
    let mut table = Table::new(&[
        "NAME",
        "STATE",
        "ZONE",
        "LABELS",
        "TAINTS",
        "SANDBOXES",
        "CPU",
        "MEMORY",
        "DISK",
        "ADDRESS",
    ]);
    for node in nodes {
        let shown = state(&node);
        let [zone, labels, taints] = traits(&node);
        let figures = match node.capacity {
            None => ["-", "-", "-", "-"].map(String::from),
            Some(known) => [
                format!("{} of {}", known.running, known.sandboxes),
                format!("{:.1} of {:.1}", known.promised_cpu, known.cpu),
                format!(
                    "{:.1} of {:.1} GiB",
                    gib(known.promised_memory_bytes),
                    gib(known.memory_bytes)
                ),
                format!(
                    "{:.1} of {:.1} GiB",
                    gib(known.promised_disk_bytes),
                    gib(known.disk_bytes)
                ),
            ],
        };
        let [sandboxes, cpu, memory, disk] = figures;
        table.row([
            node.name,
            shown,
            zone,
            labels,
            taints,
            sandboxes,
            cpu,
            memory,
            disk,
            node.address,
        ]);
    }
    table.print()
}

async fn show(client: &Client, node: &str, json: bool) -> Result<(), CliError> {
    let node = client.node(node).await?;
    if json {
        return output::json(&node);
    }
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let mut table = Table::new(&["", ""]);
    let shown = state(&node);
    let [zone, labels, taints] = traits(&node);
    let skew = node.clock_skew_ms.map(|skew| format!("{skew} ms"));
    let tiers = node.capacity.as_ref().map(|known| known.tiers.join(", "));
    for (name, value) in [
        ("name", node.name),
        ("id", node.id),
        ("address", node.address),
        ("state", shown),
        ("reason", text(node.reason)),
        ("zone", zone),
        ("labels", labels),
        ("taints", taints),
        ("version", text(node.version)),
        ("tiers", text(tiers)),
        ("clock difference", text(skew)),
        ("joined", node.joined_at.to_string()),
        (
            "last seen",
            text(node.last_seen_at.map(|at| at.to_string())),
        ),
        ("certificate ends", node.certificate_expires_at.to_string()),
    ] {
        table.row([name.into(), value]);
    }
    table.print()
}

/// Everything that can be refused here is refused before the token is shown to anybody.
async fn join(
    global: &Global,
    control: &str,
    token: &str,
    name: Option<String>,
    listen: SocketAddr,
    address: Option<String>,
    traits: HostTraits,
) -> Result<(), CliError> {
    let failed = |error: cove_node::NodeError| CliError::usage(error.to_string());
    let token = JoinToken::parse(token).map_err(|error| {
        CliError::hinted(
            error.to_string(),
            "use what `cove node token` printed, whole",
        )
    })?;
    if !rustix::process::geteuid().is_root() {
        return Err(CliError::hinted(
            "a node must be set up by root",
            "run this as root",
        ));
    }
    let settings = crate::serve::settings(global)?;
    let data_dir = &settings.data_dir;
    if data_dir.join("control").exists() {
        return Err(CliError::hinted(
            format!(
                "{} belongs to a control plane of its own",
                data_dir.display()
            ),
            "choose another directory with --data-dir",
        ));
    }
    make_directory(data_dir, 0o711)?;
    let _lock = super::doctor::lock(data_dir)?
        .ok_or_else(|| CliError::hinted("a node uses this data directory", "stop it first"))?;
    let relay = settings.relay_dir();
    make_directory(&relay, 0o700)?;
    if let Some(before) = Identity::load(&relay).map_err(failed)? {
        return Err(match token.pins(&before.authority) {
            true => CliError::hinted(
                format!("this host has joined the fleet already, as {}", before.name),
                format!(
                    "start it with `cove node run`; if it was removed from the fleet, remove {} and join again",
                    relay.display()
                ),
            ),
            false => CliError::hinted(
                format!("this host belongs to another fleet, as {}", before.name),
                format!(
                    "choose another directory with --data-dir, or remove {}",
                    relay.display()
                ),
            ),
        });
    }
    let name = match name {
        Some(name) => name,
        None => host_name(),
    };
    check_name(&name).map_err(failed)?;
    traits
        .check()
        .map_err(|error| CliError::usage(error.to_string()))?;
    let address = match address {
        Some(address) => address,
        None => own_address(control, listen)?,
    };
    let host = cove_engine::host_id(&settings.engine_dir())
        .map_err(|error| CliError::io("cannot read the id of this host", error))?;
    let key = pending_key(&relay.join(PENDING_KEY))?;
    let request = JoinRequest::make(&token, &host, &name, &address, traits, &key);
    let mut config = ClientConfig::new(control, None);
    if let Some(path) = &global.ca_file {
        let read = fs::read(path);
        let pem =
            read.map_err(|error| CliError::io(format!("cannot read {}", path.display()), error))?;
        config.ca_pem = Some(pem);
    }
    let answer = Client::new(config)?
        .join_node(&JoinNode {
            token: request.token.clone(),
            host: host.to_string(),
            name: name.clone(),
            address: address.clone(),
            public_key: request.public_key.clone(),
            zone: Some(request.traits.zone.clone()).filter(|zone| !zone.is_empty()),
            labels: request.traits.labels.clone(),
            taints: request.traits.taints.clone(),
            proof: request.proof.clone(),
        })
        .await?;
    let answer = JoinAnswer {
        fleet: answer.fleet,
        authority: answer.authority,
        certificate: answer.certificate,
        proof: answer.proof,
    };
    answer.check(&token, &request).map_err(failed)?;
    let identity = Identity {
        fleet: answer.fleet,
        name: name.clone(),
        host,
        authority: answer.authority,
        certificate: answer.certificate,
        key: hex::encode(&key.serialize()[..]),
        listen: listen.to_string(),
    };
    identity.save(&relay).map_err(failed)?;
    fs::remove_file(relay.join(PENDING_KEY)).ok();
    output::done("joined", &name, global.json)
}

fn make_directory(path: &Path, mode: u32) -> Result<(), CliError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path);
    made.map_err(|error| CliError::io(format!("cannot make {}", path.display()), error))
}

/// The same key for every try, until one is answered.
fn pending_key(path: &Path) -> Result<NodeKey, CliError> {
    let unusable = |error: &dyn std::fmt::Display| {
        CliError::hinted(
            format!("{}: {error}", path.display()),
            "remove it and join again",
        )
    };
    let failed = |error| CliError::io(format!("cannot write {}", path.display()), error);
    match fs::read_to_string(path) {
        Ok(text) => {
            let bytes = hex::decode(text.trim()).map_err(|error| unusable(&error))?;
            NodeKey::parse(&bytes).map_err(|error| unusable(&error))
        }
        Err(_) => {
            use std::io::Write;
            let key = NodeKey::generate().map_err(|error| unusable(&error))?;
            let mut file = fs::OpenOptions::new()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .open(path)
                .map_err(failed)?;
            let text = hex::encode(&key.serialize()[..]);
            file.write_all(text.as_bytes()).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            Ok(key)
        }
    }
}

fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().to_ascii_lowercase();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The address that this host has towards the control plane. Nothing is sent to find out.
fn own_address(control: &str, listen: SocketAddr) -> Result<String, CliError> {
    let unknown = || {
        CliError::hinted(
            "cannot find the address by which the control plane reaches this host",
            "name it with --address HOST:PORT",
        )
    };
    if !listen.ip().is_unspecified() {
        return Ok(listen.to_string());
    }
    let place = control.split_once("://").map_or(control, |(_, rest)| rest);
    let place = place.split('/').next().unwrap_or_default();
    let target = place
        .to_socket_addrs()
        .or_else(|_| (place, DEFAULT_PORT).to_socket_addrs());
    let target = target.map_err(|_| unknown())?.next().ok_or_else(unknown)?;
    let local = match target {
        SocketAddr::V4(_) => UdpSocket::bind("0.0.0.0:0"),
        SocketAddr::V6(_) => UdpSocket::bind("[::]:0"),
    };
    let local = local.and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    let local = local.map_err(|_| unknown())?.ip();
    Ok(SocketAddr::new(local, listen.port()).to_string())
}
