//! Images between organisations.

use cove_control::{ErrorCode, ImageSource, Principal};
use cove_model::SandboxSpec;

use crate::support::{Plane, wait};

fn pull(reference: &str) -> ImageSource {
    ImageSource::Registry {
        reference: reference.into(),
        username: None,
        password: None,
    }
}

fn from(image: &str) -> SandboxSpec {
    SandboxSpec {
        image: image.into(),
        ..SandboxSpec::default()
    }
}

async fn names(plane: &Plane, principal: &Principal) -> Vec<String> {
    let images = plane.control.list_images(principal).await.unwrap();
    let mut names: Vec<_> = images.into_iter().flat_map(|image| image.names).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_one_fetches_is_its_own_and_what_home_fetches_is_everybodys() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    assert_eq!(names(&plane, &ours).await, ["debian"]);
    plane
        .control
        .add_image(&plane.root, pull("shared"))
        .await
        .unwrap();
    let job = plane
        .control
        .add_image(&ours, pull("private/app"))
        .await
        .unwrap();
    assert_eq!(
        names(&plane, &ours).await,
        ["debian", "private/app", "shared"]
    );
    assert_eq!(names(&plane, &theirs).await, ["debian", "shared"]);
    assert_eq!(
        names(&plane, &plane.root).await,
        ["debian", "private/app", "shared"]
    );

    plane.control.image_job(&ours, &job.id).await.unwrap();
    let missing = plane.control.image_job(&theirs, &job.id).await.unwrap_err();
    assert_eq!(missing.code, ErrorCode::NotFound);
    let image = plane.control.get_image(&ours, "private/app").await.unwrap();
    for given in ["private/app", "private/app:latest", image.id.as_str()] {
        let made = plane.create(&ours, from(given)).await.unwrap().sandbox;
        assert_eq!(
            (made.image.as_ref(), made.spec.image.as_str()),
            (Some(&image.id), given)
        );
        let hidden = plane.create(&theirs, from(given)).await.unwrap_err();
        let imagined = plane.create(&theirs, from("never/was")).await.unwrap_err();
        assert_eq!(hidden.code, ErrorCode::NotFound);
        assert_eq!(
            hidden.message.replace(given, "X"),
            imagined.message.replace("never/was", "X")
        );
        let hidden = plane.control.get_image(&theirs, given).await.unwrap_err();
        assert_eq!(hidden.code, ErrorCode::NotFound);
        let hidden = plane
            .control
            .remove_image(&theirs, given)
            .await
            .unwrap_err();
        assert_eq!(hidden.code, ErrorCode::NotFound);
    }
    plane.create(&theirs, from("shared")).await.unwrap();
    let shared = plane.control.get_image(&ours, "shared").await.unwrap();
    assert_eq!(shared.in_use_by, 0, "others' use is not told");
}

#[tokio::test]
async fn removing_takes_away_ones_own_and_the_image_with_its_last_holder() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    plane.control.add_image(&ours, pull("app")).await.unwrap();
    plane.control.add_image(&theirs, pull("app")).await.unwrap();
    plane
        .control
        .add_image(&plane.root, pull("shared"))
        .await
        .unwrap();
    let refused = plane
        .control
        .remove_image(&ours, "shared")
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    let used = plane.create(&ours, from("app")).await.unwrap().sandbox;
    let refused = plane.control.remove_image(&ours, "app").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    plane
        .control
        .delete_sandbox(&ours, used.id.as_str())
        .await
        .unwrap();
    plane.control.remove_image(&ours, "app").await.unwrap();
    assert_eq!(names(&plane, &ours).await, ["debian", "shared"]);
    assert_eq!(names(&plane, &theirs).await, ["app", "debian", "shared"]);
    plane.control.remove_image(&theirs, "app").await.unwrap();
    assert_eq!(names(&plane, &plane.root).await, ["debian", "shared"]);
}

#[tokio::test]
async fn paths_on_the_host_are_for_operators() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("tenant", None).await;
    let local = ImageSource::Local {
        name: "etc".into(),
        path: "/etc".into(),
    };
    let refused = plane
        .control
        .add_image(&tenant, local.clone())
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    plane.control.add_image(&plane.root, local).await.unwrap();
}

#[tokio::test]
async fn a_fetch_under_way_cannot_be_joined_by_another_organisation() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    plane.runner.keep_fetching();
    let job = plane
        .control
        .add_image(&ours, pull("private/app"))
        .await
        .unwrap();
    let refused = plane
        .control
        .add_image(&theirs, pull("private/app"))
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.retry_after_s.is_some());
    plane.runner.finish_fetching();
    wait(|| async { (names(&plane, &ours).await.len() == 2).then_some(()) }).await;
    assert_eq!(names(&plane, &theirs).await, ["debian"]);
    plane.control.image_job(&theirs, &job.id).await.unwrap_err();
}

#[tokio::test]
async fn a_name_that_moves_for_one_stays_for_the_other() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    plane.control.add_image(&ours, pull("app:1")).await.unwrap();
    let first = plane.control.get_image(&ours, "app:1").await.unwrap().id;
    plane.runner.move_name("app:1");
    plane
        .control
        .add_image(&theirs, pull("app:1"))
        .await
        .unwrap();
    let second = plane.control.get_image(&theirs, "app:1").await.unwrap().id;
    assert_ne!(first, second);
    let made = plane.create(&ours, from("app:1")).await.unwrap().sandbox;
    assert_eq!(made.image, Some(first));
    let made = plane.create(&theirs, from("app:1")).await.unwrap().sandbox;
    assert_eq!(made.image, Some(second));
}
