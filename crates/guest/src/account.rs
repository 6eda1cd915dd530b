//! Users and groups as /etc/passwd and /etc/group of the sandbox tell them, read anew for every
//! call: commands inside may change them at any time.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use cove_protocol::message::ErrorCode;

use crate::failure::{Failure, Result};

/// Bytes read of a database; a longer one is cut, not refused.
const DATABASE_MAX: u64 = 1024 * 1024;
/// Supplementary groups given to a process.
const GROUPS_MAX: usize = 256;

/// Who a command or a file call acts as.
#[derive(Clone, Debug)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub name: String,
    pub home: String,
    pub shell: String,
}

pub struct Databases {
    passwd: String,
    group: String,
}

struct PasswdLine<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
    shell: &'a str,
}

struct GroupLine<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl Databases {
    pub fn read() -> Self {
        Self {
            passwd: read_regular("/etc/passwd").unwrap_or_default(),
            group: read_regular("/etc/group").unwrap_or_default(),
        }
    }

    /// `user[:group]`, each a name or a number; empty means root.
    pub fn account(&self, spec: &str) -> Result<Account> {
        let (user, group) = match spec.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (spec, None),
        };
        let user = if user.is_empty() { "root" } else { user };
        let mut account = self.user(user)?;
        if let Some(group) = group {
            account.gid = self.group(group)?;
        }
        Ok(account)
    }

    /// What `chown` wants: a user, a group, or both. A user alone leaves the group as it is.
    pub fn owner(&self, spec: &str) -> Result<(Option<u32>, Option<u32>)> {
        match spec.split_once(':') {
            None => Ok((Some(self.user(spec)?.uid), None)),
            Some(("", group)) => Ok((None, Some(self.group(group)?))),
            Some((user, "")) => {
                let account = self.user(user)?;
                Ok((Some(account.uid), Some(account.gid)))
            }
            Some((user, group)) => Ok((Some(self.user(user)?.uid), Some(self.group(group)?))),
        }
    }

    fn user(&self, user: &str) -> Result<Account> {
        let number = user.parse::<u32>().ok();
        let line = self
            .users()
            .find(|line| line.name == user)
            .or_else(|| self.users().find(|line| Some(line.uid) == number));
        if let Some(line) = line {
            return Ok(Account {
                uid: line.uid,
                gid: line.gid,
                groups: self.supplementary(line.name, line.gid),
                name: line.name.to_owned(),
                home: line.home.to_owned(),
                shell: line.shell.to_owned(),
            });
        }
        // Root needs no database, and a number without an entry is a user of the root group, as
        // container images expect.
        let uid = match number {
            Some(uid) => uid,
            None if user == "root" => 0,
            None => {
                return Err(Failure::new(
                    ErrorCode::NoSuchUser,
                    format!("there is no user {user:?} in this sandbox"),
                ));
            }
        };
        Ok(Account {
            uid,
            gid: 0,
            groups: Vec::new(),
            name: user.to_owned(),
            home: if uid == 0 { "/root" } else { "/" }.to_owned(),
            shell: String::new(),
        })
    }

    fn group(&self, group: &str) -> Result<u32> {
        self.group_number(group)
            .or_else(|| group.parse().ok())
            .ok_or_else(|| {
                Failure::new(
                    ErrorCode::NoSuchUser,
                    format!("there is no group {group:?} in this sandbox"),
                )
            })
    }

    pub fn group_number(&self, name: &str) -> Option<u32> {
        self.groups()
            .find(|line| line.name == name)
            .map(|line| line.gid)
    }

    fn supplementary(&self, user: &str, primary: u32) -> Vec<u32> {
        self.groups()
            .filter(|line| {
                line.gid != primary && line.members.split(',').any(|member| member == user)
            })
            .map(|line| line.gid)
            .take(GROUPS_MAX)
            .collect()
    }

    pub fn user_name(&self, uid: u32) -> Option<&str> {
        self.users()
            .find(|line| line.uid == uid)
            .map(|line| line.name)
    }

    pub fn group_name(&self, gid: u32) -> Option<&str> {
        self.groups()
            .find(|line| line.gid == gid)
            .map(|line| line.name)
    }

    fn users(&self) -> impl Iterator<Item = PasswdLine<'_>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            Some(PasswdLine {
                name: fields.next().filter(|name| !name.is_empty())?,
                uid: fields.nth(1)?.parse().ok()?,
                gid: fields.next()?.parse().ok()?,
                home: fields.nth(1)?,
                shell: fields.next().unwrap_or_default(),
            })
        })
    }

    fn groups(&self) -> impl Iterator<Item = GroupLine<'_>> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            Some(GroupLine {
                name: fields.next().filter(|name| !name.is_empty())?,
                gid: fields.nth(1)?.parse().ok()?,
                members: fields.next().unwrap_or_default(),
            })
        })
    }
}

/// Reads a file that a command inside may have replaced by something that blocks or never ends.
fn read_regular(path: &str) -> Option<String> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(DATABASE_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn databases() -> Databases {
        Databases {
            passwd: "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:Ann,,,:/home/ann:/bin/zsh\n\
                     broken\nbob:x:nan:0::/:/bin/sh\nlow:x:7:8::/low:\n"
                .to_owned(),
            group: "root:x:0:\nann:x:1000:\nsudo:x:27:ann,other\ndocker:x:99:ann\nx:x:5:xann\n"
                .to_owned(),
        }
    }

    #[test]
    fn a_name_brings_home_shell_and_groups() {
        let ann = databases().account("ann").unwrap();
        assert_eq!((ann.uid, ann.gid), (1000, 1000));
        assert_eq!(ann.groups, [27, 99]);
        assert_eq!(
            (ann.home.as_str(), ann.shell.as_str()),
            ("/home/ann", "/bin/zsh")
        );
    }

    #[test]
    fn a_number_finds_its_entry_and_needs_none() {
        assert_eq!(databases().account("1000").unwrap().name, "ann");
        let unknown = databases().account("4242").unwrap();
        assert_eq!((unknown.uid, unknown.gid), (4242, 0));
        assert_eq!(unknown.home, "/");
    }

    #[test]
    fn a_group_may_be_named_or_numbered() {
        assert_eq!(databases().account("ann:sudo").unwrap().gid, 27);
        assert_eq!(databases().account("ann:12").unwrap().gid, 12);
        assert_eq!(databases().owner(":sudo").unwrap(), (None, Some(27)));
        assert_eq!(databases().owner("low:").unwrap(), (Some(7), Some(8)));
        assert_eq!(databases().owner("ann").unwrap(), (Some(1000), None));
    }

    #[test]
    fn an_unknown_name_is_no_user() {
        for spec in ["nobody-here", "ann:nogroup", "bob", "broken"] {
            let failure = databases().account(spec).unwrap_err();
            assert_eq!(failure.code, ErrorCode::NoSuchUser, "{spec}");
        }
    }

    #[test]
    fn root_needs_no_database() {
        let empty = Databases {
            passwd: String::new(),
            group: String::new(),
        };
        let root = empty.account("").unwrap();
        assert_eq!((root.uid, root.gid, root.home.as_str()), (0, 0, "/root"));
    }
}
