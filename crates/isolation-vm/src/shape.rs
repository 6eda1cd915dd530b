//! What a machine is made of, as far as captured memory depends on it: all of that must be the same where the memory is
//! restored.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use cove_isolation::{IsolationError, MachineSpec, Needs};
use cove_model::Accel;
use cove_network::Addresses;
use serde::{Deserialize, Serialize};

use crate::machine::TIER;
use crate::programs::Versions;
use crate::qemu;

/// Of what QEMU is told about a machine. Another one has other devices.
const FORMAT: &str = "1";
/// Beside the captured memory.
const FILE: &str = "machine.json";
/// It is a few hundred bytes.
const FILE_MAX: u64 = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    memory_bytes: u64,
    cpus: u32,
    open_files: u64,
    no_new_privs: bool,
    /// Own address and gateway, where there is an interface.
    network: Option<(Ipv4Addr, Ipv4Addr)>,
    accel: Accel,
    format: String,
    processor: String,
    cpu_features: Vec<String>,
    #[serde(flatten)]
    versions: Versions,
}

impl Shape {
    pub fn of(
        spec: &MachineSpec,
        network: Option<Addresses>,
        versions: Versions,
    ) -> io::Result<Self> {
        let accel = qemu::accel_of(spec);
        let (processor, cpu_features) = processor(accel)?;
        Ok(Self {
            memory_bytes: qemu::memory_bytes(&spec.limits),
            cpus: spec.limits.visible_cpus(),
            open_files: spec.limits.open_files,
            no_new_privs: spec.no_new_privs,
            network: network.map(|network| (network.inner(), network.gateway())),
            accel,
            format: FORMAT.into(),
            processor,
            cpu_features,
            versions,
        })
    }

    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub fn needs(&self) -> Needs {
        let components = [
            ("qemu", self.versions.qemu.as_str()),
            ("machine", &self.format),
            ("accel", self.accel.as_str()),
            ("processor", &self.processor),
        ];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Needs {
            tier: TIER.into(),
            architecture: std::env::consts::ARCH.into(),
            cpu_features: self.cpu_features.clone(),
            kernel: self.versions.kernel.clone(),
            components: BTreeMap::from(components.map(owned)),
        }
    }

    pub fn keep(&self, memory: &Path) -> io::Result<()> {
        fs::write(memory.join(FILE), serde_json::to_vec(self)?)
    }

    /// Of captured memory.
    pub fn kept(memory: &Path) -> io::Result<Self> {
        use std::io::Read;
        let mut text = Vec::new();
        let file = fs::File::open(memory.join(FILE))?;
        file.take(FILE_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Refuses to restore this as `wanted`; says what would be another.
    pub fn check(&self, wanted: &Self) -> Result<(), IsolationError> {
        let mb = |shape: &Self| qemu::limit_of(shape.memory_bytes);
        let differs = [
            differs("memory_mb", &mb(self), &mb(wanted)),
            differs("the number of CPUs", &self.cpus, &wanted.cpus),
            differs("open_files", &self.open_files, &wanted.open_files),
            differs("no_new_privs", &self.no_new_privs, &wanted.no_new_privs),
            differs("its network", &address(self), &address(wanted)),
        ];
        if let Some(difference) = differs.into_iter().flatten().next() {
            return Err(IsolationError::Unfit(format!(
                "a machine cannot change while its memory is kept: {difference}; ask for what it was, or start from the disk"
            )));
        }
        fits(&self.needs(), &wanted.needs())
    }
}

fn address(shape: &Shape) -> String {
    match shape.network {
        None => "no interface".into(),
        Some((own, gateway)) => format!("{own} by {gateway}"),
    }
}

fn differs<T: PartialEq + std::fmt::Display>(what: &str, was: &T, is: &T) -> Option<String> {
    (was != is).then(|| format!("{what} was {was} and is {is}"))
}

/// What executes the machine's instructions, and the features that it has and that another may lack.
fn processor(accel: Accel) -> io::Result<(String, Vec<String>)> {
    if accel == Accel::Software {
        return Ok((qemu::EMULATED_CPU.into(), Vec::new()));
    }
    let text = fs::read_to_string("/proc/cpuinfo")?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim())
        });
        line.unwrap_or("unknown").to_owned()
    };
    let names = ["vendor_id", "cpu family", "model", "stepping"].map(value);
    let features = value("flags");
    Ok((
        names.join(" "),
        features.split_whitespace().map(str::to_owned).collect(),
    ))
}

/// What a host with these programs and processor offers to captured memory that needs `accel`.
pub fn offered(versions: &Versions, accel: Accel) -> io::Result<Needs> {
    let (processor, cpu_features) = processor(accel)?;
    let shape = Shape {
        memory_bytes: 0,
        cpus: 0,
        open_files: 0,
        no_new_privs: false,
        network: None,
        accel,
        format: FORMAT.into(),
        processor,
        cpu_features,
        versions: versions.clone(),
    };
    Ok(shape.needs())
}

/// Whether memory with these needs can be restored where this is offered.
pub fn fits(needs: &Needs, offered: &Needs) -> Result<(), IsolationError> {
    let component = |needs: &Needs, name: &str| {
        let found = needs.components.get(name);
        found.map_or("unknown", String::as_str).to_owned()
    };
    let both = |what: &str, name: &str| {
        (
            what.to_owned(),
            component(needs, name),
            component(offered, name),
        )
    };
    let compared = [
        (
            "the tier".to_owned(),
            needs.tier.clone(),
            offered.tier.clone(),
        ),
        (
            "the architecture".to_owned(),
            needs.architecture.clone(),
            offered.architecture.clone(),
        ),
        both("QEMU", "qemu"),
        (
            "the machine's Linux".to_owned(),
            needs.kernel.clone(),
            offered.kernel.clone(),
        ),
        both("the version of the machine", "machine"),
        both("accel", "accel"),
        both("the processor", "processor"),
    ];
    for (what, theirs, ours) in compared {
        if theirs != ours {
            return Err(IsolationError::Unfit(format!(
                "it was captured with {what} {theirs}, and here it is {ours}"
            )));
        }
    }
    let lacks = |feature: &&String| !offered.cpu_features.contains(feature);
    let missing: Vec<&str> = needs
        .cpu_features
        .iter()
        .filter(lacks)
        .map(String::as_str)
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(IsolationError::Unfit(format!(
            "the processor lacks {}",
            missing.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use cove_model::{Resources, SandboxId};

    use super::*;

    fn spec() -> MachineSpec {
        MachineSpec {
            id: SandboxId::random(),
            owner: None,
            hostname: "box".into(),
            limits: Resources {
                memory_mb: 512,
                cpu: 2.0,
                ..Resources::default()
            },
            no_new_privs: false,
            accel: Some(Accel::Software),
            network: Default::default(),
            volumes: Vec::new(),
        }
    }

    fn versions() -> Versions {
        Versions {
            qemu: "7.2".into(),
            kernel: "6.12".into(),
        }
    }

    fn refusal(checked: Result<(), IsolationError>) -> String {
        match checked {
            Err(IsolationError::Unfit(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_shape_is_kept_and_only_the_same_one_is_restored() {
        let dir = tempfile::tempdir().expect("a directory");
        let network = Some(Addresses::default());
        let shape = Shape::of(&spec(), network, versions()).expect("made");
        shape.keep(dir.path()).expect("kept");
        let kept = Shape::kept(dir.path()).expect("read");
        assert_eq!(kept, shape);
        kept.check(&shape).expect("the same");
        let with = |limits: fn(&mut Resources)| {
            let mut spec = spec();
            limits(&mut spec.limits);
            Shape::of(&spec, network, versions()).expect("made")
        };
        // Its share of CPUs, and what the guest is told, may be others.
        let also = with(|limits| (limits.cpu, limits.pids, limits.disk_mb) = (1.5, 7, 4096));
        kept.check(&also).expect("alike");
        for (wanted, says) in [
            (
                with(|limits| limits.memory_mb = 640),
                "memory_mb was 512 and is 640",
            ),
            (with(|limits| limits.cpu = 3.0), "CPUs was 2 and is 3"),
            (with(|limits| limits.open_files += 1), "open_files"),
            (
                Shape::of(&spec(), None, versions()).expect("made"),
                "no interface",
            ),
        ] {
            let said = refusal(kept.check(&wanted));
            assert!(
                said.contains(says) && said.contains("from the disk"),
                "{said}"
            );
        }
        fs::write(dir.path().join(FILE), "{}").expect("written");
        Shape::kept(dir.path()).expect_err("nothing is in it");
    }

    #[test]
    fn memory_of_another_qemu_kernel_or_processor_is_refused_by_name() {
        let here = offered(&versions(), Accel::Software).expect("known");
        fits(&here, &here).expect("the same");
        let mut qemu = here.clone();
        qemu.components.insert("qemu".into(), "9.9".into());
        let mut machine = here.clone();
        machine.components.insert("machine".into(), "0".into());
        let mut processor = here.clone();
        processor.components.remove("processor");
        let mut kernel = here.clone();
        kernel.kernel = "5.1".into();
        let mut feature = here.clone();
        feature.cpu_features.push("quantum".into());
        let by_kvm = offered(&versions(), Accel::Kvm).expect("known");
        for (needs, says) in [
            (qemu, "QEMU 9.9, and here it is 7.2"),
            (machine, "the version of the machine 0"),
            (processor, "the processor unknown"),
            (kernel, "Linux 5.1"),
            (feature, "lacks quantum"),
            (by_kvm, "accel kvm"),
        ] {
            let said = refusal(fits(&needs, &here));
            assert!(said.contains(says), "{said}");
        }
    }
}
