//! A bucket, or a directory that stands for one: whole objects by name, with every wait and length bounded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, RetryConfig};
use tokio::time::timeout;

use crate::http::Connector;
use crate::{CHUNK_MAX, MANIFEST_MAX, ObjectsError};

/// A request that fails is repeated so often, by the library, within [`BucketConfig::request_max`].
const RETRIES_MAX: usize = 4;
/// What sealing adds at most: head, tag, and what zstd needs for bytes that do not compress.
const SEAL_SLACK: usize = 4096;

#[derive(Debug, Clone)]
pub struct BucketConfig {
    /// `s3://bucket/prefix` or `file:///directory`.
    pub address: String,
    /// As the AWS tools name them, in lower case: `aws_access_key_id`, `aws_region`, `aws_endpoint_url`, …
    pub options: Vec<(String, String)>,
    /// Additional certificate authorities, PEM.
    pub authorities: Option<Vec<u8>>,
    /// How long one object may take, with its retries.
    pub request_max: Duration,
}

impl BucketConfig {
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            options: Vec::new(),
            authorities: None,
            request_max: Duration::from_secs(60),
        }
    }

    /// Whether the address and the options make sense; nothing is connected to.
    pub fn check(&self) -> Result<(), ObjectsError> {
        self.place().map(drop)
    }

    /// The directory of `file://` addresses.
    pub fn directory(&self) -> Option<PathBuf> {
        match self.place() {
            Ok(Place::Directory(path)) => Some(path),
            _ => None,
        }
    }

    fn place(&self) -> Result<Place, ObjectsError> {
        let wrong = |what: &str| ObjectsError::Address(format!("{}: {what}", self.address));
        if let Some(path) = self.address.strip_prefix("file://") {
            let path = PathBuf::from(path);
            let plain = path.is_absolute() && path.components().count() > 1;
            if !plain || path.components().any(|part| part.as_os_str() == "..") {
                return Err(wrong("it must be file:///DIRECTORY, with an absolute path"));
            }
            return Ok(Place::Directory(path));
        }
        let Some(rest) = self.address.strip_prefix("s3://") else {
            return Err(wrong(
                "it must be s3://BUCKET, s3://BUCKET/PREFIX or file:///DIRECTORY",
            ));
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if bucket.is_empty() || !bucket.chars().all(is_plain) {
            return Err(wrong("it does not name a bucket"));
        }
        let prefix = prefix.trim_matches('/');
        if !prefix.chars().all(|c| is_plain(c) || c == '/') {
            return Err(wrong(
                "its prefix has other characters than a-z 0-9 - . _ /",
            ));
        }
        Ok(Place::S3 {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

enum Place {
    Directory(PathBuf),
    S3 { bucket: String, prefix: String },
}

/// Whole objects by name. Cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    request_max: Duration,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.store)
    }
}

impl Bucket {
    /// Nothing is asked of the storage yet. A directory must be there.
    pub fn open(config: &BucketConfig) -> Result<Self, ObjectsError> {
        let wrong = |error: object_store::Error| ObjectsError::Address(error.to_string());
        match config.place()? {
            Place::Directory(path) => {
                let store = LocalFileSystem::new_with_prefix(&path).map_err(wrong)?;
                // What is acknowledged survives a power loss.
                let store = store.with_fsync(true).with_automatic_cleanup(false);
                Ok(Self::over(Arc::new(store), "", config.request_max))
            }
            Place::S3 { bucket, prefix } => {
                let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
                for (name, value) in &config.options {
                    let key: AmazonS3ConfigKey = name.parse().map_err(wrong)?;
                    builder = builder.with_config(key, value);
                }
                let retry = RetryConfig {
                    max_retries: RETRIES_MAX,
                    retry_timeout: config.request_max,
                    ..RetryConfig::default()
                };
                let store = builder
                    .with_http_connector(Connector::new(config.authorities.as_deref())?)
                    .with_retry(retry)
                    .build()
                    .map_err(wrong)?;
                Ok(Self::over(Arc::new(store), &prefix, config.request_max))
            }
        }
    }

    /// Over any store, for tests that break one.
    pub fn over(store: Arc<dyn ObjectStore>, prefix: &str, request_max: Duration) -> Self {
        Self {
            store,
            prefix: prefix.to_owned(),
            request_max,
        }
    }

    pub fn request_max(&self) -> Duration {
        self.request_max
    }

    fn path(&self, name: &str) -> Path {
        match self.prefix.is_empty() {
            true => Path::from(name),
            false => Path::from(format!("{}/{name}", self.prefix)),
        }
    }

    async fn bounded<T>(
        &self,
        doing: &'static str,
        name: &str,
        work: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, ObjectsError> {
        match timeout(self.request_max, work).await {
            Err(_) => Err(ObjectsError::Stalled {
                doing,
                seconds: self.request_max.as_secs(),
            }),
            Ok(Ok(done)) => Ok(done),
            Ok(Err(object_store::Error::NotFound { .. })) => Err(ObjectsError::Missing {
                name: name.to_owned(),
            }),
            Ok(Err(error)) => Err(ObjectsError::Unreachable {
                doing,
                source: error.into(),
            }),
        }
    }

    /// Replaces what has this name.
    pub async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), ObjectsError> {
        let (path, payload) = (self.path(name), PutPayload::from(bytes));
        let put = self.store.put(&path, payload);
        match self.bounded("write", name, put).await {
            // A bucket that is not there.
            Err(ObjectsError::Missing { name }) => Err(ObjectsError::Unreachable {
                doing: "write",
                source: format!("{name} cannot be stored: the bucket does not exist").into(),
            }),
            outcome => outcome.map(drop),
        }
    }

    /// The whole object, if it has at most `most` bytes.
    pub async fn get(&self, name: &str, most: usize) -> Result<Bytes, ObjectsError> {
        let path = self.path(name);
        let reading = async {
            let found = self.store.get(&path).await?;
            if found.meta.size > most as u64 {
                return Ok(None);
            }
            found.bytes().await.map(Some)
        };
        let bytes = self.bounded("read", name, reading).await?;
        bytes.ok_or_else(|| ObjectsError::Damaged {
            name: name.to_owned(),
            problem: "it is too long",
        })
    }

    /// Done already when it is not there.
    pub async fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        let path = self.path(name);
        let deleted = self.store.delete(&path);
        match self.bounded("delete", name, deleted).await {
            Err(ObjectsError::Missing { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// Whether it can be written, read and deleted.
    pub async fn check(&self) -> Result<(), ObjectsError> {
        let name = format!("check/{:016x}", rand::random::<u64>());
        let bytes = rand::random::<[u8; 32]>().to_vec();
        self.put(&name, bytes.clone()).await?;
        let read = self.get(&name, bytes.len()).await;
        // Also when it could not be read.
        self.delete(&name).await?;
        match read? == bytes {
            true => Ok(()),
            false => Err(ObjectsError::Damaged {
                name,
                problem: "it is not what was written",
            }),
        }
    }

    pub(crate) async fn get_chunk(&self, name: &str) -> Result<Bytes, ObjectsError> {
        self.get(name, CHUNK_MAX + SEAL_SLACK).await
    }

    pub(crate) async fn get_manifest(&self, name: &str) -> Result<Bytes, ObjectsError> {
        self.get(name, MANIFEST_MAX).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_make_no_sense_are_refused() {
        for wrong in [
            "",
            "s3://",
            "s3:///prefix",
            "s3://a b/c",
            "s3://bucket/a?b",
            "file://",
            "file:///",
            "file://relative/path",
            "file:///a/../b",
            "/a/directory",
            "gs://bucket",
            "http://localhost/bucket",
        ] {
            assert!(BucketConfig::new(wrong).check().is_err(), "{wrong}");
        }
        for right in ["s3://bucket", "s3://bucket/some/prefix/", "file:///srv/x"] {
            BucketConfig::new(right).check().unwrap();
        }
    }

    #[tokio::test]
    async fn a_directory_that_is_not_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("bucket");
        let config = BucketConfig::new(format!("file://{}", inside.display()));
        assert!(Bucket::open(&config).is_err());
        std::fs::create_dir(&inside).unwrap();
        Bucket::open(&config).unwrap().check().await.unwrap();
        assert!(
            std::fs::read_dir(inside.join("check")).is_ok_and(|mut left| left.next().is_none())
        );
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_told_in_words() {
        let config = BucketConfig {
            options: [
                ("aws_access_key_id", "a"),
                ("aws_secret_access_key", "b"),
                ("aws_endpoint_url", "http://127.0.0.1:1"),
                ("aws_allow_http", "true"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
            request_max: Duration::from_secs(1),
            ..BucketConfig::new("s3://bucket")
        };
        let error = Bucket::open(&config).unwrap().check().await.unwrap_err();
        assert!(error.passes(), "{error:?}");
    }
}
