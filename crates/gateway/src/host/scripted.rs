//! Orders of events that a real process takes only by accident, played by a scripted one.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cove_model::{NetworkMode, SandboxId};
use parking_lot::Mutex;

use super::{Fresh, Gateway, GatewayConfig, Inner, PackageHosts, Presets, process};
use crate::control::needs::SIDE;
use crate::control::{self, Call, Hello, OLDEST, Placed, Reply, Request, VERSION};
use crate::limits::Limits;
use crate::policy::Policy;

const HOME: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// How long a call that must not come is looked out for.
const LOOK_OUT: Duration = Duration::from_millis(700);
const DEADLINE: Duration = Duration::from_secs(60);

fn gateway(directory: PathBuf) -> Gateway {
    let nowhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    Gateway(Arc::new(Inner {
        config: GatewayConfig {
            terminations: Default::default(),
            owners: Default::default(),
            program: b"",
            directory,
            instance: "scripted".into(),
            uid: 65_533,
            gid: 65_533,
            dns: nowhere,
            proxy: nowhere,
            resolvers: vec![nowhere.into()],
            resolv_conf: "/nonexistent".into(),
            presets: Presets {
                file: None,
                packages: PackageHosts::default(),
                tenant_ranges: Vec::new(),
            },
            reserved: Vec::new(),
            limits: Limits::default(),
        },
        build: "ours".into(),
        table: Mutex::new(BTreeMap::new()),
        telling: tokio::sync::Mutex::default(),
        life: tokio::sync::Mutex::default(),
    }))
}

fn hello() -> Reply {
    let nowhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    Reply::Hello(Hello {
        version: VERSION,
        features: SIDE.names(),
        instance: "scripted".into(),
        build: "ours".into(),
        pid: 1,
        sandboxes: 0,
        connections: 0,
        dns: nowhere,
        proxy: nowhere,
    })
}

fn answer(stream: &mut UnixStream, reply: &Reply) {
    control::write_reply_blocking(stream, reply).unwrap();
}

fn placed(sandbox: &SandboxId, mode: NetworkMode) -> Placed {
    Placed {
        termination: None,
        address: HOME,
        owner: String::new(),
        sandbox: sandbox.clone(),
        policy: Policy {
            mode,
            allowed: Vec::new(),
        },
    }
}

/// A gateway that takes its time over a whole table, and meanwhile hears what else it is sent.
struct Slow {
    knows: Mutex<BTreeMap<Ipv4Addr, Placed>>,
    asked: Sender<()>,
    heard: Sender<()>,
    other: Mutex<Receiver<()>>,
}

impl Slow {
    fn hear(&self, mut stream: UnixStream) {
        let request: Request = control::read_blocking(&mut stream).unwrap();
        match request.call {
            Call::Replace(table) => {
                self.asked.send(()).unwrap();
                // A Place that comes now is one that this table would undo.
                let _ = self.other.lock().recv_timeout(LOOK_OUT);
                let table = table.into_iter().map(|it| (it.address, it)).collect();
                *self.knows.lock() = table;
            }
            Call::Place(placed) => {
                self.knows.lock().insert(placed.address, placed);
                self.heard.send(()).unwrap();
            }
            _ => {}
        }
        answer(&mut stream, &Reply::Done);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_change_is_not_undone_by_a_table_copied_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("control.sock")).unwrap();
    let (asked, was_asked) = channel();
    let (heard, other) = channel();
    let slow = Arc::new(Slow {
        knows: Mutex::default(),
        asked,
        heard,
        other: Mutex::new(other),
    });
    {
        let slow = slow.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let slow = slow.clone();
                std::thread::spawn(move || slow.hear(stream.unwrap()));
            }
        });
    }
    let gateway = gateway(directory.path().to_owned());
    let id = SandboxId::random();
    let before = placed(&id, NetworkMode::Open);
    gateway.0.table().insert(HOME, before);
    let pushing = {
        let gateway = gateway.clone();
        tokio::spawn(async move {
            let mut life = gateway.0.life.lock().await;
            gateway.0.push(&mut life).await.unwrap();
        })
    };
    tokio::task::spawn_blocking(move || was_asked.recv_timeout(DEADLINE).unwrap())
        .await
        .unwrap();
    let narrow = placed(&id, NetworkMode::None);
    gateway.place(narrow.clone()).await.unwrap();
    pushing.await.unwrap();
    assert_eq!(slow.knows.lock().get(&HOME), Some(&narrow));
}

/// Ends with the test.
struct Bystander(Child);

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_lives_is_not_killed_for_a_hello_that_failed() {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("control.sock")).unwrap();
    let mut serving = Bystander(Command::new("sleep").arg("600").spawn().unwrap());
    process::note(&directory.path().join("process"), serving.0.id()).unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            // The first two are turned away, as by a process that has its hands full.
            if number < 2 {
                continue;
            }
            let request: Request = control::read_blocking(&mut stream).unwrap();
            match request.call {
                Call::Hello => answer(&mut stream, &hello()),
                _ => answer(&mut stream, &Reply::Done),
            }
        }
    });
    let gateway = gateway(directory.path().to_owned());
    gateway.0.ensure(Fresh::Policies).await.unwrap();
    assert!(serving.0.try_wait().unwrap().is_none(), "it was killed");
}

/// What the engine makes of a process that says this of itself: whether it kept it.
async fn keeps(hello: Hello) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("control.sock")).unwrap();
    let mut serving = Bystander(Command::new("sleep").arg("600").spawn().unwrap());
    process::note(&directory.path().join("process"), serving.0.id()).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request: Request = control::read_blocking(&mut stream).unwrap();
            match request.call {
                Call::Hello => answer(&mut stream, &Reply::Hello(hello.clone())),
                _ => answer(&mut stream, &Reply::Done),
            }
        }
    });
    let gateway = gateway(directory.path().to_owned());
    // Where it is replaced there is no program to replace it with.
    let kept = gateway.0.ensure(Fresh::Policies).await.is_ok();
    assert_eq!(serving.0.try_wait().unwrap().is_none(), kept);
    kept
}

fn said() -> Hello {
    match hello() {
        Reply::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_the_version_before_cannot_hand_over_connections_and_is_replaced() {
    let before = Hello {
        version: OLDEST,
        features: Vec::new(),
        ..said()
    };
    assert!(!keeps(before).await);
    assert!(keeps(said()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_lacks_a_feature_is_replaced_before_it_is_told_a_policy() {
    let mut lacking = said();
    lacking.features.pop();
    assert!(!keeps(lacking).await);
    let later = Hello {
        version: VERSION + 1,
        ..said()
    };
    assert!(!keeps(later).await);
}
