//! Who the control side is, and giving up privileges for good.

use std::path::Path;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::ServeError;

/// The user the control side runs as, where the system has it and no other server of the machine does.
const USER: &str = "cove";
/// Capabilities the kernel may know; those it does not are skipped.
const CAPABILITIES: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

/// Who the control side over this directory becomes: nobody else's account, and the same at every start.
pub fn account(shared: &Path, data_dir: &Path) -> Result<Account, ServeError> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = find(&passwd);
    let preferred = named.map(|account| account.uid);
    let uid = cove_engine::accounts::claim(shared, data_dir, "control", preferred)
        .map_err(|source| ServeError::io("cannot claim a user id for the control side", source))?;
    Ok(named
        .filter(|account| account.uid == uid)
        .unwrap_or(Account { uid, gid: uid }))
}

fn find(passwd: &str) -> Option<Account> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(USER))?;
    let mut fields = line.split(':').skip(2);
    let uid = fields.next()?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    // A `cove` user with uid 0 would defeat the purpose.
    (uid != 0 && gid != 0).then_some(Account { uid, gid })
}

/// Becomes `account` with no capability and no way back. Call before there is a second thread: what
/// it changes is the calling thread's and inherited by those it starts.
pub fn drop_to(account: Account) -> Result<(), ServeError> {
    let failed =
        |errno: rustix::io::Errno| ServeError::io("cannot give up privileges", errno.into());
    let gid = Gid::from_raw(account.gid);
    let uid = Uid::from_raw(account.uid);
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    rustix::thread::set_thread_groups(&[]).map_err(failed)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_capabilities(None, sets).map_err(failed)?;
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    // Neither others of the same account nor a dump on disk may read what is in memory.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(failed)?;
    let root = Uid::from_raw(0);
    if rustix::thread::set_thread_res_uid(root, root, root).is_ok() {
        return Err(ServeError::Start {
            message: "privileges came back after they were given up".into(),
            hint: None,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dedicated_user_is_found_and_never_root() {
        let passwd = "root:x:0:0::/root:/bin/sh\ncove:x:998:997::/:/usr/sbin/nologin\n";
        assert_eq!(find(passwd), Some(Account { uid: 998, gid: 997 }));
        assert_eq!(find("cove:x:0:0::/:/bin/sh"), None);
        assert_eq!(find("covert:x:5:5::/:/bin/sh"), None);
    }
}
