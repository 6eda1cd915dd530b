//! The suite every isolation tier must pass: work goes on inside as on any machine, and every way
//! out, over the limits or into a neighbour fails and leaves the host and the neighbours well.
//!
//! One engine with one data directory serves all trials, side by side. `COVE_TIER` names the tier
//! (default: `container`). After each trial the host's settings and a neighbour are looked at, and
//! after the last one everything an engine can leave behind.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

#[path = "conformance/bombs.rs"]
mod bombs;
#[path = "conformance/border.rs"]
mod border;
#[path = "conformance/everyday.rs"]
mod everyday;
#[path = "conformance/floods.rs"]
mod floods;
#[path = "conformance/guest.rs"]
mod guest;
#[path = "conformance/leftovers.rs"]
mod leftovers;
#[path = "conformance/transfer.rs"]
mod transfer;
#[path = "conformance/world.rs"]
mod world;

use cove_tests::tiers;
use world::{Case, World};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let cases: Vec<Case> = [
        border::cases(),
        guest::cases(),
        transfer::cases(),
        bombs::cases(),
        floods::cases(),
        everyday::cases(),
    ]
    .concat();
    let tier = tiers::under_test();
    let (left_out, cases): (Vec<Case>, Vec<Case>) = cases
        .into_iter()
        .partition(|case| tiers::left_out(&tier, &case.name).is_some());
    for case in left_out {
        let reason = tiers::left_out(&tier, &case.name).unwrap_or_default();
        eprintln!("left out for isolation {tier}: {}: {reason}", case.name);
    }
    if arguments.list {
        let listed = cases
            .into_iter()
            .map(|case| Trial::test(case.name, || Ok(())))
            .collect();
        libtest_mimic::run(&arguments, listed).exit();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let world = Arc::new(runtime.block_on(World::open()));
    let trials = cases
        .into_iter()
        .map(|case| {
            let (world, handle) = (Arc::clone(&world), runtime.handle().clone());
            Trial::test(case.name, move || {
                handle.block_on(async {
                    (case.run)(Arc::clone(&world)).await;
                    world.check_unharmed().await;
                });
                Ok::<(), Failed>(())
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let world = Arc::into_inner(world).expect("all trials are over");
    let left = runtime.block_on(leftovers::after(world));
    for line in &left {
        eprintln!("left behind: {line}");
    }
    if conclusion.has_failed() || !left.is_empty() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
