//! The isolation tiers of one host, by name. Which there are is decided by the program that opens the
//! engine; here none is known but by what it says about itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use cove_isolation::{
    Adopted, Isolation, IsolationError, MachineRecord, Needs, OpenTier, Placed, TierHost, Warm,
};
use cove_model::{Accel, SandboxSpec};
use cove_runner_api::{Finding, TierReport};

use crate::bounds;
use crate::error::EngineError;

/// What is quoted of a tier's name that came with an untrusted file.
const TIER_NAME_MAX: usize = 40;

pub(crate) struct Tiers {
    all: Vec<Arc<dyn Isolation>>,
}

impl Tiers {
    /// Blocking. Fails when there is none, when one cannot be opened, and when two have the same name.
    pub fn open(settings: &[Box<dyn OpenTier>], host: &TierHost) -> Result<Self, EngineError> {
        let opened = settings.iter().map(|tier| tier.open(host));
        Self::of(opened.collect::<Result<_, _>>()?)
    }

    fn of(all: Vec<Arc<dyn Isolation>>) -> Result<Self, EngineError> {
        let mut names = BTreeSet::new();
        for tier in &all {
            if !names.insert(tier.name()) {
                return Err(EngineError::SameTier(tier.name()));
            }
        }
        match names.is_empty() {
            true => Err(EngineError::NoTier),
            false => Ok(Self { all }),
        }
    }

    pub fn all(&self) -> &[Arc<dyn Isolation>] {
        &self.all
    }

    pub fn named(&self, name: &str) -> Result<&Arc<dyn Isolation>, IsolationError> {
        let found = self.all.iter().find(|tier| tier.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.all.iter().map(|tier| tier.name()).collect();
            IsolationError::Unsupported(format!(
                "there is no isolation tier '{name}' on this host; it has: {}",
                names.join(", ")
            ))
        })
    }

    /// Refuses what the tier of a new sandbox cannot enforce; says which tier of this host can.
    pub fn check(&self, spec: &SandboxSpec) -> Result<(), IsolationError> {
        let tier = self.named(&spec.isolation)?;
        let Err(error) = self.able(tier.as_ref(), spec) else {
            // Its own words say what can be had instead: another acceleration, not another tier.
            return tier.accelerates(spec.accel);
        };
        let others = self.all.iter().map(|tier| tier.as_ref());
        let others = others.filter(|tier| self.able(*tier, spec).is_ok());
        let names: Vec<&str> = others.map(|tier| tier.name()).collect();
        Err(match error {
            IsolationError::Unsupported(message) if !names.is_empty() => {
                IsolationError::Unsupported(format!(
                    "{message}; on this host it can be had with isolation {}",
                    names.join(" or ")
                ))
            }
            error => error,
        })
    }

    fn able(&self, tier: &dyn Isolation, spec: &SandboxSpec) -> Result<(), IsolationError> {
        able(tier, spec)?;
        let captures = |tier: &dyn Isolation| tier.capabilities().memory;
        // Where nothing on the host can pause, a sandbox that should be paused is frozen instead.
        let refused = spec.lifecycle.pause_after_s.is_some()
            && !captures(tier)
            && self.all.iter().any(|tier| captures(tier.as_ref()));
        match refused {
            true => Err(IsolationError::Unsupported(format!(
                "lifecycle.pause_after_s: the tier '{}' cannot pause",
                tier.name()
            ))),
            false => Ok(()),
        }
    }

    /// What each is called, whether it is installed, and what it can do. Tries nothing. One that is installed and
    /// cannot be used counts: `auto` must not become a weaker one.
    pub fn list(&self) -> Vec<TierReport> {
        let report = |tier: &Arc<dyn Isolation>| TierReport {
            name: tier.name().into(),
            usable: tier.installed(),
            capabilities: capability_names(tier.as_ref()),
        };
        self.all.iter().map(report).collect()
    }

    /// CPUs that sandboxes may use.
    pub fn cpus(&self) -> u32 {
        let cpus = self
            .all
            .iter()
            .filter_map(|tier| tier.capabilities().cpus());
        u32::try_from(cpus.max().unwrap_or(0)).unwrap_or(u32::MAX)
    }

    pub fn placed(&self, record: &MachineRecord) -> Option<Placed> {
        self.named(&record.tier).ok()?.placed(record)
    }

    /// Whether captured memory can be restored here.
    pub fn fits(&self, needs: &Needs) -> Result<(), IsolationError> {
        match self.named(&needs.tier) {
            Ok(tier) => tier.fits(needs),
            Err(_) => Err(IsolationError::Unfit(format!(
                "it was captured by the tier '{}', which this host does not have",
                needs.tier.chars().take(TIER_NAME_MAX).collect::<String>()
            ))),
        }
    }

    pub async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError> {
        self.named(&record.tier)?.adopt(record).await
    }

    pub async fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for tier in &self.all {
            found.extend(tier.findings().await);
        }
        found
    }

    /// The names of those that boot machines here.
    pub async fn working(&self) -> Vec<&'static str> {
        let mut working = Vec::new();
        for tier in &self.all {
            if tier.works().await.is_ok() {
                working.push(tier.name());
            }
        }
        working
    }

    /// What all of them keep ready.
    pub fn warm(&self) -> Warm {
        let warm = self.all.iter().map(|tier| tier.warm());
        warm.fold(Warm::default(), |sum, one| Warm {
            wanted: sum.wanted + one.wanted,
            ready: sum.ready + one.ready,
        })
    }
}

fn capability_names(tier: &dyn Isolation) -> Vec<String> {
    let mut names = tier.capabilities().names();
    names.extend(tier.accels().into_iter().map(Accel::capability));
    names
}

fn able(tier: &dyn Isolation, spec: &SandboxSpec) -> Result<(), IsolationError> {
    tier.available()?;
    let capabilities = tier.capabilities();
    if spec.no_new_privs && !capabilities.no_new_privs {
        let message = format!("the tier '{}' cannot enforce no_new_privs", tier.name());
        return Err(IsolationError::Unsupported(message));
    }
    let refused = |what: &str| {
        let message = format!("the tier '{}' cannot {what}", tier.name());
        Err(IsolationError::Unsupported(message))
    };
    if !spec.volumes.is_empty() && !capabilities.volumes {
        return refused("mount volumes");
    }
    if spec.identity.is_some() && !capabilities.identity {
        return refused("have an identity (the metadata endpoint)");
    }
    bounds::check_tasks(&capabilities, &spec.resources)?;
    capabilities.check(&spec.resources)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use std::path::PathBuf;

    use cove_isolation::{Boot, Capabilities, Limit, Limits, Machine, Restore, Root};
    use cove_model::{NetworkPolicy, Resources, SandboxId};

    use super::*;

    /// Says who it is, makes nothing.
    struct Named(&'static str, u64);

    fn nothing() -> IsolationError {
        IsolationError::Unsupported("this tier makes nothing".into())
    }

    #[async_trait]
    impl Isolation for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities {
                limits: Limits {
                    cpu: Limit::Enforced {
                        most: Some(self.1),
                        live: true,
                    },
                    memory: Limit::LIVE,
                    memory_max: Limit::LIVE,
                    disk: Limit::LIVE,
                    pids: Limit::LIVE,
                    open_files: Limit::LIVE,
                    io_read: Limit::LIVE,
                    io_write: Limit::Refused("writing cannot be limited".into()),
                },
                no_new_privs: self.1 > 2,
                memory: self.1 > 2,
                volumes: self.1 > 2,
                identity: self.1 > 2,
                memory_least_mb: 0,
                task_cost: cove_isolation::TaskCost::PLAIN,
                cpus_fixed: false,
            }
        }

        fn trees(&self, _: &Root) -> Result<Vec<PathBuf>, IsolationError> {
            Err(nothing())
        }

        fn placed(&self, record: &MachineRecord) -> Option<Placed> {
            Some(Placed {
                index: u32::try_from(record.detail.as_u64()?).ok()?,
                sandbox: SandboxId::random(),
                policy: NetworkPolicy::default(),
            })
        }

        async fn findings(&self) -> Vec<Finding> {
            vec![cove_isolation::finding::good(self.0, "there".into())]
        }

        async fn boot(&self, _: Boot) -> Result<Box<dyn Machine>, IsolationError> {
            Err(nothing())
        }

        async fn restore(&self, _: Restore) -> Result<Box<dyn Machine>, IsolationError> {
            Err(nothing())
        }

        async fn prove(&self, _: Restore) -> Result<(), IsolationError> {
            Err(nothing())
        }

        fn fits(&self, needs: &Needs) -> Result<(), IsolationError> {
            assert_eq!(needs.tier, self.0, "asked about another's memory");
            Ok(())
        }

        async fn adopt(&self, _: &MachineRecord) -> Result<Adopted, IsolationError> {
            Ok(Adopted::Gone(None))
        }

        async fn sweep(&self) -> Result<u64, IsolationError> {
            Ok(0)
        }

        fn warm(&self) -> Warm {
            Warm {
                wanted: 2,
                ready: 1,
            }
        }

        async fn close(&self) {}
    }

    fn two() -> Tiers {
        Tiers::of(vec![
            Arc::new(Named("small", 2)),
            Arc::new(Named("large", 8)),
        ])
        .expect("two names")
    }

    fn record(tier: &str) -> MachineRecord {
        MachineRecord {
            tier: tier.into(),
            detail: 7.into(),
        }
    }

    #[tokio::test]
    async fn each_tier_is_asked_about_its_own_and_an_absent_one_is_refused_by_name() {
        let tiers = two();
        assert_eq!(tiers.named("large").expect("it is there").name(), "large");
        let refused = tiers.named("vm").err().expect("it is not there");
        let said = refused.to_string();
        assert!(
            said.contains("'vm'") && said.contains("small, large"),
            "{said}"
        );
        assert_eq!(tiers.placed(&record("small")).expect("placed").index, 7);
        assert!(tiers.placed(&record("vm")).is_none());
        assert!(tiers.adopt(&record("large")).await.is_ok());
        assert!(tiers.adopt(&record("vm")).await.is_err());
        let names: Vec<_> = tiers
            .findings()
            .await
            .into_iter()
            .map(|one| one.name)
            .collect();
        assert_eq!(names, ["small", "large"]);
        assert_eq!((tiers.warm().wanted, tiers.warm().ready), (4, 2));
        assert_eq!(tiers.cpus(), 8);
    }

    #[test]
    fn a_limit_beyond_a_tier_is_refused_with_the_tier_that_has_it() {
        let asked = |cpu, io_write_mb_s, no_new_privs| SandboxSpec {
            isolation: "small".into(),
            no_new_privs,
            resources: Resources {
                cpu,
                io_write_mb_s,
                ..Resources::default()
            },
            ..SandboxSpec::default()
        };
        let refusal = |spec| match two().check(&spec) {
            Err(IsolationError::Unsupported(message)) => message,
            other => panic!("{other:?}"),
        };
        two().check(&asked(2.0, None, false)).expect("it has two");
        let said = refusal(asked(4.0, None, false));
        assert!(
            said.contains("4 CPUs") && said.ends_with("isolation large"),
            "{said}"
        );
        let said = refusal(asked(1.0, None, true));
        assert!(
            said.contains("no_new_privs") && said.ends_with("isolation large"),
            "{said}"
        );
        let said = refusal(asked(1.0, Some(5), false));
        assert!(said.ends_with("writing cannot be limited"), "{said}");
    }

    #[test]
    fn memory_is_for_the_tier_that_captured_it() {
        let needs = |tier: &str| Needs {
            tier: tier.into(),
            architecture: "any".into(),
            cpu_features: Vec::new(),
            kernel: "6.1".into(),
            components: Default::default(),
        };
        assert!(two().fits(&needs("small")).is_ok());
        let refused = two().fits(&needs("vm"));
        assert!(matches!(refused, Err(IsolationError::Unfit(said)) if said.contains("'vm'")));
    }

    #[test]
    fn an_engine_without_a_tier_or_with_one_twice_does_not_open() {
        assert!(matches!(Tiers::of(Vec::new()), Err(EngineError::NoTier)));
        let twice = Tiers::of(vec![Arc::new(Named("a", 1)), Arc::new(Named("a", 1))]);
        assert!(matches!(twice, Err(EngineError::SameTier("a"))));
    }
}
