//! An installation of its own for each test: a data directory, a server, an image of one static
//! program. All of it is gone when the test is, also when it failed.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use cove_engine::{Engine, EngineConfig, OpenTier};
use cove_isolation_container::ContainerConfig;
use cove_isolation_vm::VmConfig;
use tempfile::TempDir;

/// Far above what anything here needs, also on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);
const POOL_MB: &str = "8192";

/// Unmounted with the installation that lies on it.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount")
            .arg("--lazy")
            .arg(&self.0)
            .status()
            .ok();
    }
}

pub struct Cove {
    /// Before the directory that it is mounted in.
    disk: Option<Mounted>,
    dir: TempDir,
    /// Flags of `cove serve` besides the usual ones.
    flags: Vec<String>,
    /// Certificates the command line trusts instead of the system's.
    ca_file: Option<PathBuf>,
    listen: String,
    /// What the server's standard error is.
    stderr: Box<dyn Fn(&Path) -> Stdio>,
    server: Option<Child>,
}

/// The test's own log file, where nothing else was asked for.
fn log_file(scratch: &Path) -> Stdio {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(scratch.join("log"));
    log.unwrap().into()
}

/// A port nobody listens on.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Waits for a state of the world, and says which one when it does not come.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "waited in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}

pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_cove")
}

impl Cove {
    /// A server that is ready, with the image `busybox`.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with more flags for `cove serve`.
    pub fn start_with(flags: &[&str]) -> Self {
        Self::start_trusting(flags, None)
    }

    /// The same, for a server with a certificate.
    pub fn start_trusting(flags: &[&str], ca_file: Option<PathBuf>) -> Self {
        let mut cove = Self::prepare(flags, ca_file);
        cove.serve();
        cove.import_busybox();
        cove
    }

    /// The same, with another standard error for the server.
    pub fn start_logging_to(flags: &[&str], stderr: impl Fn(&Path) -> Stdio + 'static) -> Self {
        let mut cove = Self::prepare(flags, None);
        cove.stderr = Box::new(stderr);
        cove.serve();
        cove.import_busybox();
        cove
    }

    /// An installation whose server was not started yet.
    pub fn prepare(flags: &[&str], ca_file: Option<PathBuf>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("cove-e2e-")
            .tempdir_in("/var/tmp")
            .unwrap();
        Self {
            disk: None,
            dir,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            ca_file,
            listen: "127.0.0.1:0".into(),
            stderr: Box::new(log_file),
            server: None,
        }
    }

    /// Where the API listens from the next [`Cove::serve`] on.
    pub fn listen_at(&mut self, port: u16) {
        self.listen = format!("127.0.0.1:{port}");
    }

    /// A server with its data on a small filesystem of its own.
    pub fn start_on_disk(bytes: u64) -> Self {
        let mut cove = Self::prepare(&[], None);
        let file = cove.dir.path().join("disk");
        std::fs::File::create(&file)
            .and_then(|file| file.set_len(bytes))
            .unwrap();
        std::fs::create_dir(cove.data_dir()).unwrap();
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-m", "0", "-E", "nodiscard"])
            .arg(&file)
            .status();
        assert!(made.unwrap().success());
        let mounted = Command::new("mount")
            .args(["-o", "loop,discard"])
            .arg(&file)
            .arg(cove.data_dir())
            .status();
        assert!(mounted.unwrap().success());
        cove.disk = Some(Mounted(cove.data_dir()));
        cove.serve();
        cove.import_busybox();
        cove
    }

    /// For the next [`Cove::serve`].
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.flags
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A place for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the server over the data directory and waits until it can take work.
    pub fn serve(&mut self) {
        self.launch(&[]);
        self.wait_until_ready();
    }

    /// The same where the host is not well: waits until a command succeeds.
    pub fn serve_until(&mut self, command: &[&str]) {
        self.launch(&[]);
        self.wait_until(command);
    }

    /// What the program is started with as a server.
    pub fn arguments(&self) -> Vec<String> {
        let data_dir = self.data_dir().to_str().unwrap().to_owned();
        let usual = [
            "serve",
            "--listen",
            &self.listen,
            "--pool-mb",
            POOL_MB,
            "--data-dir",
            &data_dir,
        ];
        let usual = usual.map(str::to_owned).into_iter();
        usual.chain(self.flags.iter().cloned()).collect()
    }

    /// Starts the server and does not wait for anything.
    pub fn launch(&mut self, environment: &[(&str, &str)]) {
        // A login shell's limit of open files: the server must not depend on a better one.
        let child = Command::new("sh")
            .args(["-c", "ulimit -S -n 1024; exec \"$0\" \"$@\"", program()])
            .args(self.arguments())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stderr((self.stderr)(self.dir.path()))
            .spawn()
            .unwrap();
        self.server = Some(child);
    }

    pub fn wait_until_ready(&mut self) {
        self.wait_until(&["doctor"]);
    }

    fn wait_until(&mut self, command: &[&str]) {
        let started = Instant::now();
        loop {
            let ended = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none(),
                "the server ended: {ended:?}\n{}",
                self.log()
            );
            let doctor = self.command(command.iter().copied()).output().unwrap();
            if doctor.status.success() {
                return;
            }
            assert!(
                started.elapsed() < DEADLINE,
                "the server never became ready: {doctor:?}"
            );
            std::thread::sleep(PAUSE);
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Whether the supervisor has ended.
    pub fn has_ended(&mut self) -> bool {
        self.server.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    pub fn server_pid(&self) -> i32 {
        self.server.as_ref().unwrap().id().cast_signed()
    }

    /// The child of a role.
    pub fn role_pid(&self, role: &str) -> i32 {
        let parent = self.server_pid();
        wait_for("the role runs", || {
            let children =
                std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
            children.split_whitespace().find_map(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let is_role = line
                    .split(|byte| *byte == 0)
                    .any(|part| part == role.as_bytes());
                is_role.then(|| pid.parse().unwrap())
            })
        })
    }

    pub fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .env_remove("COVE_URL")
            .env_remove("COVE_API_KEY")
            .env("COVE_DATA_DIR", self.data_dir())
            .stdin(Stdio::null());
        if let Some(ca_file) = &self.ca_file {
            command.env("COVE_CA_FILE", ca_file);
        }
        command
    }

    pub fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.command(args).output().unwrap()
    }

    /// A command that must succeed; what it printed.
    pub fn ok<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> serde_json::Value {
        let mut args: Vec<_> = args.into_iter().collect();
        args.insert(0, "--json");
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// A raw connection on which the operator asked for `path`; for answers that go on and on.
    pub fn ask(&self, path: &str) -> std::net::TcpStream {
        let read = |name: &str| std::fs::read_to_string(self.data_dir().join(name)).unwrap();
        let (url, key) = (read("url"), read("root.key"));
        let address = url.trim().strip_prefix("http://").unwrap();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            key.trim()
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// The whole answer of `GET /readyz`, which needs no key.
    pub fn readyz(&self) -> String {
        let mut answer = String::new();
        let mut stream = self.ask("/readyz");
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A command with this input.
    pub fn fed<'a>(&self, args: impl IntoIterator<Item = &'a str>, input: &[u8]) -> Output {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeding = std::thread::spawn(move || stdin.write_all(&input).ok());
        let output = child.wait_with_output().unwrap();
        feeding.join().unwrap();
        output
    }

    pub fn sandbox(&self, name: &str) {
        self.ok([
            "create", "busybox", "--name", name, "--memory", "256M", "--disk", "1G",
        ]);
    }

    pub fn import_busybox(&self) {
        let root = self.dir.path().join("busybox");
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        std::fs::copy("/bin/busybox", root.join("bin/busybox"))
            .expect("the host has busybox-static");
        let applets = Command::new("/bin/busybox").arg("--list").output().unwrap();
        for applet in String::from_utf8(applets.stdout)
            .unwrap()
            .lines()
            .filter(|name| *name != "busybox")
        {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        self.ok(["image", "import", "busybox", root.to_str().unwrap()]);
    }

    /// Ends the server as a service manager would.
    pub fn stop(&mut self) {
        let Some(mut child) = self.server.take() else {
            return;
        };
        signal(child.id().cast_signed(), rustix::process::Signal::TERM);
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if started.elapsed() > DEADLINE {
                child.kill().ok();
                child.wait().ok();
                panic!("the server did not end\n{}", self.log());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends the supervisor without a word.
    pub fn kill_server(&mut self) {
        let mut child = self.server.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

pub fn signal(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        rustix::process::kill_process(pid, signal).ok();
    }
}

fn print_reversed<'a>(title: &str, lines: impl Iterator<Item = &'a str>) {
    eprintln!("{title}");
    for line in lines.collect::<Vec<_>>().iter().rev() {
        eprintln!("  {line}");
    }
}

/// How the log tells of a system call that the control side is not allowed.
const REFUSED_CALL: &str = "was refused a system call";

impl Drop for Cove {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            // What went wrong is often long before the end, and requests fill the lines in between.
            let troubles = log
                .lines()
                .rev()
                .filter(|line| !line.contains(" INFO ") && !line.contains(": request failed "));
            print_reversed("the server's last troubles", troubles.take(60));
            print_reversed("the server's log ends with", log.lines().rev().take(30));
        }
        if let Some(mut child) = self.server.take() {
            signal(child.id().cast_signed(), rustix::process::Signal::TERM);
            let started = Instant::now();
            while child.try_wait().is_ok_and(|ended| ended.is_none()) {
                if started.elapsed() > DEADLINE {
                    child.kill().ok();
                    child.wait().ok();
                }
                std::thread::sleep(PAUSE);
            }
        }
        // Whatever a test did, the list of calls that the control side leaves itself must have sufficed.
        let refused = self.log().contains(REFUSED_CALL) && !std::thread::panicking();
        let log = self.log();
        let engine = self.data_dir().join("engine");
        if !engine.exists() {
            return;
        }
        // What a killed server left running goes with its engine.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let config = EngineConfig::new(engine);
                let container = ContainerConfig {
                    warm: 0,
                    ..ContainerConfig::default()
                };
                let started = Instant::now();
                loop {
                    let tiers: Vec<Box<dyn OpenTier>> =
                        vec![Box::new(container.clone()), Box::new(VmConfig::default())];
                    match Engine::open(config.clone(), tiers).await {
                        Ok(engine) => {
                            return engine.destroy().await.map_err(|error| error.to_string());
                        }
                        // The killed server's runner may still be on its way out.
                        Err(error) if started.elapsed() > DEADLINE => return Err(error.to_string()),
                        Err(_) => tokio::time::sleep(PAUSE).await,
                    }
                }
            })
        });
        match removed.join() {
            Ok(Ok(())) => {}
            other => eprintln!("the installation could not be removed: {other:?}"),
        }
        assert!(!refused, "a system call is missing in the list:\n{log}");
    }
}
