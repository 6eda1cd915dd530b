//! A control plane, its store, its host and its clock.

use std::sync::Arc;
use std::time::Duration;

use cove_control::testing::{ManualClock, MemoryRunner};
use cove_control::{
    ApiToken, Control, ControlConfig, ControlError, CreateKey, CreateSandbox, Created, Origin,
    PageRequest, Principal, Quota, Sandbox, SandboxFilter, Scope,
};
use cove_model::{IdlePolicy, Resources, SandboxSpec, State};
use cove_store::Store;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// After which a test gives up. Far longer than anything here takes, also on a machine that is busy.
pub const DEADLINE: Duration = Duration::from_secs(120);

pub struct Plane {
    pub control: Control,
    pub store: Arc<dyn Store>,
    pub runner: Arc<MemoryRunner>,
    pub clock: Arc<ManualClock>,
    pub root: Principal,
    root_token: ApiToken,
    config: ControlConfig,
    folder: TempDir,
    background: Option<(CancellationToken, JoinHandle<()>)>,
}

/// Background work at a pace tests can wait for.
pub fn quick() -> ControlConfig {
    ControlConfig {
        snapshot_grace: Duration::ZERO,
        // Whoever waits for a change gets what came of it; tests of waiting in vain have a wait of their own.
        change_wait: DEADLINE,
        events_wait: DEADLINE,
        guest_patience: DEADLINE,
        meter_every: Duration::from_millis(20),
        lifecycle_every: Duration::from_millis(20),
        reconcile_every: Duration::from_millis(50),
        ..ControlConfig::default()
    }
}

impl Plane {
    pub async fn new() -> Self {
        Self::with(quick()).await
    }

    pub async fn with(mut config: ControlConfig) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        config.audit_journal = Some(folder.path().join("audit"));
        let clock = Arc::new(ManualClock::default());
        let runner = MemoryRunner::new(clock.clone());
        let root_token = ApiToken::random();
        let (control, store) = build(&folder, &config, &runner, &clock).await;
        control.prepare().await.unwrap();
        control
            .bootstrap_root_key(&root_token.hash())
            .await
            .unwrap();
        let root = control
            .authenticate(root_token.reveal(), Origin::default())
            .await
            .unwrap();
        Self {
            control,
            store,
            runner,
            clock,
            root,
            root_token,
            config,
            folder,
            background: None,
        }
    }

    /// The file of its database.
    pub fn database(&self) -> std::path::PathBuf {
        self.folder.path().join("store.db")
    }

    /// Starts the background work.
    pub fn go(&mut self) {
        let shutdown = CancellationToken::new();
        let (control, token) = (self.control.clone(), shutdown.clone());
        let task = tokio::spawn(async move { control.run(token).await });
        self.background = Some((shutdown, task));
    }

    /// Ends the background work in good order.
    pub async fn halt(&mut self) {
        if let Some((shutdown, task)) = self.background.take() {
            shutdown.cancel();
            tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
        }
    }

    /// The same, after the operator changed the settings.
    pub async fn crash_with(&mut self, change: impl FnOnce(&mut ControlConfig)) {
        change(&mut self.config);
        self.crash().await;
    }

    /// A new control plane over the same store and host, as after a crash.
    pub async fn crash(&mut self) {
        self.background = None;
        let (control, store) = build(&self.folder, &self.config, &self.runner, &self.clock).await;
        self.control = control;
        self.store = store;
        self.control.prepare().await.unwrap();
        self.root = self
            .control
            .authenticate(self.root_token.reveal(), Origin::default())
            .await
            .unwrap();
    }

    /// A key of a new organisation.
    pub async fn tenant(&self, name: &str, quota: Option<Quota>) -> Principal {
        let org = self
            .control
            .create_organisation(&self.root, name, quota)
            .await
            .unwrap();
        self.key_of(&org.id, Scope::Admin).await
    }

    pub async fn key_of(&self, org: &cove_model::OrgId, scope: Scope) -> Principal {
        let request = CreateKey {
            name: "test".into(),
            scopes: vec![scope],
            expires_at: None,
            org: Some(org.clone()),
            sandbox: None,
        };
        let key = self.control.create_key(&self.root, request).await.unwrap();
        let origin = Origin {
            source: Some("192.0.2.1".into()),
            request_id: Some("req-1".into()),
        };
        self.control
            .authenticate(key.token.reveal(), origin)
            .await
            .unwrap()
    }

    pub async fn create(
        &self,
        principal: &Principal,
        spec: SandboxSpec,
    ) -> Result<Created, ControlError> {
        let request = CreateSandbox {
            spec,
            ..CreateSandbox::default()
        };
        self.control.create_sandbox(principal, request).await
    }

    pub async fn sandbox(&self, name: &str) -> Sandbox {
        self.create(&self.root, named(name)).await.unwrap().sandbox
    }

    pub async fn all(&self, principal: &Principal) -> Vec<Sandbox> {
        let page = PageRequest {
            limit: 1000,
            cursor: None,
        };
        let filter = SandboxFilter::default();
        self.control
            .list_sandboxes(principal, &filter, &page)
            .await
            .unwrap()
            .items
    }

    /// Waits until a sandbox is in a state.
    pub async fn wait_for(&self, id: &str, state: State) -> Sandbox {
        wait(|| async {
            let found = self.control.get_sandbox(&self.root, id).await.ok()?;
            (found.state == state).then_some(found)
        })
        .await
    }

    /// Waits until it is gone.
    pub async fn wait_gone(&self, id: &str) {
        wait(|| async {
            self.control
                .get_sandbox(&self.root, id)
                .await
                .err()
                .map(drop)
        })
        .await;
    }

    /// Another control plane over the same store and host.
    pub async fn rebuilt(&self) -> Control {
        let built = build(&self.folder, &self.config, &self.runner, &self.clock).await;
        built.0.prepare().await.unwrap();
        built.0
    }

    /// Another control process over the same store and host, of an installation of its own.
    pub async fn beside(&self) -> Control {
        let mut config = self.config.clone();
        config.audit_journal = Some(self.folder.path().join("audit-of-another"));
        let built = build(&self.folder, &config, &self.runner, &self.clock).await;
        built.0.prepare().await.unwrap();
        built.0
    }

    /// Where the journal of audit records is.
    pub fn journal(&self) -> std::path::PathBuf {
        self.folder.path().join("audit")
    }

    /// No audit record can be written from now on.
    pub fn break_audit(&self) {
        self.sql(
            "CREATE TRIGGER broken BEFORE INSERT ON audit \
             BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END",
        );
    }

    /// Changes the database behind the control plane's back.
    pub fn sql(&self, statements: &str) {
        let raw = rusqlite::Connection::open(self.database()).unwrap();
        raw.busy_timeout(DEADLINE).unwrap();
        raw.execute_batch(statements).unwrap();
    }

    pub async fn audit(&self, principal: &Principal) -> Vec<(String, String)> {
        let page = PageRequest {
            limit: 1000,
            cursor: None,
        };
        let found = self.control.audit(principal, &page).await.unwrap();
        found
            .items
            .into_iter()
            .map(|record| (record.action, record.result))
            .collect()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if let Some((shutdown, task)) = &self.background {
            shutdown.cancel();
            task.abort();
        }
    }
}

async fn build(
    folder: &TempDir,
    config: &ControlConfig,
    runner: &Arc<MemoryRunner>,
    clock: &Arc<ManualClock>,
) -> (Control, Arc<dyn Store>) {
    let store = open_store(&folder.path().join("store.db")).await;
    let control = Control::new(config.clone(), store.clone(), runner.clone(), clock.clone());
    (control, store)
}

/// A database that a slow disk keeps nobody from.
pub async fn open_store(path: &std::path::Path) -> Arc<dyn Store> {
    let opened = cove_store::open_sqlite_within(path, DEADLINE).await;
    opened.unwrap()
}

/// Asks until there is an answer.
pub async fn wait<T, F>(mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, asking)
        .await
        .expect("it happens in time")
}

pub fn named(name: &str) -> SandboxSpec {
    SandboxSpec {
        name: Some(name.into()),
        ..SandboxSpec::default()
    }
}

pub fn idle(name: &str, stop: Option<u64>, delete: Option<u64>, life: Option<u64>) -> SandboxSpec {
    let lifecycle = IdlePolicy {
        stop_after_s: stop,
        delete_after_s: delete,
        max_lifetime_s: life,
        ..IdlePolicy::default()
    };
    SandboxSpec {
        lifecycle,
        ..named(name)
    }
}

pub fn sized(memory_mb: u64) -> SandboxSpec {
    let resources = Resources {
        memory_mb,
        cpu: 0.5,
        disk_mb: 100,
        ..Resources::default()
    };
    SandboxSpec {
        resources,
        ..SandboxSpec::default()
    }
}
