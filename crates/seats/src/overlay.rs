//! Mounting overlays from idmapped layers, on kernels that take layers as descriptors (Linux 6.13)
//! and on those that only take paths.
//!
//! A layer given as a path must be attached in the caller's mount namespace. So that nothing ever
//! shows in the host's, one thread has a namespace of its own for that; it is gone with the engine,
//! however that ends.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use parking_lot::Mutex;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_string, fsmount, fsopen,
    mount_change, move_mount, unmount,
};
use rustix::thread::{
    CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits,
};

/// The layers of a root, as detached idmapped mounts.
pub struct Layers {
    pub base: OwnedFd,
    pub image: OwnedFd,
    /// Holds the directories `upper` and `work`.
    pub volume: OwnedFd,
}

/// How layers are handed to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Handing {
    /// As descriptors where the kernel takes them.
    #[default]
    Auto,
    /// As paths, on any kernel.
    Paths,
}

pub enum Overlays {
    Descriptors,
    Paths(Mutex<mpsc::Sender<Job>>),
}

pub struct Job {
    layers: Layers,
    uid_base: u32,
    reply: mpsc::SyncSender<io::Result<OwnedFd>>,
}

impl Overlays {
    /// `staging` is an existing directory; what is attached there is seen by one thread only.
    pub fn open(handing: Handing, staging: &Path) -> io::Result<Self> {
        if handing == Handing::Auto && kernel_takes_descriptors()? {
            return Ok(Self::Descriptors);
        }
        let (jobs, queue) = mpsc::channel();
        let (ready, entered) = mpsc::sync_channel(1);
        let staging = staging.to_owned();
        std::thread::Builder::new()
            .name("cove-overlays".into())
            .spawn(move || work(&staging, &queue, &ready))?;
        entered.recv().map_err(io::Error::other)??;
        Ok(Self::Paths(Mutex::new(jobs)))
    }

    pub fn mount(&self, layers: Layers, uid_base: u32) -> io::Result<OwnedFd> {
        match self {
            Self::Descriptors => by_descriptors(&layers, uid_base),
            Self::Paths(jobs) => {
                let (reply, answer) = mpsc::sync_channel(1);
                let job = Job {
                    layers,
                    uid_base,
                    reply,
                };
                jobs.lock().send(job).map_err(io::Error::other)?;
                answer.recv().map_err(io::Error::other)?
            }
        }
    }
}

fn kernel_takes_descriptors() -> io::Result<bool> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let any = openat(
        CWD,
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    match fsconfig_set_fd(&context, "lowerdir+", any.as_fd()) {
        Ok(()) => Ok(true),
        // Before 6.13 a descriptor that only names a file is none to the kernel.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::BADF) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn by_descriptors(layers: &Layers, uid_base: u32) -> io::Result<OwnedFd> {
    let inside = |name: &str| {
        openat(
            &layers.volume,
            name,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    };
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for lower in [&layers.base, &layers.image] {
        fsconfig_set_fd(&context, "lowerdir+", lower.as_fd())?;
    }
    fsconfig_set_fd(&context, "upperdir", inside("upper")?.as_fd())?;
    fsconfig_set_fd(&context, "workdir", inside("work")?.as_fd())?;
    finish(&context, uid_base)
}

/// The thread's whole life: a namespace of its own, then job after job.
fn work(staging: &Path, queue: &mpsc::Receiver<Job>, ready: &mpsc::SyncSender<io::Result<()>>) {
    let entered = enter(staging);
    let failed = entered.is_err();
    if ready.send(entered).is_err() || failed {
        return;
    }
    while let Ok(job) = queue.recv() {
        let mounted = by_paths(staging, &job.layers, job.uid_base);
        // A caller that gave up lets the mount go with the descriptor.
        let _ = job.reply.send(mounted);
    }
}

fn enter(staging: &Path) -> io::Result<()> {
    // SAFETY: gives this thread alone its own root, working directory and mounts.
    if unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // What the host unmounts goes here too, so that this never keeps a pool busy.
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    rustix::mount::mount("none", staging, "tmpfs", MountFlags::empty(), None)?;
    for place in ["base", "image", "volume"] {
        fs::create_dir(staging.join(place))?;
    }
    Ok(())
}

fn by_paths(staging: &Path, layers: &Layers, uid_base: u32) -> io::Result<OwnedFd> {
    let mut attached = Attached(Vec::new());
    for (layer, name) in [
        (&layers.base, "base"),
        (&layers.image, "image"),
        (&layers.volume, "volume"),
    ] {
        let at = staging.join(name);
        move_mount(
            layer.as_fd(),
            "",
            CWD,
            &at,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?;
        attached.0.push(at);
    }
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let lower = format!(
        "{}:{}",
        text(staging.join("base")),
        text(staging.join("image"))
    );
    fsconfig_set_string(&context, "lowerdir", lower)?;
    fsconfig_set_string(&context, "upperdir", text(staging.join("volume/upper")))?;
    fsconfig_set_string(&context, "workdir", text(staging.join("volume/work")))?;
    finish(&context, uid_base)
}

/// Detaches the layers again; the overlay has its own hold on them by then.
struct Attached(Vec<PathBuf>);

impl Drop for Attached {
    fn drop(&mut self) {
        for at in &self.0 {
            let _ = unmount(at, UnmountFlags::DETACH);
        }
    }
}

fn finish(context: &OwnedFd, uid_base: u32) -> io::Result<OwnedFd> {
    // Renaming a directory of the image must work as on any machine.
    fsconfig_set_string(context, "redirect_dir", "on")?;
    // Captured watches name files by handle; with these two the overlay has handles.
    fsconfig_set_string(context, "index", "on")?;
    fsconfig_set_string(context, "nfs_export", "on")?;
    let _identity = FilesystemIdentity::take(uid_base)?;
    fsconfig_create(context)?;
    // Reading must not write: whether something changed since a snapshot is known by what was written.
    Ok(fsmount(
        context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOATIME,
    )?)
}

/// This thread acts on files as the root of the sandbox while it lives. An overlay keeps the
/// identity it was made with and writes its upper layer as that; as the host's root, whose id has no
/// place in the mapped layer, it would come out read-only.
struct FilesystemIdentity {
    secure_bits: CapabilitiesSecureBits,
}

impl FilesystemIdentity {
    fn take(uid_base: u32) -> io::Result<Self> {
        let secure_bits = capabilities_secure_bits()?;
        set_capabilities_secure_bits(secure_bits | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
        set_filesystem_ids(uid_base);
        Ok(Self { secure_bits })
    }
}

impl Drop for FilesystemIdentity {
    fn drop(&mut self) {
        set_filesystem_ids(0);
        // Only gives back what was there; a thread that could set the bits can clear them.
        let _ = set_capabilities_secure_bits(self.secure_bits);
    }
}

fn set_filesystem_ids(id: u32) {
    // SAFETY: changes this thread's file system identity only; the calls cannot fail for a
    // privileged thread and report nothing.
    unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
    }
}
