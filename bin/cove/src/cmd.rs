//! What the commands do, by concern.

use self::snapshots::Rest;
use crate::args::{Command, Global, KeyCommand};
use crate::connect;
use crate::output;
use crate::report::CliError;

pub mod access;
pub mod approvals;
pub mod audit;
pub mod bench;
pub mod builds;
pub mod code;
pub mod copy;
pub mod destroy;
pub mod doctor;
pub mod egress;
pub mod exec;
pub mod forward;
pub mod identity;
pub mod images;
pub mod login;
pub mod look;
pub mod making;
pub mod mcp;
pub mod meta;
pub mod node;
pub mod quarantine;
pub mod run;
pub mod sandboxes;
pub mod secret;
pub mod services;
pub mod shell;
pub mod snapshots;
pub mod ssh;
pub mod stats;
pub mod stdin;
pub mod templates;
pub mod timeline;
pub mod usage;
pub mod volumes;

pub async fn run(command: Command, global: &Global) -> Result<u8, CliError> {
    if let Command::Doctor { sweep, repair_pool } = command {
        return match repair_pool {
            true => doctor::repair::run(global).await,
            false => doctor::run(global, sweep).await,
        };
    }
    if let Command::Destroy(args) = command {
        return destroy::run(global, &args).await;
    }
    if let Command::Key(KeyCommand::ResetRoot) = command {
        return access::reset_root(global, global.json).await.map(|()| 0);
    }
    if let Command::Node(command) = command {
        return node::run(global, command).await.map(|()| 0);
    }
    if let Command::Login(args) = command {
        return login::login(&args, global).await.map(|()| 0);
    }
    if let Command::Context(command) = command {
        return login::context(&command, global.json).map(|()| 0);
    }
    let client = connect::client(global)?;
    let json = global.json;
    let done = |result: Result<(), CliError>| result.map(|()| 0);
    match command {
        Command::Create(args) => done(sandboxes::create(&client, &args, json).await),
        Command::Ls(args) => done(sandboxes::list(&client, &args, json).await),
        Command::Show { sandbox } => done(sandboxes::show(&client, &sandbox, json).await),
        Command::Start { sandboxes } => done(sandboxes::start(&client, &sandboxes, json).await),
        Command::Stop { sandboxes, grace } => {
            done(sandboxes::stop(&client, &sandboxes, grace, json).await)
        }
        Command::Restart { sandboxes, grace } => {
            done(sandboxes::restart(&client, &sandboxes, grace, json).await)
        }
        Command::Detach { sandboxes } => done(sandboxes::detach(&client, &sandboxes, json).await),
        Command::Freeze { sandboxes } => {
            done(snapshots::rest(&client, Rest::Freeze, &sandboxes, json).await)
        }
        Command::Pause { sandboxes } => {
            done(snapshots::rest(&client, Rest::Pause, &sandboxes, json).await)
        }
        Command::Resume { sandboxes } => {
            done(snapshots::rest(&client, Rest::Resume, &sandboxes, json).await)
        }
        Command::Snapshot(args) => done(snapshots::snapshot(&client, args, json).await),
        Command::Snapshots { sandbox, quiet } => {
            done(snapshots::list(&client, sandbox.as_deref(), quiet, json).await)
        }
        Command::Fork(args) => snapshots::fork(&client, &args, json).await,
        Command::Rollback(args) => done(snapshots::rollback(&client, &args, json).await),
        Command::Timeline { sandbox } => done(timeline::run(&client, &sandbox, json).await),
        Command::Rm { force, sandboxes } => {
            done(sandboxes::remove(&client, &sandboxes, force, json).await)
        }
        Command::Rename { sandbox, name } => {
            done(sandboxes::rename(&client, &sandbox, &name, json).await)
        }
        Command::Inspect { sandboxes } => done(sandboxes::inspect(&client, &sandboxes).await),
        Command::Template(command) => done(templates::run(&client, command, json).await),
        Command::Service(command) => done(services::run(&client, command, json).await),
        Command::Volume(command) => done(volumes::run(&client, command, json).await),
        Command::Images => done(images::list(&client, json).await),
        Command::Version => done(meta::version(&client, json).await),
        Command::Update(args) => done(sandboxes::update(&client, &args, json).await),
        Command::Exec(args) => exec::run(&client, &args, json).await.map_err(running),
        Command::Code(command) => code::run(&client, command, json).await,
        Command::Shell(args) => shell::run(&client, &args).await.map_err(running),
        Command::Run(args) => run::run(&client, &args, json).await.map_err(running),
        Command::Cp(args) => done(copy::run(&client, &args, json).await),
        Command::Logs(args) => done(look::logs(&client, &args, json).await),
        Command::Ps(args) => done(look::processes(&client, &args, json).await),
        Command::Kill {
            sandbox,
            process,
            signal,
        } => {
            client.signal(&sandbox, &process, &signal).await?;
            match json {
                true => done(output::done("signalled", &process, json)),
                false => Ok(0),
            }
        }
        Command::Ports { sandbox } => done(look::ports(&client, &sandbox, json).await),
        Command::Share {
            sandbox,
            port,
            expires,
            public,
            revoke,
        } => done(match revoke {
            true => look::unshare(&client, &sandbox, port, json).await,
            false => look::share(&client, &sandbox, port, expires, public, json).await,
        }),
        Command::PortForward {
            sandbox,
            ports,
            bind,
        } => done(forward::run(&client, &sandbox, &ports, bind, json).await),
        Command::Identity(command) => done(identity::run(&client, command, json).await),
        Command::Approvals(command) => done(approvals::run(&client, command, json).await),
        Command::Secret(command) => done(secret::run(&client, command, json).await),
        Command::Ssh(args) => ssh::run(&client, &args, json).await,
        Command::SshKey(command) => done(ssh::key(&client, command, json).await),
        Command::Usage(args) => done(usage::run(&client, &args, json).await),
        Command::Events {
            sandbox,
            follow,
            after,
        } => done(look::events(&client, sandbox.as_deref(), follow, after, json).await),
        Command::Egress(args) => done(egress::run(&client, &args, json).await),
        Command::Audit { limit, command } => match command {
            None => done(look::audit(&client, limit, json).await),
            Some(command) => audit::run(&client, command, json).await,
        },
        Command::Stats(args) => done(stats::run(&client, args, json).await),
        Command::Image(command) => images::run(&client, global, command, json).await,
        Command::Key(command) => done(access::key(&client, command, json).await),
        Command::Org(command) => done(access::org(&client, command, json).await),
        Command::Quarantine(command) => done(quarantine::run(&client, command, json).await),
        Command::Mcp => mcp::run(client).await.map(|()| 0),
        Command::Bench(args) => done(bench::run(&client, &args, global).await),
        Command::Serve(_)
        | Command::Control(_)
        | Command::Node(_)
        | Command::Completion { .. }
        | Command::Config
        | Command::Destroy(_)
        | Command::Login(_)
        | Command::Context(_)
        | Command::Man { .. }
        | Command::Doctor { .. } => {
            unreachable!("dispatched before")
        }
    }
}

fn running(error: CliError) -> CliError {
    CliError::Running(Box::new(error))
}
