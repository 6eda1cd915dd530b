//! Start calls: checks the request, makes the streams, spawns, and sets the process going.

use std::cell::{Cell, RefCell};
use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cove_limits::{PROCESSES_RUNNING_MAX, RING_DEFAULT, RING_MAX, RING_MIN, TAG_MAX};
use cove_protocol::message::{ErrorCode, ReplyKind, Start};
use rustix::fs::{Gid, Uid};
use rustix::pipe::PipeFlags;
use tokio::io::Interest;
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;

use super::follow::{self, Viewer};
use super::ring::Ring;
use super::spawn::{self, SpawnError, SpawnPlan, Step};
use super::{CHANNELS, Input, Process, Run, Streams, input, list, program, pump, terminal};
use crate::account::{Account, Databases};
use crate::call::{Call, Ended};
use crate::failure::{Doing, Failure, Result, code_of};
use crate::refusals;
use crate::state::{State, unix_ms};
use crate::watched::{self, Watched};

pub const ID_MAX: usize = 128;
/// Bytes of an owner, and of a mark.
pub const OWNER_MAX: usize = 1024;
const WORKING_DIRECTORY_MODE: u32 = 0o755;
/// A timeout beyond this is none: the timer counts in milliseconds from now.
const TIMEOUT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub async fn serve(
    state: &Rc<State>,
    call: &mut Call,
    start: Start,
) -> std::result::Result<(), Ended> {
    let follows = start.follow;
    let ends_with_call = start.kill_on_disconnect;
    let process = launch(state, start)?;
    // Attached before anything is awaited, so that a caller lost now is noticed as well.
    let viewer = follows.then(|| Viewer::new(Rc::clone(&process), true, ends_with_call));
    call.reply(ReplyKind::Started(list::describe(&process)))
        .await?;
    let Some(viewer) = viewer else {
        return Ok(());
    };
    let viewer = viewer.hearing_of_refusals(true);
    let followed = follow::follow(state, call, viewer, [0; CHANNELS], true).await;
    if process.refused_before.is_some() {
        // The answer is out: a look at the kernel's counts holds nobody up.
        state.refusals.catch_up();
    }
    followed
}

fn check(state: &State, start: &Start) -> Result<()> {
    check_room(state)?;
    if start.id.is_empty() || start.id.len() > ID_MAX {
        return Err(Failure::invalid(format!(
            "a process needs an id of at most {ID_MAX} bytes"
        )));
    }
    if start.tag.len() > TAG_MAX || start.owner.len().max(start.mark.len()) > OWNER_MAX {
        return Err(Failure::invalid(format!(
            "a process has a tag of at most {TAG_MAX} bytes and an owner of at most {OWNER_MAX}"
        )));
    }
    if start.kill_on_disconnect && !start.follow {
        return Err(Failure::invalid("kill_on_disconnect needs follow"));
    }
    if start.stdin_open && start.input.is_some() {
        return Err(Failure::invalid("input given whole cannot also stay open"));
    }
    if start.pty.is_some() && start.input.is_some() {
        return Err(Failure::invalid(
            "a terminal takes its input by stdin calls",
        ));
    }
    if start.ring_bytes > RING_MAX {
        return Err(Failure::new(
            ErrorCode::Limit,
            format!("at most {RING_MAX} bytes are kept of a stream"),
        ));
    }
    if state.table.get(&start.id).is_some() {
        return Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("process {:?} exists already", start.id),
        ));
    }
    Ok(())
}

fn check_room(state: &State) -> Result<()> {
    if state.stopping.get() {
        return Err(Failure::new(
            ErrorCode::Gone,
            "the sandbox is shutting down",
        ));
    }
    if state.table.running_count() >= PROCESSES_RUNNING_MAX {
        return Err(Failure::new(
            ErrorCode::TooManyProcesses,
            format!("{PROCESSES_RUNNING_MAX} commands are running already"),
        ));
    }
    Ok(())
}

/// The guest's ends of a command's streams and the command's own.
struct Wiring {
    outputs: Vec<Rc<Watched>>,
    input: Option<Watched>,
    terminal: Option<Rc<Watched>>,
    stdio: [OwnedFd; 3],
}

/// A command that runs, before anything looks at its streams.
struct Spawned {
    run: Run,
    argv: Vec<String>,
    account: Account,
    wiring: Wiring,
}

fn spawn_command(state: &State, start: &Start, number: u64) -> Result<Spawned> {
    let databases = Databases::read();
    let mut account = databases.account(&start.user)?;
    let program = program::plan(start, &account)?;
    let wiring = wire(start, &account, &databases)?;
    if start.make_cwd {
        make_directory(&start.cwd, &account);
    }
    let oom_kills_before = state.figures.oom_kills();
    let plan = SpawnPlan {
        argv: program.argv,
        env: program.env,
        programs: program.programs,
        directories: program.directories,
        uid: account.uid,
        gid: account.gid,
        groups: std::mem::take(&mut account.groups),
        stdio: wiring.stdio.each_ref().map(AsFd::as_fd),
        terminal: start.pty.is_some(),
        open_files: state.open_files.get(),
    };
    let started = Instant::now();
    let pid = spawn::spawn(&plan).map_err(|error| explain(&error, start))?;
    let argv = plan
        .argv
        .iter()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    drop(plan);
    Ok(Spawned {
        run: Run {
            number,
            pid,
            started_unix_ms: unix_ms(),
            started,
            oom_kills_before,
        },
        argv,
        account,
        wiring,
    })
}

fn launch(state: &Rc<State>, start: Start) -> Result<Rc<Process>> {
    launch_as(state, start, false, None)
}

/// The first run of a service since its sandbox was started. Its output goes on behind that of `earlier`.
pub fn launch_service(
    state: &Rc<State>,
    start: Start,
    earlier: Option<&Process>,
) -> Result<Rc<Process>> {
    launch_as(state, start, true, earlier)
}

/// The next run of a service.
pub fn launch_again(state: &Rc<State>, process: &Rc<Process>, start: &Start) -> Result<()> {
    check_room(state)?;
    let spawned = spawn_command(state, start, process.run.get().number + 1)?;
    process.run.set(spawned.run);
    process.killed.set(false);
    {
        let mut streams = process.streams.borrow_mut();
        streams.drained = [false; CHANNELS];
        streams.status = None;
        streams.survivors = false;
        streams.last = None;
    }
    state.table.insert(Rc::clone(process));
    carry_output(state, process, spawned.wiring.outputs, false);
    Ok(())
}

fn launch_as(
    state: &Rc<State>,
    start: Start,
    supervised: bool,
    earlier: Option<&Process>,
) -> Result<Rc<Process>> {
    check(state, &start)?;
    refusals::look(state);
    let sees_refusals = state.refusals.listens();
    let refused_before = (start.report_refusals && sees_refusals).then(|| state.refusals.mark());
    let Spawned {
        run,
        argv,
        account,
        wiring,
    } = spawn_command(state, &start, 0)?;
    let cwd = match start.cwd.is_empty() {
        true => account.home,
        false => start.cwd,
    };
    let ring = match start.ring_bytes {
        0 => RING_DEFAULT,
        bytes => bytes.clamp(RING_MIN, RING_MAX),
    };
    let ring = usize::try_from(ring).unwrap_or(usize::MAX);
    let (fed, open) = match (wiring.input, start.stdin_open) {
        (Some(pipe), true) => (None, Input::Pipe(pipe)),
        (Some(pipe), false) => (Some(pipe), Input::Closed),
        (None, _) if wiring.terminal.is_some() => (None, Input::Terminal),
        (None, _) => (None, Input::Closed),
    };
    let single = wiring.terminal.is_some();
    let mut rings = [Ring::new(ring), Ring::new(if single { 0 } else { ring })];
    if let Some(earlier) = earlier {
        std::mem::swap(&mut rings, &mut earlier.streams.borrow_mut().rings);
        rings.iter_mut().for_each(|kept| kept.widen(ring));
    }
    let process = Rc::new(Process {
        id: start.id,
        run: Cell::new(run),
        supervised: Cell::new(supervised),
        argv,
        cwd,
        user: account.name,
        kind: start.kind,
        owner: start.owner,
        tag: start.tag,
        mark: start.mark,
        size: Cell::new(start.pty),
        refused_before,
        sees_refusals,
        streams: RefCell::new(Streams {
            rings,
            drained: [false, single],
            status: None,
            survivors: false,
            last: None,
            exit: None,
            foreground: start.follow.then_some([0; CHANNELS]),
        }),
        changed: Notify::new(),
        room: Notify::new(),
        leader_gone: Notify::new(),
        terminal: RefCell::new(wiring.terminal),
        input: Mutex::new(open),
        viewers: Cell::new(0),
        interrupted: Cell::new(None),
        timed_out: Cell::new(false),
        killed: Cell::new(false),
    });
    state.table.insert(Rc::clone(&process));
    carry_output(state, &process, wiring.outputs, single);
    if let (Some(pipe), Some(data)) = (fed, start.input) {
        spawn_local(input::feed(pipe, data));
    }
    if start.timeout_ms > 0 {
        let limit = Duration::from_millis(start.timeout_ms).min(TIMEOUT_MAX);
        spawn_local(time_out(Rc::clone(&process), limit));
    }
    state.figures.commands_run(state);
    Ok(process)
}

fn carry_output(state: &Rc<State>, process: &Rc<Process>, outputs: Vec<Rc<Watched>>, single: bool) {
    for (channel, output) in outputs.into_iter().enumerate() {
        spawn_local(pump::pump(
            Rc::clone(state),
            Rc::clone(process),
            channel,
            output,
            single,
        ));
    }
}

/// Container engines make an image's working directory when none of its layers has it. What cannot be
/// made is reported when the command does not get there.
fn make_directory(path: &str, account: &Account) {
    let path = Path::new(path);
    if path.symlink_metadata().is_ok() {
        return;
    }
    if let Some(parent) = path.parent() {
        let _ = DirBuilder::new()
            .recursive(true)
            .mode(WORKING_DIRECTORY_MODE)
            .create(parent);
    }
    let made = DirBuilder::new().mode(WORKING_DIRECTORY_MODE).create(path);
    if made.is_ok() {
        let _ = std::os::unix::fs::lchown(path, Some(account.uid), Some(account.gid));
    }
}

async fn time_out(process: Rc<Process>, limit: Duration) {
    let gone = process.leader_gone.notified();
    if !process.running() {
        return;
    }
    tokio::select! {
        () = gone => return,
        () = tokio::time::sleep(limit) => {}
    }
    process.timed_out.set(true);
    process.terminate().await;
}

fn wire(start: &Start, account: &Account, databases: &Databases) -> Result<Wiring> {
    if let Some(size) = start.pty {
        let pair = terminal::open(size, account, terminal::tty_gid(databases))?;
        let master = Rc::new(watched(
            pair.master,
            Interest::READABLE | Interest::WRITABLE,
        )?);
        let duplicate = || pair.slave.try_clone().doing("cannot set up the terminal");
        return Ok(Wiring {
            stdio: [duplicate()?, duplicate()?, duplicate()?],
            outputs: vec![Rc::clone(&master)],
            input: None,
            terminal: Some(master),
        });
    }
    let pipe = || {
        let (read, write) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).doing("cannot make a pipe")?;
        // So that the process can open them again by /dev/stdout and /proc. Where that cannot be, it only goes on
        // with the ends that it has.
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        rustix::fs::fchown(&write, Some(uid), Some(gid)).ok();
        Ok::<_, Failure>((read, write))
    };
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe()?;
    let (input, child_stdin) = if start.stdin_open || start.input.is_some() {
        let (child_stdin, stdin) = pipe()?;
        (Some(watched(stdin, Interest::WRITABLE)?), child_stdin)
    } else {
        // The guest's own is /dev/null, and no path that somebody inside may have replaced.
        let null = std::io::stdin().as_fd().try_clone_to_owned();
        (None, null.doing("cannot open the empty input")?)
    };
    Ok(Wiring {
        outputs: vec![
            Rc::new(watched(stdout, Interest::READABLE)?),
            Rc::new(watched(stderr, Interest::READABLE)?),
        ],
        input,
        terminal: None,
        stdio: [child_stdin, child_stdout, child_stderr],
    })
}

fn watched(fd: OwnedFd, interest: Interest) -> Result<Watched> {
    watched::watch(fd, interest).doing("cannot watch a stream")
}

fn explain(error: &SpawnError, start: &Start) -> Failure {
    let system = std::io::Error::from_raw_os_error(error.errno);
    let program = start.argv.first().map_or("the shell", String::as_str);
    match (error.step, error.errno) {
        (Step::Fork, libc::EAGAIN) => Failure::new(
            ErrorCode::TooManyProcesses,
            "the sandbox has reached its limit of processes",
        ),
        (Step::Fork, _) => Failure::io("cannot make a process", &system),
        (Step::Directory, errno) => Failure::new(
            code_of(errno),
            format!(
                "cannot enter the working directory {:?}: {system}",
                start.cwd
            ),
        ),
        (Step::User, _) => Failure::io(&format!("cannot become user {:?}", start.user), &system),
        (Step::Terminal, _) => Failure::io("cannot take the terminal", &system),
        (Step::Setup, _) => Failure::io("cannot prepare the process", &system),
        (Step::Exec, libc::ENOENT) => Failure::new(
            ErrorCode::CommandNotFound,
            format!("{program:?} was not found, or the interpreter it names was not"),
        ),
        (Step::Exec, libc::ENOEXEC) => Failure::invalid(format!(
            "{program:?} is not a program this system can run, and has no #! line"
        )),
        (Step::Exec, libc::E2BIG) => Failure::invalid(
            "the command, with the PATH put in front of a shell command, or its environment is larger than the kernel takes",
        ),
        (Step::Exec, errno) => {
            Failure::new(code_of(errno), format!("cannot run {program:?}: {system}"))
        }
    }
}
