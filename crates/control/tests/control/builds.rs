//! Places of builds: none is free while a context is on its way.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cove_control::{CreateBuild, ErrorCode};

use crate::support::Plane;

fn request() -> CreateBuild {
    CreateBuild {
        name: "tools".into(),
        tags: Vec::new(),
        dockerfile: "FROM scratch\n".into(),
        ignore: String::new(),
        args: BTreeMap::new(),
        target: None,
        network: cove_model::NetworkPolicy::default(),
        no_cache: false,
        pull: false,
        start: None,
        over: Arc::new(Ok),
    }
}

#[tokio::test]
async fn a_context_that_goes_on_arriving_keeps_the_place_of_its_build() {
    let plane = Plane::new().await;
    let root = plane.root.clone();
    let mut uploads = Vec::new();
    for _ in 0..cove_limits::BUILDS_RUNNING_MAX {
        let build = plane.control.create_build(&root, request()).await.unwrap();
        let id = build.id.clone();
        let upload = plane.control.build_context(&root, id.as_str()).await;
        uploads.push((id, upload.unwrap()));
    }
    for (id, upload) in &mut uploads {
        upload.write(Bytes::from_static(b"begun")).await.unwrap();
        plane
            .control
            .cancel_build(&root, id.as_str())
            .await
            .unwrap();
        // Whoever reads from the sender is told, and what still comes is refused.
        let told = upload.given_up().await;
        assert_eq!(told.code, ErrorCode::Conflict, "{told}");
        let late = upload.write(Bytes::from_static(b"more")).await;
        assert!(late.is_err());
    }
    let full = plane.control.create_build(&root, request()).await;
    assert_eq!(full.unwrap_err().code, ErrorCode::LimitReached);
    // Another organisation has places of its own.
    let other = plane.tenant("other", None).await;
    plane.control.create_build(&other, request()).await.unwrap();
    uploads.pop();
    plane.control.create_build(&root, request()).await.unwrap();
}
