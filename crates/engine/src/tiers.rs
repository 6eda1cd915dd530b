//! The isolation tiers of one host, by name. Which there are is decided by the program that opens the
//! engine; here none is known but by what it says about itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use cove_isolation::{
    Adopted, Isolation, IsolationError, MachineRecord, Needs, OpenTier, Placed, TierHost, Warm,
};
use cove_runner::Finding;

use crate::error::EngineError;

/// What is quoted of a tier's name that came with a file of a stranger.
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

    /// CPUs that sandboxes may use.
    pub fn cpus(&self) -> u32 {
        let cpus = self.all.iter().map(|tier| tier.capabilities().cpus);
        cpus.max().unwrap_or(0)
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

    /// What all of them keep ready.
    pub fn warm(&self) -> Warm {
        let warm = self.all.iter().map(|tier| tier.warm());
        warm.fold(Warm::default(), |sum, one| Warm {
            wanted: sum.wanted + one.wanted,
            ready: sum.ready + one.ready,
        })
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use cove_isolation::{Boot, Capabilities, Machine, Restore};
    use cove_model::{NetworkPolicy, SandboxId};

    use super::*;

    /// Says who it is, makes nothing.
    struct Named(&'static str, u32);

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
                cpus: self.1,
                live_resize: false,
                elastic_memory: false,
                io_read_limit: false,
                io_write_limit: false,
                no_new_privs: false,
                memory: false,
            }
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
