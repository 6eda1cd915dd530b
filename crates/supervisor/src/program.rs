//! Programs of the host that run here: QEMU and mke2fs, with their libraries, in a tree that can only be read.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// They are started by their loader, which finds their libraries in the same tree.
const LOADER: &str = "/vm/lib/ld-linux-x86-64.so.2";

pub fn command(program: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(LOADER);
    command
        .args(["--library-path", "/vm/lib", program])
        .args(arguments)
        .env_clear()
        .env("QEMU_MODULE_DIR", "/vm/lib/qemu")
        .env("MKE2FS_CONFIG", "/vm/etc/mke2fs.conf")
        .env("PATH", "/vm/bin")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

/// Lets the program keep the descriptors `first..=last` and no others beside the standard ones, and does `confine`
/// before it begins.
pub fn keep(
    command: &mut Command,
    first: i32,
    last: i32,
    confine: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) {
    const CLOEXEC: u32 = 4;
    // SAFETY: between fork and exec only system calls are made; the parent has one thread.
    unsafe {
        command.pre_exec(move || {
            if libc::syscall(libc::SYS_close_range, 3, u32::MAX, CLOEXEC) != 0 {
                return Err(io::Error::last_os_error());
            }
            for fd in first..=last {
                // One that is not there was not given.
                libc::fcntl(fd, libc::F_SETFD, 0);
            }
            confine()
        });
    }
}

/// Both ends of a pipe for what a program says.
pub fn said() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
