//! Paths as E2B's clients write them: relative ones start at the home of whoever acts.

use cove_control::GuestAccess;
use cove_model::spec::PATH_MAX;
use cove_protocol::message::ReadFile;

use crate::refusal::Refusal;

/// Bytes of the list of users that are looked at.
const PASSWD_MAX: usize = 256 * 1024;

pub async fn resolve(access: &GuestAccess, user: &str, path: &str) -> Result<String, Refusal> {
    if path.contains('\0') {
        return Err(Refusal::invalid("a path must not contain NUL"));
    }
    let whole = match path {
        absolute if absolute.starts_with('/') => absolute.to_owned(),
        "" | "~" | "." => home(access, user).await?,
        relative => {
            let below = relative.strip_prefix("~/").unwrap_or(relative);
            format!(
                "{}/{below}",
                home(access, user).await?.trim_end_matches('/')
            )
        }
    };
    if whole.len() > PATH_MAX {
        return Err(Refusal::invalid(format!(
            "a path has at most {PATH_MAX} bytes"
        )));
    }
    Ok(whole)
}

/// The home the sandbox's own list of users tells; what is wrong there is the sandbox's own harm.
async fn home(access: &GuestAccess, user: &str) -> Result<String, Refusal> {
    let name = user.split(':').next().unwrap_or("");
    if matches!(name, "" | "root" | "0") {
        return Ok("/root".to_owned());
    }
    let request = ReadFile {
        root_links_only: false,
        path: "/etc/passwd".to_owned(),
        user: String::new(),
        offset: 0,
        length: PASSWD_MAX as u64,
    };
    let mut reader = access.guest().read_file(request).await?;
    let mut text = Vec::new();
    while let Some(chunk) = reader.next().await? {
        text.extend_from_slice(&chunk);
        if text.len() >= PASSWD_MAX {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text);
    Ok(home_in(&text, name).unwrap_or("/").to_owned())
}

fn home_in<'a>(passwd: &'a str, name: &str) -> Option<&'a str> {
    let mut rows = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let row = rows.find(|row| row.len() == 7 && (row[0] == name || row[2] == name))?;
    row[5].starts_with('/').then_some(row[5])
}

/// An absolute path without `.` and `..`.
pub fn joined(base: &str, path: &str) -> String {
    let whole = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{base}/{path}"),
    };
    let mut parts = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The last part of a path.
pub fn name(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/');
    trimmed.rsplit('/').next().unwrap_or(trimmed)
}

/// Everything before the last part.
pub fn parent(path: &str) -> Option<&str> {
    let trimmed = path.trim_end_matches('/');
    let (parent, _) = trimmed.rsplit_once('/')?;
    (!parent.is_empty()).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_found_by_name_and_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000::/home/ada:/bin/sh\nbad:x:7\n";
        assert_eq!(home_in(passwd, "ada"), Some("/home/ada"));
        assert_eq!(home_in(passwd, "1000"), Some("/home/ada"));
        assert_eq!(home_in(passwd, "bad"), None);
        assert_eq!(home_in(passwd, "eve"), None);
    }

    #[test]
    fn paths_come_apart() {
        assert_eq!((name("/a/b/"), parent("/a/b/")), ("b", Some("/a")));
        assert_eq!((name("/a"), parent("/a")), ("a", None));
    }
}
