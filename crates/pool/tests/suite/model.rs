//! Random sequences of operations against a model that is a map.

use std::collections::BTreeMap;
use std::fs;

use cove_pool::{Access, Kind, PoolError, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fixture::TestPool;

const CASES: u32 = 16;
const MAX_STEPS: usize = 40;

#[derive(Debug, Clone)]
enum Step {
    Create(VolumeId),
    Write(VolumeId, u32),
    Snapshot(VolumeId, VolumeId, bool),
    Freeze(VolumeId),
    Rename(VolumeId, VolumeId),
    Swap(VolumeId, VolumeId),
    Delete(VolumeId),
    Sweep(Vec<VolumeId>),
    Reopen,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Volume {
    content: Option<u32>,
    read_only: bool,
}

type Model = BTreeMap<VolumeId, Volume>;

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Exists,
    NotFound,
    ReadOnly,
}

fn volume() -> impl Strategy<Value = VolumeId> {
    (0..4usize, 0..2u8).prop_map(|(kind, n)| {
        VolumeId::new(Kind::ALL[kind], format!("v{n}")).expect("a name of the allowed alphabet")
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => volume().prop_map(Step::Create),
        6 => (volume(), any::<u32>()).prop_map(|(id, n)| Step::Write(id, n)),
        6 => (volume(), volume(), any::<bool>()).prop_map(|(a, b, ro)| Step::Snapshot(a, b, ro)),
        2 => volume().prop_map(Step::Freeze),
        4 => (volume(), volume()).prop_map(|(a, b)| Step::Rename(a, b)),
        4 => (volume(), volume()).prop_map(|(a, b)| Step::Swap(a, b)),
        3 => volume().prop_map(Step::Delete),
        1 => proptest::collection::vec(volume(), 0..6).prop_map(Step::Sweep),
        1 => Just(Step::Reopen),
    ]
}

/// What the step should do, and does to the model.
fn expect(model: &mut Model, step: &Step) -> Outcome {
    match step {
        Step::Create(id) => {
            if model.contains_key(id) {
                return Outcome::Exists;
            }
            model.insert(id.clone(), Volume::default());
        }
        Step::Write(id, n) => match model.get_mut(id) {
            None => return Outcome::NotFound,
            Some(volume) if volume.read_only => return Outcome::ReadOnly,
            Some(volume) => volume.content = Some(*n),
        },
        Step::Snapshot(from, to, read_only) => {
            let Some(source) = model.get(from) else {
                return Outcome::NotFound;
            };
            if model.contains_key(to) {
                return Outcome::Exists;
            }
            let copy = Volume {
                content: source.content,
                read_only: *read_only,
            };
            model.insert(to.clone(), copy);
        }
        Step::Freeze(id) => match model.get_mut(id) {
            None => return Outcome::NotFound,
            Some(volume) => volume.read_only = true,
        },
        Step::Rename(from, to) => {
            if !model.contains_key(from) {
                return Outcome::NotFound;
            }
            if model.contains_key(to) {
                return Outcome::Exists;
            }
            let volume = model.remove(from).expect("looked up above");
            model.insert(to.clone(), volume);
        }
        Step::Swap(a, b) => {
            for id in [a, b] {
                match model.get(id) {
                    None => return Outcome::NotFound,
                    Some(volume) if volume.read_only => return Outcome::ReadOnly,
                    Some(_) => {}
                }
            }
            let (x, y) = (model[a].clone(), model[b].clone());
            model.insert(a.clone(), y);
            model.insert(b.clone(), x);
        }
        Step::Delete(id) => {
            model.remove(id);
        }
        Step::Sweep(keep) => {
            model.retain(|id, _| id.kind() != Kind::Staging && keep.contains(id));
        }
        Step::Reopen => {}
    }
    Outcome::Done
}

fn perform(pool: &mut TestPool, step: &Step) -> Outcome {
    let done = match step {
        Step::Create(id) => pool.create(id),
        Step::Write(id, n) => match pool.info(id) {
            Err(e) => Err(e),
            // Directories do not hold the line themselves, so it is asked first.
            Ok(info) if info.read_only => return Outcome::ReadOnly,
            Ok(_) => {
                pool.write(id, "content", n.to_string());
                Ok(())
            }
        },
        Step::Snapshot(from, to, true) => pool.snapshot(from, to, Access::ReadOnly),
        Step::Snapshot(from, to, false) => pool.snapshot(from, to, Access::Writable),
        Step::Freeze(id) => pool.set_read_only(id),
        Step::Rename(from, to) => pool.rename(from, to),
        Step::Swap(a, b) => pool.swap(a, b),
        Step::Delete(id) => pool.delete(id),
        Step::Sweep(keep) => {
            let report = pool.sweep(&|id| keep.contains(id));
            assert!(
                report.errors.is_empty() && report.unknown.is_empty(),
                "{report:?}"
            );
            Ok(())
        }
        Step::Reopen => pool.try_reopen(),
    };
    match done {
        Ok(()) => Outcome::Done,
        Err(PoolError::Exists { .. }) => Outcome::Exists,
        Err(PoolError::NotFound { .. }) => Outcome::NotFound,
        Err(PoolError::ReadOnly { .. }) => Outcome::ReadOnly,
        Err(other) => panic!("{step:?}: {other:?}"),
    }
}

fn observe(pool: &TestPool) -> Model {
    let mut model = Model::new();
    for kind in Kind::ALL {
        for info in pool.list(kind).expect("volumes are listed") {
            let text = fs::read_to_string(pool.path(&info.id).join("content"));
            let volume = Volume {
                content: text
                    .ok()
                    .map(|text| text.parse().expect("what was written")),
                read_only: info.read_only,
            };
            model.insert(info.id, volume);
        }
    }
    model
}

fn behaves_like_the_model(mut pool: TestPool) {
    let mut runner = TestRunner::new(Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    });
    let pool = std::cell::RefCell::new(&mut pool);
    let steps = proptest::collection::vec(step(), 1..MAX_STEPS);
    let outcome = runner.run(&steps, |steps| {
        let pool = &mut *pool.borrow_mut();
        pool.sweep(&|_| false);
        let mut model = Model::new();
        for step in &steps {
            let expected = expect(&mut model, step);
            prop_assert_eq!(perform(pool, step), expected, "{:?}", step);
            prop_assert_eq!(&observe(pool), &model, "after {:?}", step);
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn loop_btrfs_behaves_like_the_model() {
    behaves_like_the_model(TestPool::btrfs());
}

#[test]
fn host_btrfs_behaves_like_the_model() {
    behaves_like_the_model(TestPool::host_btrfs());
}

#[test]
fn directories_behave_like_the_model() {
    behaves_like_the_model(TestPool::directory());
}
