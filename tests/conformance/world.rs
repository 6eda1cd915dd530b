//! What trials share: the engine, a neighbour that must never notice anything, and what the host
//! looked like before.

use std::collections::BTreeMap;
use std::fs;
use std::pin::Pin;
use std::sync::Arc;

use cove_model::{Resources, SandboxSpec};
use cove_tests::{Host, Sandbox};

/// Settings of the host that an escape would go for.
const SETTINGS: [&str; 12] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/kernel/sysrq",
    "/sys/kernel/uevent_helper",
    "/etc/passwd",
];
const NEIGHBOUR_SECRET: &str = "what only the neighbour knows";

pub type Future = Pin<Box<dyn std::future::Future<Output = ()> + Send>>;

/// One trial: its name states the behaviour.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub run: Arc<dyn Fn(Arc<World>) -> Future + Send + Sync>,
}

impl Case {
    pub fn new<F>(
        name: impl Into<String>,
        run: impl Fn(Arc<World>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: std::future::Future<Output = ()> + Send + 'static,
    {
        Self {
            name: name.into(),
            run: Arc::new(move |world| Box::pin(run(world))),
        }
    }
}

/// Names async functions as cases.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::world::Case::new(
            concat!(module_path!(), "::", stringify!($name)).replacen("conformance::", "", 1),
            $name,
        )),*]
    };
}
pub(crate) use cases;

pub struct World {
    pub host: Arc<Host>,
    pub tier: String,
    pub neighbour: Sandbox,
    settings: BTreeMap<&'static str, Option<Vec<u8>>>,
}

fn settings() -> BTreeMap<&'static str, Option<Vec<u8>>> {
    SETTINGS
        .into_iter()
        .map(|path| (path, fs::read(path).ok()))
        .collect()
}

impl World {
    pub async fn open() -> Self {
        let tier = cove_tests::tiers::under_test();
        let settings = settings();
        let host = Host::open(|_| {}).await;
        host.add_debian().await;
        host.add_busybox().await;
        let neighbour = host
            .sandbox(SandboxSpec {
                isolation: tier.clone(),
                ..SandboxSpec::default()
            })
            .await;
        let keep = format!("umask 077; printf %s '{NEIGHBOUR_SECRET}' > /srv/secret");
        neighbour.sh("", &keep).await.ok();
        Self {
            host,
            tier,
            neighbour,
            settings,
        }
    }

    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            isolation: self.tier.clone(),
            resources: Resources {
                memory_mb: 512,
                disk_mb: 1024,
                ..Resources::default()
            },
            ..SandboxSpec::default()
        }
    }

    pub async fn sandbox(&self) -> Sandbox {
        self.host.sandbox(self.spec()).await
    }

    pub async fn sandbox_with(&self, change: impl FnOnce(&mut Resources)) -> Sandbox {
        let mut spec = self.spec();
        change(&mut spec.resources);
        self.host.sandbox(spec).await
    }

    /// The host's settings are what they were, and the neighbour has its file and runs commands.
    pub async fn check_unharmed(&self) {
        assert_eq!(settings(), self.settings, "the host's settings changed");
        let seen = self
            .neighbour
            .sh("", "cat /srv/secret; test \"$(ls -A /srv)\" = secret")
            .await
            .ok();
        assert_eq!(seen, NEIGHBOUR_SECRET, "the neighbour's file changed");
    }
}

/// Runs a self-checking program of attempts and sees to it that it attempted something.
pub async fn attempts(sandbox: &Sandbox, user: &str, program: &str) {
    let program = format!("{}\n{program}", include_str!("programs/attempts.py"));
    let ran = sandbox.python(user, &program).await;
    let checked = ran
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("checked "))
        .and_then(|count| count.parse::<u32>().ok());
    assert!(
        ran.exit.code == 0 && checked.is_some_and(|count| count > 0),
        "as {user:?}: {}{}",
        ran.stdout,
        ran.stderr
    );
}
