//! Who the control side is, and giving up privileges for good.

use std::path::Path;

use cove_confine::rights;
use rustix::process::Resource;

use super::ServeError;

/// The user the control side runs as, where the system has it and no other server of the machine does.
const USER: &str = "cove";

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

/// Who the control side or the relay over this directory becomes: nobody else's account, and the same at every start.
pub fn account(shared: &Path, data_dir: &Path, part: &str) -> Result<Account, ServeError> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = find(&passwd);
    let preferred = named.map(|account| account.uid);
    let uid =
        cove_engine::accounts::claim(shared, data_dir, part, preferred).map_err(|source| {
            ServeError::io("cannot claim a user id for the unprivileged side", source)
        })?;
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
    let failed = |source| ServeError::io("cannot give up privileges", source);
    rights::become_nobody(account.uid, account.gid).map_err(failed)?;
    // No dump on disk may hold what is in memory.
    rights::limit_resources(&[(Resource::Core, Some(0))]).map_err(failed)
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
