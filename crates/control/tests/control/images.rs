//! Images between organisations.

use cove_control::testing::Call;
use cove_control::{
    ControlConfig, CreateSandbox, ErrorCode, ImageSource, JobState, Principal, Quota, TakeSnapshot,
};
use cove_model::event::EventKind;
use cove_model::{SandboxSpec, State};

use crate::support::{Plane, quick, wait};

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

/// Creates only find what is there.
fn no_pulls() -> ControlConfig {
    ControlConfig {
        pull_on_create: false,
        ..quick()
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
    let plane = Plane::with(no_pulls()).await;
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
    assert_eq!(refused.code, ErrorCode::InUse);
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

/// The attack: somebody else is fetching a private image; who asks for the same name without the
/// right credentials must not get it with theirs.
#[tokio::test]
async fn nobody_rides_on_anothers_credentials() {
    let plane = Plane::with(no_pulls()).await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    plane.runner.keep_fetching();
    let with_password = ImageSource::Registry {
        reference: "private/app".into(),
        username: Some("ours".into()),
        password: Some("secret".into()),
    };
    let good = plane.control.add_image(&ours, with_password).await.unwrap();
    let guess = plane
        .control
        .add_image(&theirs, pull("private/app"))
        .await
        .unwrap();
    assert_ne!(good.id, guess.id);
    plane
        .control
        .image_job(&theirs, &good.id)
        .await
        .unwrap_err();
    plane.runner.refuse_fetch(&guess.id);
    plane.runner.finish_fetching();
    wait(|| async { (names(&plane, &ours).await.len() == 2).then_some(()) }).await;
    let failed = plane.control.image_job(&theirs, &guess.id).await.unwrap();
    assert_eq!(failed.state, JobState::Failed);
    assert_eq!(names(&plane, &theirs).await, ["debian"]);
    assert!(plane.create(&theirs, from("private/app")).await.is_err());
}

/// What a registry delivers counts for the organisation it was delivered to, so nobody shares another's
/// fetch, not even with the same credentials.
#[tokio::test]
async fn each_organisation_fetches_for_itself_and_shares_only_with_itself() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    plane.runner.keep_fetching();
    let one = plane.control.add_image(&ours, pull("app")).await.unwrap();
    let again = plane.control.add_image(&ours, pull("app")).await.unwrap();
    assert_eq!(one.id, again.id);
    let two = plane.control.add_image(&theirs, pull("app")).await.unwrap();
    assert_ne!(one.id, two.id);
    plane.control.image_job(&theirs, &one.id).await.unwrap_err();
    plane.runner.finish_fetching();
    for (tenant, job) in [(&ours, &one), (&theirs, &two)] {
        let job = plane.control.image_job(tenant, &job.id).await.unwrap();
        assert_eq!(job.state, JobState::Done);
        assert_eq!(names(&plane, tenant).await, ["app", "debian"]);
    }
}

#[tokio::test]
async fn a_fetch_is_followed_across_restarts_of_the_control_plane() {
    let mut plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    plane.runner.keep_fetching();
    let job = plane.control.add_image(&ours, pull("app")).await.unwrap();
    plane.crash().await;
    let seen = plane.control.image_job(&ours, &job.id).await.unwrap();
    assert_eq!(seen.state, JobState::Running);
    plane.control.image_job(&theirs, &job.id).await.unwrap_err();
    plane.control.image_job(&plane.root, &job.id).await.unwrap();
    plane.runner.finish_fetching();
    let seen = plane.control.image_job(&ours, &job.id).await.unwrap();
    assert_eq!(seen.state, JobState::Done);
    assert_eq!(names(&plane, &ours).await, ["app", "debian"]);
    // Neither the host nor the control plane that saw the end has to live for it to be known.
    plane.runner.forget_jobs();
    plane.crash().await;
    let seen = plane.control.image_job(&ours, &job.id).await.unwrap();
    assert_eq!(seen.state, JobState::Done);
}

/// What is under the name on the host may have come with somebody else's credentials.
#[tokio::test]
async fn a_fetch_that_died_with_the_host_failed_and_grants_nothing() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    plane.control.add_image(&ours, pull("app")).await.unwrap();
    plane.runner.keep_fetching();
    let job = plane.control.add_image(&theirs, pull("app")).await.unwrap();
    plane.runner.forget_jobs();
    let seen = plane.control.image_job(&theirs, &job.id).await.unwrap();
    assert_eq!(seen.state, JobState::Failed);
    assert!(
        seen.error
            .unwrap()
            .to_string()
            .contains("pull the image again")
    );
    assert_eq!(names(&plane, &theirs).await, ["debian"]);
}

#[tokio::test]
async fn a_fetch_nobody_polls_is_granted_by_the_next_control_plane() {
    let mut plane = Plane::new().await;
    let ours = plane.tenant("ours", None).await;
    plane.runner.keep_fetching();
    plane.control.add_image(&ours, pull("app")).await.unwrap();
    plane.crash().await;
    plane.runner.finish_fetching();
    plane.go();
    wait(|| async { (names(&plane, &ours).await.len() == 2).then_some(()) }).await;
    plane.halt().await;
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

async fn disk_used(plane: &Plane, principal: &Principal) -> u64 {
    let org = plane.control.organisation(principal, None).await.unwrap();
    org.used.disk_mb
}

#[tokio::test]
async fn images_of_its_own_count_to_an_organisations_disk_quota() {
    let plane = Plane::new().await;
    let quota = Quota {
        disk_mb: 200,
        ..Quota::default()
    };
    let tenant = plane.tenant("small", Some(quota)).await;
    let control = &plane.control;
    plane.runner.size_images(60 << 20);
    control
        .add_image(&plane.root, pull("shared"))
        .await
        .unwrap();
    control.add_image(&tenant, pull("shared")).await.unwrap();
    assert_eq!(disk_used(&plane, &tenant).await, 0, "everybody's");
    control.add_image(&tenant, pull("app")).await.unwrap();
    control.add_image(&tenant, pull("app")).await.unwrap();
    assert_eq!(disk_used(&plane, &tenant).await, 60, "once");

    // A snapshot made an image is a copy, and no way around the quota.
    let mut spec = from("app");
    spec.resources.disk_mb = 100;
    let made = plane.create(&tenant, spec).await.unwrap().sandbox;
    let taken = control
        .take_snapshot(&tenant, made.id.as_str(), TakeSnapshot::default())
        .await
        .unwrap();
    let snapshot = taken.snapshot.id.to_string();
    let job = control
        .image_from_snapshot(&tenant, &snapshot, "copy")
        .await
        .unwrap();
    assert_eq!(job.state, JobState::Failed);
    let why = job.error.unwrap().to_string();
    assert!(why.contains("60 MiB") && why.contains("quota"), "{why}");
    let told = control.image_job(&tenant, &job.id).await.unwrap();
    assert_eq!(told.state, JobState::Failed);
    let hidden = control.get_image(&tenant, "copy").await.unwrap_err();
    assert_eq!(hidden.code, ErrorCode::NotFound);
    let on_host = names(&plane, &plane.root).await;
    assert!(
        !on_host.iter().any(|name| name.contains("copy")),
        "{on_host:?}"
    );
    assert_eq!(disk_used(&plane, &tenant).await, 163);

    control
        .delete_sandbox(&tenant, made.id.as_str())
        .await
        .unwrap();
    let job = control
        .image_from_snapshot(&tenant, &snapshot, "copy")
        .await
        .unwrap();
    assert_eq!(job.state, JobState::Done);
    assert_eq!(disk_used(&plane, &tenant).await, 123);
    control.remove_image(&tenant, "copy").await.unwrap();
    // The snapshot needs the image it began from, so it is there and paid for.
    let refused = control.remove_image(&tenant, "app").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InUse);
    assert!(refused.message.contains("snapshots"), "{refused}");
    assert_eq!(disk_used(&plane, &tenant).await, 63);
    control.delete_snapshot(&tenant, &snapshot).await.unwrap();
    control.remove_image(&tenant, "app").await.unwrap();
    assert_eq!(disk_used(&plane, &tenant).await, 0);
    assert_eq!(names(&plane, &plane.root).await, ["debian", "shared"]);

    // With nothing left no fetch is even begun.
    let none = Quota {
        disk_mb: 0,
        ..Quota::default()
    };
    let refused = async |source| control.add_image(&tenant, source).await.unwrap_err().code;
    control
        .set_quota(&plane.root, &tenant.org, none)
        .await
        .unwrap();
    assert_eq!(refused(pull("more")).await, ErrorCode::QuotaExceeded);
}

async fn on_host(plane: &Plane) -> usize {
    plane.control.list_images(&plane.root).await.unwrap().len()
}

async fn small_tenant(plane: &Plane, name: &str, disk_mb: u64) -> Principal {
    let quota = Quota {
        disk_mb,
        ..Quota::default()
    };
    plane.tenant(name, Some(quota)).await
}

/// The attack: give one name new content again and again, and keep all of it for the price of one.
#[tokio::test]
async fn an_image_whose_name_moved_on_goes_and_is_paid_for_until_then() {
    let mut plane = Plane::new().await;
    let tenant = small_tenant(&plane, "small", 400).await;
    plane.runner.size_images(60 << 20);
    let pull_again = async |plane: &Plane| {
        plane.runner.move_name("app");
        let job = plane.control.add_image(&tenant, pull("app")).await.unwrap();
        assert_eq!(job.state, JobState::Done);
    };
    for _ in 0..3 {
        pull_again(&plane).await;
        assert_eq!(on_host(&plane).await, 2, "debian and the newest");
        assert_eq!(disk_used(&plane, &tenant).await, 60);
    }

    // What still runs from the former one keeps it, at its price.
    let mut spec = from("app");
    spec.resources.disk_mb = 100;
    let made = plane.create(&tenant, spec).await.unwrap().sandbox;
    let id = made.id.as_str();
    pull_again(&plane).await;
    assert_eq!(disk_used(&plane, &tenant).await, 60 + 100 + 60);
    let kept = TakeSnapshot::default();
    let kept = plane.control.take_snapshot(&tenant, id, kept).await;
    let kept = kept.unwrap().snapshot.id.to_string();
    plane.control.delete_sandbox(&tenant, id).await.unwrap();
    plane.crash().await;
    assert_eq!(on_host(&plane).await, 3);
    assert!(disk_used(&plane, &tenant).await > 120);
    plane.control.delete_snapshot(&tenant, &kept).await.unwrap();
    plane.go();
    wait(|| async { (on_host(&plane).await == 2).then_some(()) }).await;
    wait(|| async { (disk_used(&plane, &tenant).await == 60).then_some(()) }).await;
    plane.halt().await;
    plane.create(&tenant, from("app")).await.unwrap_err();
    let mut spec = from("app");
    spec.resources.disk_mb = 100;
    plane.create(&tenant, spec).await.unwrap();
}

#[tokio::test]
async fn a_removal_that_a_crash_cut_off_is_finished() {
    let mut plane = Plane::new().await;
    let tenant = small_tenant(&plane, "small", 400).await;
    plane.runner.size_images(60 << 20);
    plane.control.add_image(&tenant, pull("app")).await.unwrap();
    let image = plane.control.get_image(&tenant, "app").await.unwrap().id;
    let withdrawn = plane.store.withdraw_image(Some(&tenant.org), &image).await;
    assert!(withdrawn.unwrap());
    assert_eq!(disk_used(&plane, &tenant).await, 60);
    plane.crash().await;
    assert_eq!(on_host(&plane).await, 1);
    assert_eq!(disk_used(&plane, &tenant).await, 0);
}

#[tokio::test]
async fn who_fetched_the_same_gets_the_image_also_when_another_has_no_room_for_it() {
    let plane = Plane::new().await;
    let (small, large) = (
        small_tenant(&plane, "small", 50).await,
        small_tenant(&plane, "large", 100).await,
    );
    let tiny = small_tenant(&plane, "tiny", 10).await;
    plane.runner.size_images(60 << 20);
    plane.runner.keep_fetching();
    let mut jobs = Vec::new();
    for tenant in [&small, &large, &tiny] {
        let job = plane.control.add_image(tenant, pull("app")).await.unwrap();
        jobs.push(job.id);
    }
    plane.runner.finish_fetching();
    let state = async |tenant, job: &str| {
        let job = plane.control.image_job(tenant, job).await.unwrap();
        job.state
    };
    assert_eq!(state(&small, &jobs[0]).await, JobState::Failed);
    assert_eq!(state(&large, &jobs[1]).await, JobState::Done);
    assert_eq!(state(&tiny, &jobs[2]).await, JobState::Failed);
    assert_eq!(names(&plane, &large).await, ["app", "debian"]);
    assert_eq!(names(&plane, &small).await, ["debian"]);

    // When nobody has room for it, it goes with the last who waited.
    plane.runner.keep_fetching();
    let mut jobs = Vec::new();
    for tenant in [&small, &tiny] {
        let job = plane.control.add_image(tenant, pull("big")).await.unwrap();
        jobs.push((tenant, job.id));
    }
    plane.runner.finish_fetching();
    for (tenant, job) in jobs {
        let job = plane.control.image_job(tenant, &job).await.unwrap();
        assert_eq!(job.state, JobState::Failed);
    }
    assert_eq!(names(&plane, &plane.root).await, ["app", "debian"]);
}

#[tokio::test]
async fn an_image_that_is_gone_before_it_is_granted_is_not_granted() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("tenant", None).await;
    plane.runner.keep_fetching();
    let job = plane.control.add_image(&tenant, pull("app")).await.unwrap();
    let removed = plane.control.remove_image(&plane.root, "app").await;
    removed.unwrap();
    plane.runner.finish_fetching();
    let job = plane.control.image_job(&tenant, &job.id).await.unwrap();
    assert_eq!(job.state, JobState::Failed);
    let why = job.error.unwrap().to_string();
    assert!(why.contains("pull it again"), "{why}");
    assert_eq!(names(&plane, &tenant).await, ["debian"]);
    assert_eq!(disk_used(&plane, &tenant).await, 0);
}

#[tokio::test]
async fn a_default_image_that_is_missing_is_prepared_by_the_first_create() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("ours", None).await;
    // Nobody has to ask for it, and who comes first does not pay for it.
    let made = plane.create(&tenant, from("code-interpreter")).await;
    let made = made.unwrap().sandbox;
    assert_eq!(made.state, State::Running);
    assert_eq!(made.reason, None);
    assert_eq!(names(&plane, &tenant).await, ["code-interpreter", "debian"]);
    let disk_mb = SandboxSpec::default().resources.disk_mb;
    assert_eq!(disk_used(&plane, &tenant).await, disk_mb);
}

#[tokio::test]
async fn a_create_waits_for_a_default_image_and_says_so() {
    let plane = Plane::new().await;
    plane.runner.keep_fetching();
    let finish = async {
        let told = wait(async || {
            let all = plane.all(&plane.root).await;
            let mut reasons = all.into_iter().filter_map(|one| one.reason);
            reasons.find(|why| why.contains("preparing the image code-interpreter"))
        });
        told.await;
        plane.runner.finish_fetching();
    };
    let make = plane.create(&plane.root, from("code-interpreter"));
    let (made, ()) = tokio::join!(make, finish);
    assert_eq!(made.unwrap().sandbox.reason, None);
}

#[tokio::test]
async fn creates_that_wait_for_an_image_share_one_job_and_keep_nobody_else_waiting() {
    // More than are settled side by side.
    const CREATES: usize = 40;
    let mut plane = Plane::new().await;
    let other = plane.sandbox("other").await;
    plane.runner.keep_fetching();
    plane.go();
    let creates: Vec<_> = (0..CREATES)
        .map(|_| {
            let (control, root) = (plane.control.clone(), plane.root.clone());
            let request = CreateSandbox {
                spec: from("code-interpreter"),
                ..CreateSandbox::default()
            };
            tokio::spawn(async move { control.create_sandbox(&root, request).await })
        })
        .collect();
    let waiting = wait(async || {
        let all = plane.all(&plane.root).await.into_iter();
        let waiting = all.filter(|one| {
            let reason = one.reason.as_deref().unwrap_or_default();
            reason.contains("preparing the image")
        });
        let waiting: Vec<_> = waiting.map(|one| one.id).collect();
        (waiting.len() == CREATES).then_some(waiting)
    });
    for id in waiting.await {
        plane.runner.set_state(&id, State::Creating, None);
    }
    // The rounds go on while the creates wait.
    plane.runner.exit(&other.id, "killed");
    plane.wait_for(other.id.as_str(), State::Stopped).await;
    assert_eq!(plane.runner.count(Call::AddImage, None), 1);
    plane.runner.finish_fetching();
    for create in creates {
        let made = create.await.unwrap().unwrap().sandbox;
        assert_eq!((made.state, made.reason), (State::Running, None));
    }
}

#[tokio::test]
async fn a_failed_build_is_not_tried_again_at_once_and_tenants_do_not_hear_of_mirrors() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("tenant", None).await;
    plane.runner.keep_fetching();
    let fail = async {
        wait(async || (plane.runner.count(Call::AddImage, None) == 1).then_some(())).await;
        wait(async || plane.control.image_job(&plane.root, "job-1").await.ok()).await;
        plane.runner.refuse_fetch("job-1");
    };
    let (refused, ()) = tokio::join!(plane.create(&tenant, from("code-interpreter")), fail);
    let refused = refused.unwrap_err();
    assert!(
        !refused.message.contains("the registry refuses"),
        "{refused:?}"
    );
    // Neither by a create nor by asking for it.
    let again = plane.create(&tenant, from("code-interpreter")).await;
    let again = again.unwrap_err();
    assert_eq!(again.message, refused.message);
    assert!(again.retry_after_s.is_some(), "{again:?}");
    let source = ImageSource::CodeInterpreter;
    let asked = plane.control.add_image(&tenant, source.clone()).await;
    assert!(asked.unwrap_err().retry_after_s.is_some());
    let told = plane.create(&plane.root, from("code-interpreter")).await;
    let told = told.unwrap_err().message;
    assert!(told.contains("the registry refuses"), "{told}");
    assert_eq!(plane.runner.count(Call::AddImage, None), 1);
    let job = plane.control.image_job(&tenant, "job-1").await;
    assert_eq!(job.unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(plane.all(&tenant).await.len(), 0, "nothing is left of them");

    plane.clock.advance(std::time::Duration::from_secs(600));
    plane.runner.finish_fetching();
    plane
        .create(&tenant, from("code-interpreter"))
        .await
        .unwrap();
    assert_eq!(plane.runner.count(Call::AddImage, None), 2);
}

#[tokio::test]
async fn an_operator_tries_again_at_once_and_success_is_remembered() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("tenant", None).await;
    plane.runner.keep_fetching();
    let source = ImageSource::CodeInterpreter;
    let job = plane.control.add_image(&tenant, source.clone()).await;
    let job = job.unwrap();
    plane.runner.refuse_fetch(&job.id);
    let job = plane.control.image_job(&tenant, &job.id).await.unwrap();
    assert_eq!(job.state, JobState::Failed);
    let why = job.error.unwrap().to_string();
    assert!(!why.contains("the registry refuses"), "{why}");
    let refused = plane.create(&tenant, from("code-interpreter")).await;
    assert!(refused.unwrap_err().retry_after_s.is_some());
    plane.runner.finish_fetching();
    plane.control.add_image(&plane.root, source).await.unwrap();
    let made = plane.create(&tenant, from("code-interpreter")).await;
    assert_eq!(made.unwrap().sandbox.state, State::Running);
}

#[tokio::test]
async fn a_create_pulls_an_image_that_is_named_as_one_for_its_organisation_alone() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    let made = plane.create(&ours, from("python:3.12")).await.unwrap();
    assert_eq!(made.sandbox.state, State::Running);
    assert_eq!(names(&plane, &ours).await, ["debian", "python:3.12"]);
    assert_eq!(names(&plane, &theirs).await, ["debian"]);
    // Its bytes count to the quota, and the second create finds it.
    let disk_mb = SandboxSpec::default().resources.disk_mb;
    assert!(disk_used(&plane, &ours).await > disk_mb);
    plane.create(&ours, from("python:3.12")).await.unwrap();
    assert_eq!(plane.runner.count(Call::AddImage, None), 1);
    // What one has pulled opens nothing for another: it pulls for itself.
    plane.create(&theirs, from("python:3.12")).await.unwrap();
    assert_eq!(plane.runner.count(Call::AddImage, None), 2);
    plane.create(&plane.root, from("a/b")).await.unwrap();
    assert_eq!(plane.runner.count(Call::AddImage, None), 3);
}

#[tokio::test]
async fn creates_wait_for_one_pull_and_its_stages_are_events() {
    const CREATES: usize = 10;
    let plane = Plane::new().await;
    let tenant = plane.tenant("ours", None).await;
    plane.runner.keep_fetching();
    let finish = async {
        wait(async || {
            let all = plane.all(&tenant).await.into_iter();
            let told = all.filter(|one| {
                let reason = one.reason.as_deref().unwrap_or_default();
                reason.contains("pulling the image python:3.12")
            });
            (told.count() == CREATES).then_some(())
        })
        .await;
        plane.runner.finish_fetching();
    };
    let creates = (0..CREATES).map(|_| plane.create(&tenant, from("python:3.12")));
    let (made, ()) = tokio::join!(futures_util::future::join_all(creates), finish);
    assert_eq!(plane.runner.count(Call::AddImage, None), 1);
    for one in made {
        let sandbox = one.unwrap().sandbox;
        assert_eq!((sandbox.state, sandbox.reason), (State::Running, None));
        let events = plane.store.latest_events(&sandbox.id, 100).await.unwrap();
        let told = events.iter().filter(|event| {
            matches!(&event.kind, EventKind::State { state: State::Creating, reason: Some(reason) }
                if reason.contains("pulling the image python:3.12"))
        });
        let told = told.count();
        assert!((1..=3).contains(&told), "{told}: {events:?}");
    }
}

#[tokio::test]
async fn a_failed_pull_leaves_nothing_and_names_the_command() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("ours", None).await;
    plane.runner.keep_fetching();
    let fail = async {
        wait(async || (plane.runner.count(Call::AddImage, None) == 1).then_some(())).await;
        wait(async || plane.control.image_job(&tenant, "job-1").await.ok()).await;
        plane.runner.refuse_fetch("job-1");
    };
    let (refused, ()) = tokio::join!(plane.create(&tenant, from("python:3.12")), fail);
    let refused = refused.unwrap_err();
    assert!(
        refused.message.contains("the registry refuses"),
        "{refused:?}"
    );
    let hint = refused.hint.unwrap();
    assert!(
        hint.contains("cove image pull --username USER python:3.12"),
        "{hint}"
    );
    assert_eq!(plane.all(&tenant).await.len(), 0, "nothing is left of it");
    assert_eq!(disk_used(&plane, &tenant).await, 0);
    // The registry may have it now.
    plane.runner.finish_fetching();
    plane.create(&tenant, from("python:3.12")).await.unwrap();
}

#[tokio::test]
async fn a_create_pulls_only_what_its_organisation_may_pull() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("ours", None).await;
    for registry in [
        "127.0.0.1:5000/a:1",
        "localhost/a:1",
        "169.254.169.254/a:1",
        "10.0.0.1/a",
    ] {
        let refused = plane.create(&tenant, from(registry)).await.unwrap_err();
        assert_eq!(
            refused.code,
            ErrorCode::Forbidden,
            "{registry}: {refused:?}"
        );
    }
    // An organisation without room on its disk quota downloads nothing.
    let full = small_tenant(&plane, "full", 0).await;
    let refused = plane.create(&full, from("python:3.12")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded, "{refused:?}");
    assert_eq!(plane.runner.count(Call::AddImage, None), 0);
    // An image that is larger than what is left of the quota ends the create too.
    let small = small_tenant(&plane, "small", 20_000).await;
    plane.runner.size_images(1 << 40);
    let refused = plane.create(&small, from("python:3.12")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity, "{refused:?}");
    assert_eq!(disk_used(&plane, &small).await, 0);
}

#[tokio::test]
async fn a_bare_word_and_a_server_that_does_not_pull_get_the_command_that_works() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("ours", None).await;
    for who in [&plane.root, &tenant] {
        let missing = plane.create(who, from("mybox")).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound);
        let hint = missing.hint.unwrap();
        assert!(hint.contains("cove image pull mybox"), "{hint}");
        assert!(hint.contains("cove create --name mybox"), "{hint}");
    }
    let closed = Plane::with(no_pulls()).await;
    let missing = closed.create(&closed.root, from("python:3.12")).await;
    let missing = missing.unwrap_err();
    assert_eq!(missing.code, ErrorCode::NotFound);
    assert!(
        missing
            .hint
            .unwrap()
            .contains("cove image pull python:3.12")
    );
    let alone = Plane::with(ControlConfig {
        has_default_registry: false,
        ..quick()
    });
    let alone = alone.await;
    let missing = alone.create(&alone.root, from("python:3.12")).await;
    let missing = missing.unwrap_err();
    assert!(
        missing
            .hint
            .unwrap()
            .contains("cove image pull REGISTRY/python:3.12")
    );
    for plane in [&plane, &closed, &alone] {
        assert_eq!(plane.runner.count(Call::AddImage, None), 0);
        assert_eq!(names(plane, &plane.root).await, ["debian"]);
    }
}
