//! The sandbox's name in its own files. Only what still tells the old name is changed: what people
//! inside wrote there is theirs.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::failure::{Doing, Result};

/// Files longer than this are nobody's host names.
const TEXT_MAX: u64 = 64 * 1024;

pub fn rename(old: &str, new: &str) -> Result<()> {
    if old.is_empty() || new.is_empty() || old == new {
        return Ok(());
    }
    change(Path::new("/etc/hostname"), |text| {
        (text.trim() == old).then(|| format!("{new}\n"))
    })?;
    change(Path::new("/etc/hosts"), |text| {
        let told = text.split_whitespace().any(|word| word == old);
        told.then(|| {
            text.lines()
                .map(|line| with_name(line, old, new) + "\n")
                .collect()
        })
    })
}

/// At a boot from a copy of somebody's disk: both files still tell whose it was, in the words the host
/// wrote there. Whatever else they say was written inside and stays. A disk too full for it keeps the name.
pub fn claim(now: &str) {
    let (Some(name), Some(hosts)) = (read("/etc/hostname"), read("/etc/hosts")) else {
        return;
    };
    if let Some(old) = former(name.trim(), &hosts, now) {
        let _ = rename(old, now);
    }
}

fn former<'a>(name: &'a str, hosts: &str, now: &str) -> Option<&'a str> {
    let first = hosts.lines().next()?;
    let told = first.strip_prefix("127.0.0.1 localhost ")?;
    (told == name && name != now).then_some(name)
}

fn read(path: &str) -> Option<String> {
    let file = fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)
        .ok()?;
    let mut text = String::new();
    file.take(TEXT_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn with_name(line: &str, old: &str, new: &str) -> String {
    line.split(' ')
        .map(|word| if word == old { new } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

fn change(path: &Path, changed: impl FnOnce(&str) -> Option<String>) -> Result<()> {
    let open = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path);
    // A sandbox without such a file, or with something else in its place, has nothing to change.
    let Ok(mut file) = open else {
        return Ok(());
    };
    let mut text = String::new();
    if !file.metadata().is_ok_and(|found| found.is_file())
        || (&mut file)
            .take(TEXT_MAX)
            .read_to_string(&mut text)
            .is_err()
    {
        return Ok(());
    }
    match changed(&text) {
        Some(text) => fs::write(path, text).doing("write the sandbox's name"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_that_the_host_wrote_in_both_files_is_a_former_one() {
        let hosts = "127.0.0.1 localhost old\n::1 localhost\n";
        assert_eq!(former("old", hosts, "new"), Some("old"));
        assert_eq!(former("old", hosts, "old"), None);
        assert_eq!(former("mine", hosts, "new"), None);
        assert_eq!(former("old", "127.0.0.1 old\n", "new"), None);
        assert_eq!(former("", "", "new"), None);
    }

    #[test]
    fn only_whole_words_are_renamed() {
        let line = "127.0.0.1 localhost box box2 # box";
        assert_eq!(
            with_name(line, "box", "new"),
            "127.0.0.1 localhost new box2 # new"
        );
    }
}
