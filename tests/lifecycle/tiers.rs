//! One engine with two tiers. The second is containers that are reached otherwise: over a byte stream
//! without a descriptor, as the serial port of a virtual machine is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use cove_engine::{Engine, OpenTier};
use cove_isolation::{
    Adopted, Afterwards, AtRest, Boot, BootTurn, Capabilities, Captured, Isolation, IsolationError,
    Machine, MachineRecord, MemoryEvent, Needs, Placed, Restore, Root, TierHost, Usage,
};
use cove_isolation_container::{ContainerConfig, ContainerTier};
use cove_model::{NetworkPolicy, Resources, SandboxId, SandboxSpec, SnapshotId, State};
use cove_runner_api::{
    CreateRequest, Finding, GuestStream, RollbackRequest, RunnerApi, RunnerError, SnapshotRequest,
};
use cove_tests::engine_host::{World, eventually, small_spec, succeed};

use crate::PROGRAM;

const RELAYED: &str = "relayed";

/// How boots of the second tier go.
#[derive(Default)]
struct Boots {
    /// Nobody gets a turn any more; whoever has one keeps it.
    full: AtomicBool,
    /// The next one fails.
    fail: AtomicBool,
}

#[derive(Default)]
struct RelayedConfig(Arc<Boots>);

impl OpenTier for RelayedConfig {
    fn open(&self, host: &TierHost) -> Result<Arc<dyn Isolation>, IsolationError> {
        let config = ContainerConfig {
            warm: 0,
            ..ContainerConfig::default()
        };
        let tier = ContainerTier::open(config, host)?;
        Ok(Arc::new(Relayed(tier, Arc::clone(&self.0))))
    }
}

struct Relayed(ContainerTier, Arc<Boots>);

impl Relayed {
    fn take_turn(&self) -> Result<BootTurn, IsolationError> {
        match self.1.full.load(Ordering::Acquire) {
            true => Err(IsolationError::Exhausted("boot turn")),
            false => Ok(BootTurn::new(())),
        }
    }
}

/// The record as the tier below wrote it.
fn below(record: &MachineRecord) -> MachineRecord {
    assert_eq!(record.tier, RELAYED, "the record of another tier");
    MachineRecord {
        tier: "container".into(),
        detail: record.detail.clone(),
    }
}

#[async_trait]
impl Isolation for Relayed {
    fn name(&self) -> &'static str {
        RELAYED
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn trees(&self, root: &Root) -> Result<Vec<PathBuf>, IsolationError> {
        self.0.trees(root)
    }

    fn placed(&self, record: &MachineRecord) -> Option<Placed> {
        self.0.placed(&below(record))
    }

    async fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    async fn turn(&self, _: Option<&str>) -> Result<Option<BootTurn>, IsolationError> {
        self.take_turn().map(Some)
    }

    async fn boot(&self, boot: Boot) -> Result<Box<dyn Machine>, IsolationError> {
        if boot.turn.is_none() {
            self.take_turn()?;
        }
        if self.1.fail.swap(false, Ordering::AcqRel) {
            // From now on an undo that needs a turn of its own gets none.
            self.1.full.store(true, Ordering::Release);
            let reason = io::Error::other("it was told to fail");
            return Err(IsolationError::failed("boot")(reason));
        }
        Ok(Box::new(Behind(self.0.boot(boot).await?)))
    }

    async fn restore(&self, restore: Restore) -> Result<Box<dyn Machine>, IsolationError> {
        Ok(Box::new(Behind(self.0.restore(restore).await?)))
    }

    async fn prove(&self, restore: Restore) -> Result<(), IsolationError> {
        self.0.prove(restore).await
    }

    fn fits(&self, needs: &Needs) -> Result<(), IsolationError> {
        self.0.fits(needs)
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError> {
        Ok(match self.0.adopt(&below(record)).await? {
            Adopted::Running(machine) => Adopted::Running(Box::new(Behind(machine))),
            gone => gone,
        })
    }

    async fn sweep(&self) -> Result<u64, IsolationError> {
        self.0.sweep().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

struct Behind(Box<dyn Machine>);

#[async_trait]
impl Machine for Behind {
    fn record(&self) -> MachineRecord {
        MachineRecord {
            tier: RELAYED.into(),
            ..self.0.record()
        }
    }

    async fn connect(&self) -> io::Result<GuestStream> {
        Ok(GuestStream::Other(Box::new(self.0.connect().await?)))
    }

    async fn listen(
        &self,
        address: std::net::SocketAddrV4,
    ) -> Result<std::net::TcpListener, IsolationError> {
        self.0.listen(address).await
    }

    async fn exited(&self) {
        self.0.exited().await;
    }

    async fn kill(&self) -> Result<(), IsolationError> {
        self.0.kill().await
    }

    async fn usage(&self) -> Result<Usage, IsolationError> {
        self.0.usage().await
    }

    async fn resize(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        self.0.resize(limits, memory_mb).await
    }

    async fn reapply(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        self.0.reapply(limits, memory_mb).await
    }

    async fn grow_memory(&self, limits: &Resources, grown_mb: u64) -> Result<(), IsolationError> {
        self.0.grow_memory(limits, grown_mb).await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), IsolationError> {
        self.0.set_network(policy).await
    }

    async fn memory_event(&self) -> Result<MemoryEvent, IsolationError> {
        self.0.memory_event().await
    }

    async fn freeze(&self) -> Result<(), IsolationError> {
        self.0.freeze().await
    }

    async fn thaw(&self) -> Result<(), IsolationError> {
        self.0.thaw().await
    }

    async fn capture(
        &self,
        memory: &Path,
        at_rest: AtRest,
        afterwards: Afterwards,
    ) -> Result<Captured, IsolationError> {
        self.0.capture(memory, at_rest, afterwards).await
    }

    fn discard(&self) {
        self.0.discard();
    }

    async fn dispose(&self) -> Result<(), IsolationError> {
        self.0.dispose().await
    }
}

async fn open(world: &World) -> Engine {
    open_with(world, RelayedConfig::default()).await
}

async fn open_with(world: &World, relayed: RelayedConfig) -> Engine {
    let mut tiers = world.setup.tiers();
    tiers.push(Box::new(relayed));
    let engine = Engine::open(world.setup.engine_config(), tiers).await;
    engine.expect("an engine with two tiers opens")
}

async fn close(engine: Engine, world: &World) {
    engine.close().await;
    drop(engine);
    eventually("the data directory is free", || async {
        // Tasks that hold the engine end on their own time.
        cove_tests::engine_host::unlocked(&world.setup.data_dir()).then_some(())
    })
    .await;
}

async fn create(engine: &Engine, isolation: &str) -> Result<SandboxId, RunnerError> {
    let id = SandboxId::random();
    let spec = SandboxSpec {
        isolation: isolation.into(),
        ..small_spec()
    };
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec,
        from: None,
    };
    RunnerApi::create(engine, request).await.map(|_| id)
}

async fn said(engine: &Engine, id: &SandboxId, command: &str) -> String {
    let result = succeed(&engine.guest(id).expect("it runs"), command).await;
    String::from_utf8_lossy(&result.stdout).trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_two_tiers_live_in_one_engine_and_are_adopted_by_their_own() {
    // The fixture makes the image and the names to clean up by; its own engine then lets go.
    let mut world = World::start(PROGRAM).await;
    world.let_go();
    let engine = open(&world).await;
    let host = engine.host().await.unwrap();
    let names: Vec<_> = host.tiers.iter().map(|tier| tier.name.as_str()).collect();
    assert_eq!(names, ["container", "gvisor", RELAYED]);
    let refused = create(&engine, "vm").await.unwrap_err();
    let RunnerError::Unsupported { message } = refused else {
        panic!("{refused:?}");
    };
    assert!(
        message.contains("'vm'") && message.contains("container, gvisor, relayed"),
        "{message}"
    );
    let direct = create(&engine, "container").await.unwrap();
    let relayed = create(&engine, RELAYED).await.unwrap();
    for (id, passed) in [(&direct, true), (&relayed, false)] {
        let stream = RunnerApi::connect(&engine, id).await.unwrap();
        assert_eq!(matches!(stream, GuestStream::Unix(_)), passed, "{stream:?}");
        said(&engine, id, "echo here > /tmp/mark").await;
    }
    close(engine, &world).await;
    let engine = open(&world).await;
    for id in [&direct, &relayed] {
        assert_eq!(engine.get(id).await.unwrap().state, State::Running);
        assert_eq!(said(&engine, id, "cat /tmp/mark").await, "here");
        RunnerApi::freeze(&engine, id).await.unwrap();
        RunnerApi::resume(&engine, id).await.unwrap();
    }
    RunnerApi::delete(&engine, &relayed).await.unwrap();
    close(engine, &world).await;
    // An engine without the second tier keeps the first one's.
    world.launch();
    let client = world.client();
    assert_eq!(client.get(&direct).await.unwrap().state, State::Running);
    client.delete(&direct).await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_tier_is_gone_is_ended_and_keeps_its_disk() {
    let mut world = World::start(PROGRAM).await;
    world.let_go();
    let engine = open(&world).await;
    let relayed = create(&engine, RELAYED).await.unwrap();
    said(&engine, &relayed, "echo here > /root/mark; sync").await;
    close(engine, &world).await;
    world.launch();
    let view = world.client().get(&relayed).await.unwrap();
    assert_eq!(view.state, State::Failed);
    let reason = view.reason.unwrap_or_default();
    assert!(reason.contains("'relayed'"), "{reason}");
    let refused = world.client().start(&relayed).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::Unsupported { .. }),
        "{refused:?}"
    );
    world.let_go();
    let engine = open(&world).await;
    RunnerApi::start(&engine, &relayed).await.unwrap();
    assert_eq!(said(&engine, &relayed, "cat /root/mark").await, "here");
    RunnerApi::delete(&engine, &relayed).await.unwrap();
    close(engine, &world).await;
    world.launch();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_boot_queue_fails_no_sandbox() {
    let mut world = World::start(PROGRAM).await;
    world.let_go();
    let boots = Arc::<Boots>::default();
    let engine = open_with(&world, RelayedConfig(Arc::clone(&boots))).await;
    let id = create(&engine, RELAYED).await.unwrap();
    said(&engine, &id, "echo first > /root/mark; sync").await;
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: id.clone(),
        memory: false,
        unless_unchanged: false,
    };
    let to = RunnerApi::snapshot(&engine, request).await.unwrap().id;
    // In memory alone: only the machine that runs now has it.
    said(
        &engine,
        &id,
        "echo second > /root/mark; echo same > /dev/shm/mark",
    )
    .await;
    let rollback = || RollbackRequest {
        sandbox: id.clone(),
        to: to.clone(),
        keep: SnapshotId::random(),
        memory: false,
    };

    // No turn: nothing happens to the machine that runs.
    boots.full.store(true, Ordering::Release);
    let refused = RunnerApi::rollback(&engine, rollback()).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::NoCapacity { .. }),
        "{refused:?}"
    );
    assert_eq!(engine.get(&id).await.unwrap().state, State::Running);
    let marks = said(&engine, &id, "cat /root/mark /dev/shm/mark").await;
    assert_eq!(marks, "second\nsame");

    // The boot fails and meanwhile the queue fills up: the undo boots with the turn that the rollback has.
    boots.full.store(false, Ordering::Release);
    boots.fail.store(true, Ordering::Release);
    RunnerApi::rollback(&engine, rollback()).await.unwrap_err();
    assert!(boots.full.load(Ordering::Acquire), "it was not tried");
    assert_eq!(engine.get(&id).await.unwrap().state, State::Running);
    assert_eq!(said(&engine, &id, "cat /root/mark").await, "second");

    // A stopped one that gets no turn stays stopped.
    RunnerApi::stop(&engine, &id, 0).await.unwrap();
    let refused = RunnerApi::start(&engine, &id).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::NoCapacity { .. }),
        "{refused:?}"
    );
    assert_eq!(engine.get(&id).await.unwrap().state, State::Stopped);
    boots.full.store(false, Ordering::Release);
    RunnerApi::start(&engine, &id).await.unwrap();
    assert_eq!(said(&engine, &id, "cat /root/mark").await, "second");
    RunnerApi::delete(&engine, &id).await.unwrap();
    close(engine, &world).await;
    world.launch();
    world.finish();
}
