//! The rights a file call acts with. They are this thread's alone and end with it.

use std::collections::HashMap;

use crate::account::{Account, Databases};
use crate::failure::{Failure, Result};

pub struct Identity {
    pub account: Account,
    pub databases: Databases,
}

impl Identity {
    /// Makes the calling thread act on files as `user`. With a user other than root the kernel
    /// takes away the capabilities over files as well.
    pub fn assume(user: &str) -> Result<Self> {
        let databases = Databases::read();
        let account = databases.account(user)?;
        // The kernel is asked directly: the C library's functions would change every thread.
        // SAFETY: the pointer and the count describe a live slice.
        let set = unsafe {
            libc::syscall(
                libc::SYS_setgroups,
                account.groups.len(),
                account.groups.as_ptr(),
            )
        };
        if set < 0 {
            let error = std::io::Error::last_os_error();
            return Err(Failure::io("cannot take on the user's groups", &error));
        }
        set_file_ids(account.uid, account.gid)?;
        Ok(Self { account, databases })
    }

    pub fn is_root(&self) -> bool {
        self.account.uid == 0
    }
}

/// Sets which user and group this thread is to the file system.
pub fn set_file_ids(uid: u32, gid: u32) -> Result<()> {
    // The group first: a user other than root may not change it.
    // SAFETY: these take and return numbers; the second call of each only reads back.
    let (found_gid, found_uid) = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        (
            libc::syscall(libc::SYS_setfsgid, u32::MAX),
            libc::syscall(libc::SYS_setfsuid, u32::MAX),
        )
    };
    // gVisor knows no such ids; there the effective ones of this thread are set, which those would follow.
    let unknown = found_gid == -1 && found_uid == -1;
    if unknown && set_effective_ids(uid, gid) {
        return Ok(());
    }
    if found_gid as u32 != gid || found_uid as u32 != uid {
        return Err(Failure::new(
            cove_protocol::message::ErrorCode::PermissionDenied,
            format!("cannot act as user {uid} and group {gid}"),
        ));
    }
    Ok(())
}

/// Of this thread alone. The real ids stay root's, so that root can be had back.
fn set_effective_ids(uid: u32, gid: u32) -> bool {
    let keep = u32::MAX;
    // SAFETY: these take numbers and change credentials of the calling thread only.
    unsafe {
        libc::syscall(libc::SYS_setresgid, keep, gid, keep) == 0
            && libc::syscall(libc::SYS_setresuid, keep, uid, keep) == 0
    }
}

/// Names of owners, looked up once each.
pub struct Names<'a> {
    databases: &'a Databases,
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl<'a> Names<'a> {
    pub fn new(who: &'a Identity) -> Self {
        Self {
            databases: &who.databases,
            users: HashMap::new(),
            groups: HashMap::new(),
        }
    }

    pub fn user(&mut self, uid: u32) -> String {
        self.users
            .entry(uid)
            .or_insert_with(|| {
                let name = self.databases.user_name(uid);
                name.map_or_else(|| uid.to_string(), str::to_owned)
            })
            .clone()
    }

    pub fn group(&mut self, gid: u32) -> String {
        self.groups
            .entry(gid)
            .or_insert_with(|| {
                let name = self.databases.group_name(gid);
                name.map_or_else(|| gid.to_string(), str::to_owned)
            })
            .clone()
    }
}
