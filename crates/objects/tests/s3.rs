//! The S3 protocol against a server at `COVE_TEST_S3`, which `scripts/test-s3` starts. Built with the feature
//! `s3-server` only, so that it never passes without one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use cove_objects::{Bucket, BucketConfig, ObjectsError};

fn config(bucket: &str) -> BucketConfig {
    let endpoint = std::env::var("COVE_TEST_S3").expect("scripts/test-s3 sets COVE_TEST_S3");
    let options = [
        ("aws_access_key_id", "test"),
        ("aws_secret_access_key", "secret"),
        ("aws_region", "us-east-1"),
        ("aws_endpoint_url", endpoint.as_str()),
        ("aws_allow_http", "true"),
    ];
    BucketConfig {
        options: options
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        request_max: Duration::from_secs(20),
        ..BucketConfig::new(format!("s3://{bucket}/some/prefix"))
    }
}

#[tokio::test]
async fn objects_are_written_read_replaced_and_deleted() {
    let bucket = Bucket::open(&config("cove-test")).unwrap();
    bucket.check().await.unwrap();
    for bytes in [Vec::new(), vec![7; 300 << 10], b"short".to_vec()] {
        bucket
            .put("org_a/chunks/aa/name", bytes.clone())
            .await
            .unwrap();
        assert_eq!(
            bucket.get("org_a/chunks/aa/name", 1 << 20).await.unwrap(),
            bytes
        );
    }
    let long = bucket.get("org_a/chunks/aa/name", 2).await.unwrap_err();
    assert!(matches!(long, ObjectsError::Damaged { .. }), "{long:?}");
    bucket.delete("org_a/chunks/aa/name").await.unwrap();
    bucket.delete("org_a/chunks/aa/name").await.unwrap();
    let gone = bucket
        .get("org_a/chunks/aa/name", 1 << 20)
        .await
        .unwrap_err();
    assert!(matches!(gone, ObjectsError::Missing { .. }), "{gone:?}");
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_told() {
    let bucket = Bucket::open(&config("cove-other")).unwrap();
    let error = bucket.check().await.unwrap_err();
    assert!(
        matches!(error, ObjectsError::Unreachable { .. }),
        "{error:?}"
    );
}
