//! Images through the engine.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use cove_runner_api::{ImageJob, ImageOwner, ImageSource, JobState, RunnerApi, RunnerError};
use cove_tests::engine_host::{IMAGE, World, eventually, output};

use crate::PROGRAM;

/// What the stage of a job begins with while it does what only a build does.
const BUILDING: &str = "installing packages";
/// The longest a build may take.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// A job at its end, and the stages that it was seen at.
async fn watched(world: &World, id: &str) -> (ImageJob, BTreeSet<String>) {
    let client = world.client();
    let begun = Instant::now();
    let mut stages = BTreeSet::new();
    loop {
        let job = client.image_job(id).await.unwrap();
        stages.insert(job.stage.clone());
        if job.state != JobState::Running {
            return (job, stages);
        }
        assert!(begun.elapsed() < BUILD_DEADLINE, "still at: {}", job.stage);
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_directory_is_listed_counts_its_users_and_goes_with_the_last() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let tree = world.setup.dir.join("image");
    fs::write(tree.join("etc/marker"), "second").unwrap();
    let job = world.import("second", &tree).await;
    assert_eq!(job.state, JobState::Done, "{job:?}");
    assert!(job.image.as_ref().is_some_and(|image| image.size_bytes > 0));
    let sandbox = world.create_with(|spec| spec.image = "second".into()).await;
    assert_eq!(
        output(&world.guest(&sandbox.id), "cat /etc/marker").await,
        "second"
    );
    let images = client.images().await.unwrap();
    assert_eq!(images.len(), 2);
    let users = |name: &str| {
        images
            .iter()
            .find(|image| image.names.iter().any(|has| has == name))
            .map(|image| image.in_use_by)
    };
    assert_eq!((users(IMAGE), users("second")), (Some(0), Some(1)));

    for _ in 0..2 {
        let error = client.remove_image("second").await.unwrap_err();
        assert!(matches!(error, RunnerError::InUse { .. }), "{error:?}");
        // Also while nobody runs: its disk still stands on the image.
        let _ = client.stop(&sandbox.id, 0).await;
    }
    client.delete(&sandbox.id).await.unwrap();
    client.remove_image("second").await.unwrap();
    let error = client.remove_image("second").await.unwrap_err();
    assert!(matches!(error, RunnerError::NotFound { .. }), "{error:?}");
    let error = world
        .try_create(|spec| spec.image = "second".into())
        .await
        .unwrap_err();
    assert!(matches!(error, RunnerError::NotFound { .. }), "{error:?}");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_of_nothing_fails_with_the_path() {
    let world = World::start(PROGRAM).await;
    let job = world
        .import("nothing", &world.setup.dir.join("nowhere"))
        .await;
    assert_eq!(job.state, JobState::Failed);
    match job.error {
        Some(RunnerError::Invalid { message }) => {
            assert!(message.contains("nowhere"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.client().images().await.unwrap().len(), 1);
    assert!(world.traces().unfinished.is_empty());
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_callers_share_one_debian_build_and_a_second_data_directory_reuses_it() {
    let first = World::with(PROGRAM, |setup| setup.pool_bytes = 8 << 30).await;
    let begun = Instant::now();
    let (one, two) = tokio::join!(
        {
            let client = first.client();
            async move {
                client
                    .add_image(ImageSource::Debian, ImageOwner::Operator)
                    .await
                    .unwrap()
            }
        },
        {
            let client = first.client();
            async move {
                client
                    .add_image(ImageSource::Debian, ImageOwner::Operator)
                    .await
                    .unwrap()
            }
        }
    );
    assert_eq!(one.id, two.id);
    // A first build on a host takes minutes.
    let (job, stages) = watched(&first, &one.id).await;
    assert_eq!(job.state, JobState::Done, "{job:?}");
    let first_took = begun.elapsed();
    let sandbox = first
        .create_with(|spec| {
            spec.image = "debian".into();
            spec.resources.memory_mb = 512;
        })
        .await;
    let version = output(
        &first.guest(&sandbox.id),
        "python3 --version && git --version",
    )
    .await;
    assert!(version.contains("Python 3"), "{version}");

    let second = World::with(PROGRAM, |setup| setup.pool_bytes = 8 << 30).await;
    let begun = Instant::now();
    let job = second
        .client()
        .add_image(ImageSource::Debian, ImageOwner::Operator)
        .await
        .unwrap();
    let (job, again) = watched(&second, &job.id).await;
    assert_eq!(job.state, JobState::Done, "{job:?}");
    let second_took = begun.elapsed();
    // Whether the first built it or found it, for the second it is there.
    assert!(
        !again.iter().any(|stage| stage.starts_with(BUILDING)),
        "{again:?}"
    );
    println!(
        "debian ready after {first_took:?} in the first data directory ({} stages seen), {:?} in the second",
        stages.len(),
        second_took
    );
    second.finish();
    first.finish();
}

/// Whoever asks gets what the registry gives to them, not to somebody who asked before them.
#[tokio::test(flavor = "multi_thread")]
async fn fetches_are_shared_only_by_those_with_the_same_credentials() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    // A registry that takes connections and answers none, so that every fetch stays under way.
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let reference = format!("{}/private/app:1", registry.local_addr().unwrap());
    let asker = world.client();
    let fetch = |login: Option<(&str, &str)>| {
        let source = ImageSource::Registry {
            reference: reference.clone(),
            username: login.map(|(name, _)| name.to_owned()),
            password: login.map(|(_, password)| password.to_owned()),
        };
        let asker = &asker;
        async move {
            asker
                .add_image(source, ImageOwner::Operator)
                .await
                .unwrap()
                .id
        }
    };
    let ours = fetch(Some(("ours", "secret"))).await;
    assert_eq!(fetch(Some(("ours", "secret"))).await, ours);
    for other in [None, Some(("ours", "guess")), Some(("theirs", "secret"))] {
        assert_ne!(fetch(other).await, ours, "{other:?}");
    }
    drop(registry);
    let end = world.job_end(&ours).await;
    assert_eq!(end.state, JobState::Failed, "{end:?}");
    // Ids of an earlier life of the host name nothing in the next one.
    world.restart();
    eventually("the host has forgotten the job", || async {
        let asked = client.image_job(&ours).await;
        matches!(asked, Err(RunnerError::NotFound { .. })).then_some(())
    })
    .await;
    world.finish();
}
