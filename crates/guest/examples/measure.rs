//! Measures a built guest: `measure PATH-OF-GUEST [MEGABYTES]`. Run it as root, in release, with
//! the guest built as it is shipped.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cove_protocol::client::{Guest, UnixConnect};
use cove_protocol::frame::CHUNK;
use cove_protocol::message::{ReadFile, Start, WriteFile};

type Failure = Box<dyn std::error::Error>;

const STARTS: usize = 100;
const EXECS: usize = 300;

/// Ends the guest when measuring fails half way.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the guest as the spawner does: with the listening socket as descriptor 3.
fn spawn(program: &Path, directory: &Path) -> Result<(Running, Guest), Failure> {
    let path = directory.join("sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let raw = listener.as_raw_fd();
    let mut command = Command::new(program);
    command
        .arg("--root-files")
        .arg(directory)
        .env_clear()
        .stdin(Stdio::null());
    // SAFETY: one system call in the child; when the number is 3 already, only its flag goes.
    unsafe {
        command.pre_exec(move || {
            let made = if raw == 3 {
                libc::fcntl(raw, libc::F_SETFD, 0)
            } else {
                libc::dup2(raw, 3)
            };
            match made {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
    let child = Running(command.spawn()?);
    let guest = Guest::new(Arc::new(UnixConnect { path }));
    Ok((child, guest))
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!(
        "{what}: min {:.3} p50 {:.3} p99 {:.3} ms",
        at(0),
        at(50),
        at(99)
    );
}

fn status(pid: u32) -> Result<String, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let lines = text
        .lines()
        .filter(|line| line.starts_with("VmRSS") || line.starts_with("RssAnon"));
    Ok(lines.collect::<Vec<_>>().join(" ").replace('\t', " "))
}

fn run_true(number: usize) -> Start {
    Start {
        id: format!("prc_{number}"),
        argv: vec!["/bin/true".to_owned()],
        cwd: "/".to_owned(),
        ..Start::default()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments
        .next()
        .ok_or("measure PATH-OF-GUEST [MEGABYTES]")?;
    let program = Path::new(&program);
    let megabytes: usize = match arguments.next() {
        Some(text) => text.to_str().ok_or("a number of megabytes")?.parse()?,
        None => 1024,
    };
    let directory = tempfile::tempdir()?;

    let mut times = Vec::new();
    for _ in 0..STARTS {
        let start = Instant::now();
        let (child, guest) = spawn(program, directory.path())?;
        guest.info().await?;
        times.push(start.elapsed());
        drop(child);
    }
    tell("fork + exec + first reply", times);

    let (child, guest) = spawn(program, directory.path())?;
    guest.info().await?;
    println!("idle: {}", status(child.0.id())?);

    let mut times = Vec::new();
    for _ in 0..EXECS {
        let start = Instant::now();
        guest.info().await?;
        times.push(start.elapsed());
    }
    tell("info", times);
    let (mut plain, mut through) = (Vec::new(), Vec::new());
    for number in 0..EXECS {
        let start = Instant::now();
        Command::new("/bin/true").stdin(Stdio::null()).status()?;
        plain.push(start.elapsed());
        let start = Instant::now();
        guest.exec(run_true(number)).await?;
        through.push(start.elapsed());
    }
    tell("plain fork + exec of true", plain);
    tell("exec of true through the guest", through);
    println!("after {EXECS} commands: {}", status(child.0.id())?);

    let path = directory.path().join("data");
    let path = path.to_str().ok_or("a directory with a plain name")?;
    let chunk = Bytes::from(vec![7; CHUNK]);
    let start = Instant::now();
    let mut upload = guest
        .write_file(WriteFile {
            path: path.to_owned(),
            ..WriteFile::default()
        })
        .await?;
    for _ in 0..megabytes * 1024 * 1024 / CHUNK {
        upload.write(chunk.clone()).await?;
    }
    upload.finish().await?;
    let speed = |elapsed: Duration| megabytes as f64 / elapsed.as_secs_f64();
    println!("write {megabytes} MB: {:.0} MB/s", speed(start.elapsed()));
    let start = Instant::now();
    let mut reader = guest
        .read_file(ReadFile {
            path: path.to_owned(),
            ..ReadFile::default()
        })
        .await?;
    while reader.next().await?.is_some() {}
    println!("read {megabytes} MB: {:.0} MB/s", speed(start.elapsed()));

    let start = Instant::now();
    let mut follow = guest
        .start_following(Start {
            argv: ["head", "-c", &format!("{megabytes}M"), "/dev/zero"]
                .map(str::to_owned)
                .to_vec(),
            ..run_true(EXECS)
        })
        .await?;
    while follow.next().await?.is_some() {}
    println!(
        "follow {megabytes} MB of output: {:.0} MB/s",
        speed(start.elapsed())
    );
    println!("at the end: {}", status(child.0.id())?);
    guest.shutdown(Duration::from_secs(1)).await?;
    Ok(())
}
