//! Makes a disk image of the tree in `/root`.

use std::io::{self, Read};

use cove_confine::rights;
use rustix::thread::CapabilitySet;

use crate::Told;
use crate::console::Tail;
use crate::program;

const PROGRAM: &str = "/vm/bin/mke2fs";
/// The image.
const IMAGE: i32 = 5;
/// All that reading a tree of any owners needs.
const KEPT: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// `arguments` are those of mke2fs.
pub fn make(arguments: &[String]) -> Told {
    let step = || "make the disk image".to_owned();
    let made = || -> io::Result<(std::process::ExitStatus, Tail)> {
        let (mut read, write) = {
            let (read, write) = program::said()?;
            (std::fs::File::from(read), write)
        };
        let mut command = program::command(PROGRAM, arguments);
        command.stdout(write.try_clone()?).stderr(write);
        program::keep(&mut command, IMAGE, IMAGE, || {
            rights::bound_capabilities(KEPT)?;
            rights::keep_capabilities(KEPT)?;
            rustix::thread::set_no_new_privs(true)?;
            Ok(())
        });
        let mut child = command.spawn()?;
        drop(command);
        let mut tail = Tail::default();
        let mut piece = [0; 4096];
        loop {
            match read.read(&mut piece)? {
                0 => break,
                got => tail.add(&piece[..got]),
            }
        }
        Ok((child.wait()?, tail))
    };
    match made() {
        Ok((status, _)) if status.success() => Ok(()),
        Ok((_, tail)) => {
            let full = tail.line().contains("allocate block");
            let kind = match full {
                true => libc::ENOSPC,
                false => libc::EIO,
            };
            let step = format!("make the disk image: {}", tail.line());
            Err((step, io::Error::from_raw_os_error(kind)))
        }
        Err(error) => Err((step(), error)),
    }
}
