//! What the guest does first as PID 1 of a virtual machine. It runs twice: from the initial file system in memory it
//! finds the disk and becomes its root; from there it sets the machine up and serves the host's calls, which come over
//! a port of the machine instead of a socket.
//!
//! What the machine is to be stands in the kernel's command line, which the host wrote.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount};

/// How the kernel calls the program it begins with.
pub const FIRST: &str = "/init";
/// What the second run is told.
pub const ARGUMENT: &str = "--machine";
const MODULES: &str = "/modules";
const DISK: &str = "/dev/vda";
const ROOT: &str = "/root";
const OWN: &str = "/.cove";
/// The disk and the port appear a moment after their drivers.
const APPEAR_WAIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// What is deleted is given back to the host. Tables that were never used stay unwritten: the disk reads as zeros.
const DISK_OPTIONS: &std::ffi::CStr = c"discard,noinit_itable";
const INTERFACE: &str = "eth0";
/// What every program inside, the guest among them, is in.
pub const GROUP: &str = "/sys/fs/cgroup/sandbox";
/// What is left to the kernel itself when programs take all they can: then one of them is ended, and the kernel lives.
const KERNEL_MEMORY_PART: u64 = 16;
const TERMINALS_MAX: u32 = 256;
/// `EXT4_IOC_RESIZE_FS`: the new number of blocks.
const RESIZE: libc::c_ulong = 0x4008_6610;

/// What the host wants of the machine.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    hostname: String,
    /// The sandbox that it is.
    sandbox: String,
    pids: u64,
    open_files: u64,
    no_new_privs: bool,
    /// Own address and gateway, where there is an interface.
    network: Option<(Ipv4Addr, Ipv4Addr)>,
    /// The disk was never booted from: files that carry the machine's name are written.
    fresh: bool,
}

impl Wanted {
    fn read() -> Result<Self, String> {
        let line = fs::read_to_string("/proc/cmdline").map_err(say("cannot read /proc/cmdline"))?;
        Self::of(&line)
    }

    fn of(line: &str) -> Result<Self, String> {
        let value = |key: &str| {
            line.split_whitespace().find_map(|word| {
                word.strip_prefix("cove.")?
                    .strip_prefix(key)?
                    .strip_prefix('=')
            })
        };
        let number = |key: &str| {
            let found = value(key).and_then(|text| text.parse().ok());
            found.ok_or(format!("no number cove.{key} in the command line"))
        };
        let address = |key| value(key).and_then(|text| text.parse().ok());
        Ok(Self {
            hostname: value("hostname").unwrap_or("sandbox").to_owned(),
            sandbox: value("sandbox").unwrap_or_default().to_owned(),
            pids: number("pids")?,
            open_files: number("open_files")?,
            no_new_privs: number("no_new_privs")? != 0,
            network: address("address").zip(address("gateway")),
            fresh: number("fresh")? != 0,
        })
    }
}

fn say<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> String {
    let what = what.into();
    move |error| format!("{what}: {error}")
}

fn attach(kind: &str, at: &str, flags: MountFlags, options: &str) -> Result<(), String> {
    fs::create_dir_all(at).map_err(say(format!("cannot make {at}")))?;
    let options = CString::new(options).map_err(say("odd options"))?;
    mount(kind, at, kind, flags, options.as_c_str()).map_err(say(format!("cannot mount {at}")))
}

fn appears(path: &str) -> Result<(), String> {
    let deadline = Instant::now() + APPEAR_WAIT;
    while !Path::new(path).exists() {
        if Instant::now() > deadline {
            return Err(format!("{path} does not appear"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The first run: never returns but with what went wrong.
pub fn first_run() -> String {
    match become_root() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn become_root() -> Result<std::convert::Infallible, String> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    attach("proc", "/proc", plain, "")?;
    attach("devtmpfs", "/dev", MountFlags::NOSUID, "mode=755")?;
    load_modules()?;
    appears(DISK)?;
    fs::create_dir_all(ROOT).map_err(say("cannot make the root's place"))?;
    mount(DISK, ROOT, "ext4", MountFlags::NOATIME, DISK_OPTIONS)
        .map_err(say("cannot mount the disk"))?;
    grow().map_err(say("cannot grow the file system to its disk"))?;
    for (kind, at, flags, options) in [
        ("proc", "/proc", plain, String::new()),
        ("sysfs", "/sys", plain, String::new()),
        ("devtmpfs", "/dev", MountFlags::NOSUID, "mode=755".into()),
        (
            "devpts",
            "/dev/pts",
            MountFlags::NOSUID | MountFlags::NOEXEC,
            format!("ptmxmode=0666,mode=0620,gid=5,max={TERMINALS_MAX}"),
        ),
        (
            "tmpfs",
            "/dev/shm",
            MountFlags::NOSUID | MountFlags::NODEV,
            "mode=1777".into(),
        ),
        ("cgroup2", "/sys/fs/cgroup", plain, String::new()),
        (
            "tmpfs",
            OWN,
            MountFlags::NOSUID | MountFlags::NODEV,
            "mode=755,size=32m".into(),
        ),
    ] {
        attach(kind, &format!("{ROOT}{at}"), flags, &options)?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        let _ = std::os::unix::fs::symlink(target, format!("{ROOT}/dev/{name}"));
    }
    let program = format!("{ROOT}{OWN}/bin/guest");
    fs::create_dir_all(format!("{ROOT}{OWN}/bin")).map_err(say("cannot make a directory"))?;
    fs::copy(FIRST, &program).map_err(say("cannot copy the guest"))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o555))
        .map_err(say("cannot copy the guest"))?;
    // What lies in memory and is not needed any more.
    let _ = fs::remove_file(FIRST);
    let _ = fs::remove_dir_all(MODULES);
    rustix::process::chdir(ROOT).map_err(say("cannot enter the root"))?;
    rustix::mount::mount_move(".", "/").map_err(say("cannot move the root"))?;
    rustix::process::chroot(".").map_err(say("cannot become the root"))?;
    rustix::process::chdir("/").map_err(say("cannot enter the root"))?;
    use std::os::unix::process::CommandExt;
    let error = std::process::Command::new("/.cove/bin/guest")
        .arg(ARGUMENT)
        .env_clear()
        .exec();
    Err(format!("cannot run the guest: {error}"))
}

/// In the order of their names.
fn load_modules() -> Result<(), String> {
    let listed = fs::read_dir(MODULES).map_err(say("cannot list the modules"))?;
    let mut paths: Vec<PathBuf> = listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    for path in paths {
        let file = fs::File::open(&path).map_err(say("cannot open a module"))?;
        // SAFETY: a descriptor that lives through the call, an empty string and no flags.
        let loaded =
            unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
        if loaded < 0 {
            let error = io::Error::last_os_error();
            return Err(format!("cannot load {}: {error}", path.display()));
        }
    }
    Ok(())
}

/// The file system fills its disk, also when that was made larger since the last boot.
fn grow() -> io::Result<()> {
    let disk = fs::File::open(DISK)?;
    let bytes = rustix::fs::seek(&disk, rustix::fs::SeekFrom::End(0))?;
    let root = fs::File::open(ROOT)?;
    let found = rustix::fs::fstatvfs(&root)?;
    let blocks = bytes / found.f_frsize;
    // Of what is counted, the file system's own tables are left out: a few percent are no growth.
    if found.f_blocks + found.f_blocks / 8 + 8192 >= blocks {
        return Ok(());
    }
    // SAFETY: the number lives through the call, which reads it.
    match unsafe { libc::ioctl(root.as_raw_fd(), RESIZE, &raw const blocks) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The second run's beginning: the machine is what the host wants when this returns the sandbox that it is, and its address.
pub fn set_up() -> Result<(String, Option<Ipv4Addr>), String> {
    let wanted = Wanted::read()?;
    rustix::system::sethostname(wanted.hostname.as_bytes()).map_err(say("cannot set the name"))?;
    limit_processes(wanted.pids).map_err(say("cannot limit processes"))?;
    limit_open_files(wanted.open_files).map_err(say("cannot limit open files"))?;
    bring_up("lo", None).map_err(say("cannot bring up the loopback"))?;
    if let Some(network) = wanted.network {
        appears(&format!("/sys/class/net/{INTERFACE}"))?;
        bring_up(INTERFACE, Some(network)).map_err(say("cannot bring up the network"))?;
    }
    if wanted.fresh {
        let gateway = wanted.network.map(|(_, gateway)| gateway);
        write_names(&wanted.hostname, gateway).map_err(say("cannot write files of /etc"))?;
    }
    if wanted.no_new_privs {
        rustix::thread::set_no_new_privs(true).map_err(say("cannot forbid new privileges"))?;
    }
    let address = wanted.network.map(|(own, _)| own);
    Ok((wanted.sandbox, address))
}

fn limit_processes(pids: u64) -> io::Result<()> {
    fs::create_dir(GROUP)?;
    fs::write(
        "/sys/fs/cgroup/cgroup.subtree_control",
        "+pids +memory +cpu",
    )?;
    fs::write(format!("{GROUP}/pids.max"), pids.to_string())?;
    let memory = memory_total()?;
    let most = memory - memory / KERNEL_MEMORY_PART;
    fs::write(format!("{GROUP}/memory.max"), most.to_string())?;
    fs::write(format!("{GROUP}/cgroup.procs"), "1")?;
    // Where figures are looked for.
    let shown = format!("{OWN}/cgroup");
    fs::create_dir(&shown)?;
    Ok(rustix::mount::mount_bind(GROUP, &shown)?)
}

fn memory_total() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    let total: u64 = total.ok_or_else(|| io::Error::other("/proc/meminfo has no total"))?;
    Ok(total << 10)
}

fn limit_open_files(wanted: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // The kernel allows no process more than this.
    let path = "/proc/sys/fs/nr_open";
    let most: u64 = fs::read_to_string(path)?.trim().parse().unwrap_or(0);
    if wanted > most {
        fs::write(path, wanted.to_string())?;
    }
    let limit = Rlimit {
        current: Some(wanted),
        maximum: Some(wanted),
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
        *to = from as libc::c_char;
    }
    request
}

fn internet(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: all-zero bytes are a valid address of no family.
    let mut found: libc::sockaddr = unsafe { std::mem::zeroed() };
    found.sa_family = libc::AF_INET as libc::sa_family_t;
    // The port comes first.
    for (to, from) in found.sa_data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    found
}

/// Neither end of the interface asks for hardware addresses: both have the same one.
fn bring_up(name: &str, network: Option<(Ipv4Addr, Ipv4Addr)>) -> io::Result<()> {
    const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 252);
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let ask = |call: libc::c_ulong, request: &libc::ifreq| {
        // SAFETY: the request lives through the call and has the type that these calls read.
        match unsafe { libc::ioctl(socket.as_raw_fd(), call, std::ptr::from_ref(request)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let mut flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    if network.is_some() {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        flags |= libc::IFF_NOARP as libc::c_short;
    }
    let mut up = request(name);
    up.ifr_ifru.ifru_flags = flags;
    ask(libc::SIOCSIFFLAGS, &up)?;
    let Some((address, gateway)) = network else {
        return Ok(());
    };
    for (call, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, MASK)] {
        let mut set = request(name);
        set.ifr_ifru.ifru_addr = internet(value);
        ask(call, &set)?;
    }
    // SAFETY: all-zero bytes are a valid rtentry.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = internet(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = internet(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = internet(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    // SAFETY: the route lives through the call and has the type that this call reads.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What containers are given from outside.
fn write_names(hostname: &str, resolver: Option<Ipv4Addr>) -> io::Result<()> {
    let hosts =
        format!("127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost ip6-loopback\n");
    let resolver = resolver.map(|address| {
        let text = format!("nameserver {address}\noptions timeout:3 attempts:2\n");
        ("resolv.conf", text)
    });
    fs::create_dir_all("/etc")?;
    let files = [("hostname", format!("{hostname}\n")), ("hosts", hosts)];
    for (name, text) in files.into_iter().chain(resolver) {
        let path = format!("/etc/{name}");
        // A link in an image may lead to what is not there yet.
        let _ = fs::remove_file(&path);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// The port that leads to the host.
pub fn port() -> Result<OwnedFd, String> {
    let ports = "/sys/class/virtio-ports";
    let deadline = Instant::now() + APPEAR_WAIT;
    loop {
        let named = fs::read_dir(ports).into_iter().flatten().find_map(|entry| {
            let entry = entry.ok()?;
            let name = fs::read_to_string(entry.path().join("name")).ok()?;
            (name.trim() == "cove").then(|| entry.file_name())
        });
        if let Some(name) = named {
            let path = Path::new("/dev").join(std::ffi::OsStr::from_bytes(name.as_bytes()));
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let opened = rustix::fs::open(&path, flags, Mode::empty());
            return opened.map_err(say("cannot open the port to the host"));
        }
        if Instant::now() > deadline {
            return Err("the port to the host does not appear".into());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The end of the machine: everything is on the disk.
pub fn turn_off() -> ! {
    rustix::fs::sync();
    // So that the next boot finds nothing to repair. What somebody still writes to stays as it is.
    let _ = rustix::mount::mount_remount("/", MountFlags::RDONLY, c"");
    // Not a shutdown: without the means to cut the power, the host ends a machine that restarts.
    let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_wants_is_read_from_the_command_line() {
        let line = "quiet cove.hostname=box cove.sandbox=sbx_1 cove.pids=64 cove.open_files=1024 cove.no_new_privs=0 cove.fresh=1 \
                    cove.address=198.19.0.2 cove.gateway=198.19.0.1 panic=-1";
        let wanted = Wanted::of(line).unwrap();
        assert_eq!((wanted.hostname.as_str(), wanted.pids), ("box", 64));
        assert_eq!(wanted.sandbox, "sbx_1");
        assert!(wanted.fresh && !wanted.no_new_privs);
        let (address, gateway) = wanted.network.unwrap();
        assert_eq!((address.octets()[3], gateway.octets()[3]), (2, 1));
        let without = line.replace("cove.gateway", "x");
        assert_eq!(Wanted::of(&without).unwrap().network, None);
        for missing in ["cove.pids=64", "cove.fresh=1", "cove.open_files=1024"] {
            Wanted::of(&line.replace(missing, "")).expect_err("it is needed");
        }
    }
}
