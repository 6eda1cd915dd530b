//! Object storage as the settings have it. What only root may read is read before the control side gives root up.

use std::path::Path;
use std::sync::Arc;

use cove_control::{Bucket, BucketConfig, HostKeys, ObjectsConfig};

use super::ServeError;
use super::privileges::Account;
use super::settings::Settings;
use crate::report::chain;

const FLEET_KEY_FILE: &str = "fleet.key";
/// A file of credentials beyond this is not one.
const CREDENTIALS_MAX: u64 = 64 * 1024;
const REGION_DEFAULT: &str = "us-east-1";
const DIRECTORY_MODE: u32 = 0o700;
/// What of the server's environment the object storage's library may read, as the tools of AWS name it.
const VARIABLES: [&str; 11] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];

/// What of the server's environment the control side gets: nothing, unless credentials of a bucket come from there.
pub fn variables(settings: &Settings) -> &'static [&'static str] {
    match settings.objects.starts_with("s3://") && settings.objects_credentials.is_none() {
        true => &VARIABLES,
        false => &[],
    }
}

fn wrong(message: String) -> ServeError {
    ServeError::Settings { message }
}

/// What can be checked without looking at a file or a server.
pub fn check(settings: &Settings) -> Result<(), ServeError> {
    if settings.fleet_key_file.is_some() && !settings.fleet_key_command.is_empty() {
        return Err(wrong(
            "fleet_key_file and fleet_key_command exclude each other".into(),
        ));
    }
    if settings.objects_quota_mb == 0 {
        return Err(wrong("objects_quota_mb must be at least 1".into()));
    }
    let endpoint = &settings.objects_endpoint;
    if !endpoint.is_empty() && !endpoint.starts_with("https://") && !endpoint.starts_with("http://")
    {
        return Err(wrong(
            "objects_endpoint must begin with https:// or http://".into(),
        ));
    }
    if settings.objects.is_empty() {
        return Ok(());
    }
    let config = BucketConfig::new(&settings.objects);
    config
        .check()
        .map_err(|error| wrong(format!("objects: {error}")))?;
    if config.directory().is_some()
        && (!endpoint.is_empty() || settings.objects_credentials.is_some())
    {
        return Err(wrong(
            "objects_endpoint and objects_credentials belong to s3:// addresses".into(),
        ));
    }
    Ok(())
}

fn unusable(what: &str, error: &dyn std::error::Error) -> ServeError {
    ServeError::Start {
        message: format!("{what}: {}", chain(error)),
        hint: Some("see docs/durable.md".into()),
    }
}

/// As root. What wraps the keys of organisations and of the fleet's certificate authority. `None` where nothing needs
/// one yet and none can be made, for example on a full disk, on which a server must start.
pub fn fleet_key(settings: &Settings) -> Result<Option<Arc<HostKeys>>, ServeError> {
    let key = match (&settings.fleet_key_file, &settings.fleet_key_command[..]) {
        (Some(path), _) => HostKeys::load(path),
        (None, []) => {
            let path = settings.data_dir.join(FLEET_KEY_FILE);
            match HostKeys::load_or_make(&path) {
                Err(_) if settings.objects.is_empty() && !path.exists() => return Ok(None),
                key => key,
            }
        }
        (None, command) => HostKeys::from_command(command),
    };
    let key = key.map_err(|error| unusable("the fleet key", &error))?;
    Ok(Some(Arc::new(key)))
}

/// As root. `None` where no object storage is set.
pub fn open(
    settings: &Settings,
    account: Account,
    fleet_key: Option<&Arc<HostKeys>>,
) -> Result<Option<ObjectsConfig>, ServeError> {
    let Some(fleet_key) = fleet_key.filter(|_| !settings.objects.is_empty()) else {
        return Ok(None);
    };
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|source| ServeError::io(format!("cannot read {}", path.display()), source))
    };
    let mut config = BucketConfig::new(&settings.objects);
    config.options = options(settings)?;
    config.authorities = settings.objects_roots.as_deref().map(read).transpose()?;
    if let Some(directory) = config.directory() {
        make_directory(&directory, account)?;
    }
    let bucket = Bucket::open(&config).map_err(|error| unusable("objects", &error))?;
    let mut objects = ObjectsConfig::new(bucket, Arc::clone(fleet_key));
    objects.upload_bytes_per_second = settings.objects_upload_mb.saturating_mul(1024 * 1024);
    objects.quota_mb = settings.objects_quota_mb;
    objects.local_mb = Some(settings.objects_local_mb).filter(|mb| *mb > 0);
    Ok(Some(objects))
}

/// Settings come first, then the file, then the environment.
fn options(settings: &Settings) -> Result<Vec<(String, String)>, ServeError> {
    if !settings.objects.starts_with("s3://") {
        return Ok(Vec::new());
    }
    let mut options: Vec<(String, String)> = match &settings.objects_credentials {
        Some(path) => credentials(path)?,
        None => VARIABLES
            .iter()
            .filter_map(|name| Some((name.to_ascii_lowercase(), std::env::var(name).ok()?)))
            .collect(),
    };
    let has = |options: &[(String, String)], end: &str| {
        options.iter().any(|(name, _)| name.ends_with(end))
    };
    if !settings.objects_region.is_empty() {
        options.push(("aws_region".into(), settings.objects_region.clone()));
    } else if !has(&options, "region") {
        options.push(("aws_region".into(), REGION_DEFAULT.into()));
    }
    if !settings.objects_endpoint.is_empty() {
        options.push(("aws_endpoint_url".into(), settings.objects_endpoint.clone()));
    }
    if settings.objects_endpoint.starts_with("http://") {
        options.push(("aws_allow_http".into(), "true".into()));
    }
    Ok(options)
}

fn credentials(path: &Path) -> Result<Vec<(String, String)>, ServeError> {
    let failed = |source| ServeError::io(format!("cannot read {}", path.display()), source);
    if std::fs::metadata(path).map_err(failed)?.len() > CREDENTIALS_MAX {
        return Err(wrong(format!("{} is too large", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            // The line is not shown: it may hold a secret.
            let (name, value) = line.split_once('=').ok_or_else(|| {
                wrong(format!("{}: each line must be NAME=VALUE", path.display()))
            })?;
            Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect()
}

/// A directory that stands for a bucket, made on first use for the user that writes into it.
fn make_directory(path: &Path, account: Account) -> Result<(), ServeError> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |source| ServeError::io(format!("cannot make {}", path.display()), source);
    match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => {
            std::os::unix::fs::chown(path, Some(account.uid), Some(account.gid)).map_err(failed)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Result<Settings, ServeError> {
        let mut settings = Settings::default();
        for (key, value) in pairs {
            settings.set(key, value, "test")?;
        }
        check(&settings).map(|()| settings)
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            &[("objects", "ftp://x")][..],
            &[("objects", "file://relative")],
            &[("objects", "s3://")],
            &[
                ("objects", "file:///srv/x"),
                ("objects_endpoint", "http://a"),
            ],
            &[
                ("objects", "s3://b"),
                ("objects_endpoint", "localhost:3900"),
            ],
            &[("objects_quota_mb", "0")],
            &[("fleet_key_file", "/a"), ("fleet_key_command", "b")],
        ] {
            assert!(set(wrong).is_err(), "{wrong:?}");
        }
        set(&[
            ("objects", "s3://b/p"),
            ("objects_endpoint", "http://127.0.0.1:1"),
        ])
        .unwrap();
        set(&[("objects", "file:///srv/x")]).unwrap();
    }

    #[test]
    fn credentials_come_from_a_file_and_settings_win() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c");
        std::fs::write(
            &file,
            "# x\nAWS_ACCESS_KEY_ID = a\nAWS_SECRET_ACCESS_KEY=b=c\n\n",
        )
        .unwrap();
        let file = file.display().to_string();
        let settings = set(&[("objects", "s3://b"), ("objects_credentials", &file)]).unwrap();
        let options = options(&settings).unwrap();
        let find = |name: &str| {
            let found = options.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(find("aws_access_key_id"), Some("a"));
        assert_eq!(find("aws_secret_access_key"), Some("b=c"));
        assert_eq!(find("aws_region"), Some(REGION_DEFAULT));
        std::fs::write(&file, "a secret without a name").unwrap();
        let error = super::options(&settings).unwrap_err().to_string();
        assert!(!error.contains("secret without"), "{error}");
    }
}
