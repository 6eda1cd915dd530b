//! Pulls through the engine: what root does not do for them, and whose share they take.

use cove_model::OrgId;
use cove_runner_api::{ImageOwner, ImageSource, JobState, RunnerApi, RunnerError};
use cove_tests::engine_host::World;
use cove_tests::strace::Strace;

use crate::PROGRAM;
use crate::registry::{BUSYBOX, Layout, Registry};

fn tenant() -> ImageOwner {
    ImageOwner::Tenant {
        org: OrgId::random(),
        room_bytes: 1 << 30,
    }
}

fn pull(reference: String) -> ImageSource {
    ImageSource::Registry {
        reference,
        username: None,
        password: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_dials_no_address_and_runs_no_tar_for_a_pull() {
    let world = World::start(PROGRAM).await;
    let (registry, layout) = (Registry::start(), Layout::new());
    layout.image("app", &[BUSYBOX, "echo x > x"]);
    registry.push(&layout, "app", "app:1", "");
    let strace = Strace::attach(world.engine_pid());
    for owner in [ImageOwner::Operator, tenant()] {
        let source = pull(registry.reference("app:1"));
        let job = world.client().add_image(source, owner).await.unwrap();
        let end = world.job_end(&job.id).await;
        assert_eq!(end.state, JobState::Done, "{end:?}");
    }
    let seen = strace.finish();
    assert_eq!(seen.dials_of_root(), Vec::<&str>::new());
    let tar = |program: &&str| program.rsplit('/').next() == Some("tar");
    assert!(!seen.programs().iter().any(tar), "{seen:?}");
    // What was looked for can be seen: somebody did dial.
    assert!(seen.dials_of_others().len() >= 2, "{seen:?}");
    world.finish();
}

/// The attack: pulls from a registry that takes connections and answers none, as many as there may be.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_pulls_of_one_organisation_leave_room_for_others() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let reference = |n: usize| format!("{}/app:{n}", registry.local_addr().unwrap());
    let attacker = tenant();
    let mut jobs = Vec::new();
    for n in 0..64 {
        match client.add_image(pull(reference(n)), attacker.clone()).await {
            Ok(job) => jobs.push(job.id),
            Err(RunnerError::NoCapacity { message, .. }) => {
                assert!(message.contains("your organisation"), "{message}");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(jobs.len(), 8);
    // The same again is not another job, though the organisation has less room by now.
    let ImageOwner::Tenant { org, .. } = attacker else {
        panic!("a tenant");
    };
    let poorer = ImageOwner::Tenant { org, room_bytes: 1 };
    let again = client.add_image(pull(reference(0)), poorer).await.unwrap();
    assert_eq!(again.id, jobs[0]);
    for owner in [tenant(), ImageOwner::Operator] {
        let job = client.add_image(pull(reference(99)), owner).await.unwrap();
        assert_eq!(job.state, JobState::Running);
        jobs.push(job.id);
    }
    drop(registry);
    for job in &jobs {
        assert_eq!(world.job_end(job).await.state, JobState::Failed);
    }
    world.finish();
}

/// With control's word alone the runner opens no file of the host.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_host_are_not_imported() {
    let world = World::start(PROGRAM).await;
    let link = world.setup.dir.join("link.tar");
    std::os::unix::fs::symlink("/etc/shadow", &link).unwrap();
    let below = world.setup.dir.join("image/../../../../etc/shadow");
    for path in [
        "/etc/shadow".into(),
        "/".into(),
        "/proc/self/environ".into(),
        link,
        below,
    ] {
        let job = world.import("stolen", &path).await;
        assert_eq!(job.state, JobState::Failed, "{}: {job:?}", path.display());
        assert!(job.image.is_none());
    }
    let source = ImageSource::Local {
        name: "stolen".into(),
        path: world.setup.dir.join("image").display().to_string(),
    };
    let job = world.client().add_image(source, tenant()).await.unwrap();
    assert_eq!(world.job_end(&job.id).await.state, JobState::Failed);
    assert_eq!(world.client().images().await.unwrap().len(), 1);
    world.finish();
}
