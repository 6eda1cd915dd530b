//! What QEMU is told.

use std::io;

use cove_isolation::MachineSpec;
use cove_model::{Accel, Resources};
use cove_network::{Addresses, MAC};
use cove_spawner::boot_id;

/// What QEMU itself takes of a machine's memory: its code, the translated code, its devices.
const OVERHEAD_MB: u64 = 96;
/// For translated code; the rest of the overhead is QEMU's own.
const TRANSLATED_MB: u64 = 32;
/// Least memory of a machine in all, so that its kernel and some programs have room.
pub const MEMORY_LEAST_MB: u64 = OVERHEAD_MB + 160;
/// How long QEMU and the guest may take together. Emulated machines boot slowly on busy hosts; others in a second or
/// two, and a guest that hangs on a KVM which does not run it must not hold anybody up.
pub const fn boot_limit_s(accel: Accel) -> u64 {
    match accel {
        Accel::Software => 110,
        Accel::Kvm => 20,
    }
}
/// QEMU 7.2 spoils the flags when cmpxchg16b is interrupted, and the kernel dies of it; without cx16 it is not used.
pub const EMULATED_CPU: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+rdrand,-cx16";
/// Under emulation the kernel cannot measure its clocks, and hangs when it tries; what holds speculation back costs time
/// where nothing speculates.
const EMULATED: &str = "tsc_early_khz=2000000 lpj=4000000 mitigations=off";
/// Nothing but what a machine needs: no way to read files, start programs or gain rights is left to whoever takes
/// QEMU over.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Descriptors of the supervisor; see there.
const DISK: u32 = 5;
const TAP: u32 = 6;
const PORT: u32 = 7;
const CONTROL: u32 = 8;
const MEMORY: u32 = 9;

/// How long a restore may take, the copy of the memory included.
const RESTORE_LIMIT_S: u64 = 90;

/// How a machine begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The disk is fresh if it was never booted from.
    Boot { fresh: bool },
    /// With captured memory.
    Restore,
    /// As far as a restore goes before anything runs.
    Prove,
}

/// Of the machine itself.
pub fn memory_bytes(limits: &Resources) -> u64 {
    limits.memory_mb.saturating_sub(OVERHEAD_MB) << 20
}

/// The limit that a machine with this memory has.
pub fn limit_of(memory_bytes: u64) -> u64 {
    (memory_bytes >> 20) + OVERHEAD_MB
}

/// What executes a machine's instructions.
pub fn accel_of(spec: &MachineSpec) -> Accel {
    spec.accel.unwrap_or(Accel::Kvm)
}

/// What the supervisor is told first.
fn mode(spec: &MachineSpec, begin: Begin) -> io::Result<Vec<String>> {
    let (mode, limit_s) = match begin {
        Begin::Boot { .. } => ("machine", boot_limit_s(accel_of(spec))),
        Begin::Restore => ("restore", RESTORE_LIMIT_S),
        Begin::Prove => ("prove", RESTORE_LIMIT_S),
    };
    let bytes = memory_bytes(&spec.limits);
    let mut list = vec![mode.into(), limit_s.to_string(), bytes.to_string()];
    if begin == Begin::Restore {
        let pids = spec.limits.pids.to_string();
        let boot_id = boot_id::random()?.trim().to_owned();
        list.extend([spec.hostname.clone(), spec.id.to_string(), boot_id, pids]);
    }
    Ok(list)
}

pub fn arguments(
    spec: &MachineSpec,
    network: Option<Addresses>,
    begin: Begin,
) -> io::Result<Vec<String>> {
    let limits = &spec.limits;
    let accel = accel_of(spec);
    let (executes, cpu) = match accel {
        // Nested virtualisation and performance counters are much code of the host's kernel, and nothing inside needs them.
        Accel::Kvm => ("kvm".to_owned(), "host,-vmx,-svm,pmu=off"),
        // On one thread: the kernel rewrites its own code while it runs, and QEMU lets a second thread execute
        // the breakpoint that stands there meanwhile after it is gone.
        Accel::Software => (
            format!("tcg,thread=single,tb-size={TRANSLATED_MB}"),
            EMULATED_CPU,
        ),
    };
    let memory_mb = memory_bytes(limits) >> 20;
    let mut list = mode(spec, begin)?;
    list.extend([
        "-nodefaults".into(),
        "-no-user-config".into(),
        // A machine that restarts has ended.
        "-no-reboot".into(),
        "-display".into(),
        "none".into(),
        "-sandbox".into(),
        SANDBOX.into(),
        "-L".into(),
        "/vm/share".into(),
        "-machine".into(),
        "microvm,x-option-roms=off,isa-serial=on,rtc=on,pit=on,pic=on,acpi=on,memory-backend=memory"
            .into(),
        "-object".into(),
        // Shared with the supervisor, which copies it. So QEMU leaves it out of the state that it writes.
        format!("memory-backend-file,id=memory,size={memory_mb}M,mem-path=/proc/self/fd/{MEMORY},share=on"),
        "-bios".into(),
        "/vm/share/qboot.rom".into(),
        "-accel".into(),
        executes,
        "-cpu".into(),
        cpu.into(),
        "-smp".into(),
        limits.visible_cpus().to_string(),
        "-m".into(),
        memory_mb.to_string(),
        "-chardev".into(),
        format!("socket,id=control,fd={CONTROL}"),
        "-mon".into(),
        "chardev=control,mode=control".into(),
        "-chardev".into(),
        "stdio,id=console,signal=off".into(),
        "-serial".into(),
        "chardev:console".into(),
        "-add-fd".into(),
        format!("fd={DISK},set=1"),
        "-blockdev".into(),
        "driver=file,node-name=file,filename=/dev/fdset/1,locking=off,discard=unmap,cache.direct=off".into(),
        "-blockdev".into(),
        "driver=raw,node-name=disk,file=file,discard=unmap".into(),
        "-device".into(),
        "virtio-blk-device,drive=disk".into(),
        "-device".into(),
        "virtio-serial-device,max_ports=2".into(),
        "-chardev".into(),
        format!("socket,id=port,fd={PORT}"),
        "-device".into(),
        "virtserialport,chardev=port,name=cove".into(),
    ]);
    match begin {
        Begin::Boot { fresh } => list.extend([
            "-kernel".into(),
            "/vm/vmlinuz".into(),
            "-initrd".into(),
            "/.cove/bin/initial".into(),
            "-append".into(),
            command_line(spec, network, fresh),
        ]),
        // Until the supervisor has it read the state, and lets it run.
        Begin::Restore | Begin::Prove => {
            list.extend(["-incoming", "defer", "-S"].map(str::to_owned));
        }
    }
    if network.is_some() {
        let mac = MAC.map(|byte| format!("{byte:02x}")).join(":");
        list.extend([
            "-netdev".into(),
            format!("tap,id=net,fd={TAP}"),
            "-device".into(),
            format!("virtio-net-device,netdev=net,mac={mac}"),
        ]);
    }
    Ok(list)
}

fn command_line(spec: &MachineSpec, network: Option<Addresses>, fresh: bool) -> String {
    let limits = &spec.limits;
    let of_accel = match accel_of(spec) {
        Accel::Kvm => "",
        Accel::Software => EMULATED,
    };
    let mut line = format!(
        "console=ttyS0 loglevel=3 panic=-1 reboot=t rdinit=/init {of_accel} random.trust_cpu=on \
         cove.hostname={} cove.sandbox={} cove.pids={} cove.open_files={} cove.no_new_privs={} cove.fresh={}",
        spec.hostname,
        spec.id,
        limits.pids,
        limits.open_files,
        u8::from(spec.no_new_privs),
        u8::from(fresh),
    );
    if let Some(addresses) = network {
        let (own, gateway) = (addresses.inner(), addresses.gateway());
        line += &format!(" cove.address={own} cove.gateway={gateway}");
    }
    line
}

#[cfg(test)]
mod tests {
    use cove_model::SandboxId;

    use super::*;

    #[test]
    fn a_machine_has_an_interface_only_where_the_host_has_a_network() {
        let spec = MachineSpec {
            id: SandboxId::random(),
            owner: None,
            hostname: "box".into(),
            limits: Resources {
                memory_mb: 512,
                ..Resources::default()
            },
            no_new_privs: true,
            accel: Some(Accel::Software),
            network: Default::default(),
            volumes: Vec::new(),
        };
        let of = |spec: &MachineSpec, network, begin| {
            let list = arguments(spec, network, begin).expect("random numbers");
            list.join(" ")
        };
        let cold = Begin::Boot { fresh: true };
        let with = of(&spec, Some(Addresses::default()), cold);
        assert!(
            with.contains("tap,id=net,fd=6") && with.contains("cove.address=198.19.0.2"),
            "{with}"
        );
        assert!(
            with.contains("-m 416") && with.contains("cove.no_new_privs=1"),
            "{with}"
        );
        assert!(
            with.contains("-accel tcg") && with.contains("lpj="),
            "{with}"
        );
        let by_kvm = MachineSpec {
            accel: None,
            ..spec.clone()
        };
        let by_kvm = of(&by_kvm, None, cold);
        assert!(
            by_kvm.contains("-accel kvm -cpu host")
                && !by_kvm.contains("tcg")
                && !by_kvm.contains("lpj="),
            "{by_kvm}"
        );
        let without = of(&spec, None, Begin::Boot { fresh: false });
        assert!(
            !without.contains("netdev") && !without.contains("cove.address"),
            "{without}"
        );
        // What a capture depends on is the same however a machine begins.
        let [cold, restored, proven] =
            [cold, Begin::Restore, Begin::Prove].map(|begin| of(&spec, None, begin));
        let devices = |line: &str| {
            let from = line.find("-nodefaults").expect("there");
            let to = line.find("name=cove").expect("there");
            line[from..to].to_owned()
        };
        assert_eq!(devices(&restored), devices(&cold));
        assert_eq!(devices(&proven), devices(&cold));
        assert!(cold.contains("-kernel") && !cold.contains("-incoming"));
        assert!(
            restored.starts_with("restore 90 436207616 box sbx_"),
            "{restored}"
        );
        assert!(
            proven.starts_with("prove 90 436207616 -nodefaults"),
            "{proven}"
        );
        for line in [restored, proven] {
            assert!(
                !line.contains("-kernel") && line.contains("-incoming defer -S"),
                "{line}"
            );
        }
    }
}
