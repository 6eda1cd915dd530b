//! The calls about services.

use std::rc::Rc;
use std::time::Duration;

use cove_limits::{ARGV_MAX, ENV_ENTRIES_MAX, SERVICE_BYTES_MAX, SERVICES_MAX};
use cove_protocol::message::{
    self, Environment, ErrorCode, ReplyKind, Restart, ServiceRef, StartService,
};
use prost::Message;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::{Service, file, supervise};
use crate::call::{Call, Ended};
use crate::failure::{Doing, Failure, Result};
use crate::process::KILL_GRACE;
use crate::state::State;
use crate::thread;

/// How long a service that was killed may take to end.
const END_WAIT: Duration = KILL_GRACE.saturating_add(Duration::from_secs(8));

/// What a service may be, by what is known before it runs.
pub fn check(service: &message::Service) -> Result<()> {
    if !file::is_name(&service.name) {
        return Err(Failure::invalid(
            "a service's name has 1 to 63 lowercase letters, digits or dashes, and begins and ends with none of the dashes",
        ));
    }
    if service.argv.len() > ARGV_MAX || service.env.len() > ENV_ENTRIES_MAX {
        return Err(Failure::invalid(format!(
            "a service has at most {ARGV_MAX} arguments and {ENV_ENTRIES_MAX} variables"
        )));
    }
    if service.encoded_len() > SERVICE_BYTES_MAX {
        return Err(Failure::new(
            ErrorCode::Limit,
            format!("a service has at most {SERVICE_BYTES_MAX} bytes in all"),
        ));
    }
    if Restart::try_from(service.restart).is_err() {
        return Err(Failure::invalid(
            "this guest does not know the restart policy",
        ));
    }
    Ok(())
}

pub async fn begin(
    state: &Rc<State>,
    call: &mut Call,
    environment: Environment,
) -> std::result::Result<(), Ended> {
    // A service that is being written is started by its own call.
    let _turn = state.services.change.lock().await;
    if !state.stopping.get() {
        state.services.begin(state, environment);
    }
    call.done(0).await?;
    Ok(())
}

pub async fn list(state: &Rc<State>, call: &mut Call) -> std::result::Result<(), Ended> {
    let services = state.services.statuses();
    call.reply(ReplyKind::Services(message::Services { services }))
        .await?;
    Ok(())
}

pub async fn start(
    state: &Rc<State>,
    call: &mut Call,
    request: StartService,
) -> std::result::Result<(), Ended> {
    let service = started(state, request).await?;
    call.reply(ReplyKind::Services(message::Services {
        services: vec![service.status()],
    }))
    .await?;
    Ok(())
}

/// It is on the disk, and runs, when this returns; otherwise neither.
async fn started(state: &Rc<State>, request: StartService) -> Result<Rc<Service>> {
    let missing = || Failure::invalid("the request has no service or no environment");
    let spec = request.service.ok_or_else(missing)?;
    let environment = request.environment.ok_or_else(missing)?;
    check(&spec)?;
    let directory = state.kept.clone().ok_or_else(|| {
        let refusal = "this guest keeps nothing on a disk";
        Failure::new(ErrorCode::Unsupported, refusal)
    })?;
    let services = &state.services;
    let _turn = services.change.lock().await;
    if services.all.borrow().contains_key(&spec.name) {
        return Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("service {:?} exists already; remove it first", spec.name),
        ));
    }
    if services.all.borrow().len() >= SERVICES_MAX {
        return Err(Failure::new(
            ErrorCode::Limit,
            format!("a sandbox has at most {SERVICES_MAX} services"),
        ));
    }
    let (kept, id) = (spec.clone(), request.id.clone());
    let staged = thread::run(move || file::stage(&directory, &kept, &id))
        .await?
        .doing("cannot write the service to the sandbox's disk")?;
    services.begin(state, environment);
    let service = Rc::new(Service::new(spec, request.id));
    service.run(state)?;
    let name = service.spec.name.clone();
    let committed = thread::run(move || staged.commit(&name)).await;
    let committed = committed.and_then(|it| it.doing("cannot write the service to the disk"));
    if let Err(failure) = committed {
        service.removed.set(true);
        service.kill_leftovers();
        spawn_local(supervise(Rc::clone(state), service, true));
        return Err(failure);
    }
    let mut all = services.all.borrow_mut();
    all.insert(service.spec.name.clone(), Rc::clone(&service));
    spawn_local(supervise(Rc::clone(state), Rc::clone(&service), true));
    Ok(service)
}

pub async fn remove(
    state: &Rc<State>,
    call: &mut Call,
    of: ServiceRef,
) -> std::result::Result<(), Ended> {
    removed(state, &of.name).await?;
    call.done(0).await?;
    Ok(())
}

async fn removed(state: &Rc<State>, name: &str) -> Result<()> {
    let services = &state.services;
    let turn = services.change.lock().await;
    let service = services.all.borrow().get(name).cloned();
    let service = service.ok_or_else(|| {
        let refusal = format!("there is no service {name:?} here");
        Failure::new(ErrorCode::NotFound, refusal)
    })?;
    if let Some(directory) = state.kept.clone() {
        let name = name.to_owned();
        thread::run(move || file::remove(&directory, &name))
            .await?
            .doing("cannot remove the service from the sandbox's disk")?;
    }
    services.all.borrow_mut().remove(name);
    drop(turn);
    service.removed.set(true);
    service.ending.notify_waiters();
    let process = service.process.borrow().clone();
    let Some(process) = process else {
        return Ok(());
    };
    spawn_local(Rc::clone(&process).terminate());
    let ended = async {
        loop {
            let changed = process.changed.notified();
            if process.exit().is_some() {
                return;
            }
            changed.await;
        }
    };
    timeout(END_WAIT, ended).await.map_err(|_| {
        let refusal = "the service was removed, but its process has not ended yet";
        Failure::new(ErrorCode::Internal, refusal)
    })
}
