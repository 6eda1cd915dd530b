//! The settings `sandbox_ca_file` and `sandbox_ca_orgs`: certificate authorities of the host for sandboxes.

use std::collections::BTreeSet;
use std::io::Read;

use cove_control::SandboxAuthorities;
use cove_model::OrgId;

use super::ServeError;
use super::settings::Settings;
use crate::report::chain;

/// The name of the home organisation in `sandbox_ca_orgs`.
pub const HOME: &str = "home";
/// Several times the certificates of an operating system.
const FILE_MAX: u64 = 1024 * 1024;

fn wrong(message: String) -> ServeError {
    ServeError::Settings { message }
}

/// As root: the file need not be control's to read. Whether the settings can be used is known only here.
pub fn read(settings: &Settings) -> Result<Option<SandboxAuthorities>, ServeError> {
    let mut home = false;
    let mut organisations = BTreeSet::new();
    for name in &settings.sandbox_ca_orgs {
        let new = match name.as_str() {
            HOME => !std::mem::replace(&mut home, true),
            name => organisations.insert(name.parse::<OrgId>().map_err(|_| {
                wrong(format!(
                    "sandbox_ca_orgs: '{name}' is neither home nor the id of an organisation"
                ))
            })?),
        };
        if !new {
            return Err(wrong(format!("sandbox_ca_orgs: '{name}' is there twice")));
        }
    }
    let Some(path) = &settings.sandbox_ca_file else {
        return match organisations.is_empty() {
            true => Ok(None),
            false => Err(wrong("sandbox_ca_orgs needs sandbox_ca_file".into())),
        };
    };
    let named = |problem: String| wrong(format!("sandbox_ca_file {}: {problem}", path.display()));
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
        .map_err(|error| named(error.to_string()))?;
    if text.len() as u64 > FILE_MAX {
        return Err(named(format!("the file is larger than {FILE_MAX} bytes")));
    }
    let certificates = cove_server::authorities(&text).map_err(|error| named(chain(&error)))?;
    Ok(Some(SandboxAuthorities {
        certificates,
        home,
        organisations,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(file: Option<&std::path::Path>, orgs: &[&str]) -> Settings {
        Settings {
            sandbox_ca_file: file.map(Into::into),
            sandbox_ca_orgs: orgs.iter().map(|&org| org.to_owned()).collect(),
            ..Settings::default()
        }
    }

    #[test]
    fn by_default_only_the_home_organisation_gets_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ca.pem");
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).expect("made");
        std::fs::write(&file, made.cert.pem()).expect("written");
        assert!(read(&Settings::default()).expect("nothing set").is_none());
        let given = Settings {
            sandbox_ca_file: Some(file.clone()),
            ..Settings::default()
        };
        let given = read(&given).expect("read").expect("given");
        assert!(given.home && given.organisations.is_empty());
        assert_eq!(given.certificates.len(), 1);
        let other = OrgId::random();
        let given = read(&settings(Some(&file), &[other.as_str()])).expect("read");
        let given = given.expect("given");
        assert!(!given.home && given.organisations.contains(&other));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("text"), "no certificate").expect("written");
        std::fs::write(path("bytes"), [0xff, 0xfe]).expect("written");
        std::fs::write(path("large"), "x".repeat(FILE_MAX as usize + 1)).expect("written");
        for (name, why) in [
            ("none", "No such file"),
            ("text", "no certificates"),
            ("bytes", "UTF-8"),
            ("large", "larger than"),
            (".", "directory"),
        ] {
            let path = path(name);
            let error = read(&settings(Some(&path), &[HOME])).expect_err(name);
            let text = chain(&error);
            let named =
                text.contains("sandbox_ca_file") && text.contains(path.to_str().expect("text"));
            assert!(named && text.contains(why), "{text}");
        }
        let other = OrgId::random();
        for orgs in [&["nobody"][..], &[HOME, HOME], &[other.as_str()]] {
            let text = chain(&read(&settings(None, orgs)).expect_err("refused"));
            assert!(text.contains("sandbox_ca_orgs"), "{text}");
        }
    }
}
