//! The messages themselves. Tags are forever: never reuse one, only add.

use bytes::Bytes;

mod figures;
mod service;

pub use figures::{Metrics, Port, Ports};
pub use service::{
    Environment, Restart, Service, ServiceRef, ServiceState, ServiceStatus, Services, StartService,
};

/// First frame of a call, host to guest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Open {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(
        oneof = "Request",
        tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 31, 32, 33, 34"
    )]
    pub request: Option<Request>,
    /// What the guest must have to take the request; see [`crate::needs`]. Guests of version 1 do not look at it.
    #[prost(string, repeated, tag = "27")]
    pub needs: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Request {
    #[prost(message, tag = "2")]
    Info(Empty),
    #[prost(message, tag = "3")]
    Start(Start),
    #[prost(message, tag = "4")]
    Output(OutputFrom),
    #[prost(message, tag = "5")]
    Stdin(ProcessRef),
    #[prost(message, tag = "6")]
    Signal(Signal),
    #[prost(message, tag = "7")]
    Resize(Resize),
    #[prost(message, tag = "8")]
    Processes(Empty),
    #[prost(message, tag = "9")]
    Process(ProcessRef),
    #[prost(message, tag = "10")]
    ReadFile(ReadFile),
    #[prost(message, tag = "11")]
    WriteFile(WriteFile),
    #[prost(message, tag = "12")]
    Stat(PathRequest),
    #[prost(message, tag = "13")]
    List(ListDir),
    #[prost(message, tag = "14")]
    MakeDir(MakeDir),
    #[prost(message, tag = "15")]
    Move(Move),
    #[prost(message, tag = "16")]
    Remove(Remove),
    #[prost(message, tag = "17")]
    SetAttributes(SetAttributes),
    #[prost(message, tag = "18")]
    ArchiveOut(ArchiveOut),
    #[prost(message, tag = "19")]
    ArchiveIn(ArchiveIn),
    #[prost(message, tag = "20")]
    Watch(Watch),
    #[prost(message, tag = "21")]
    Ports(Empty),
    #[prost(message, tag = "22")]
    Metrics(Empty),
    #[prost(message, tag = "23")]
    ConnectPort(ConnectPort),
    #[prost(message, tag = "24")]
    Shutdown(Shutdown),
    #[prost(message, tag = "25")]
    Quiesce(Quiesce),
    /// The sandbox was restored, maybe as a copy under another name and with other limits: make
    /// true what tells them.
    #[prost(message, tag = "26")]
    Refresh(Empty),
    /// Everything that was written is on the disk when the answer comes.
    #[prost(message, tag = "28")]
    Flush(Empty),
    /// What was refused because the network is off, since this was last asked. The guest forgets it.
    #[prost(message, tag = "29")]
    TakeRefusals(Empty),
    /// A virtual machine goes on after a capture or a restore: what stood still in it is made true before its programs
    /// run again.
    #[prost(message, tag = "30")]
    Renew(Renew),
    /// Answered with [`ReplyKind::Services`], which then has this one.
    #[prost(message, tag = "31")]
    StartService(StartService),
    /// Every service.
    #[prost(message, tag = "32")]
    Services(Empty),
    /// Ends a service for good. `Done` once its process has ended.
    #[prost(message, tag = "33")]
    RemoveService(ServiceRef),
    /// What commands of this sandbox get now. Services on its disk that were not started yet are started before the
    /// answer comes; those that run get it at their next start.
    #[prost(message, tag = "34")]
    BeginServices(Environment),
}

/// Later frames of a call, host to guest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Input {
    #[prost(oneof = "InputKind", tags = "1, 2, 3")]
    pub kind: Option<InputKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum InputKind {
    #[prost(bytes = "bytes", tag = "1")]
    Data(Bytes),
    /// No more data will come. Without it a closed stream means the caller gave up.
    #[prost(message, tag = "2")]
    End(Empty),
    /// Answered with `Done` once everything before it was handed over; the call goes on.
    #[prost(message, tag = "3")]
    Flush(Empty),
}

/// Every frame from guest to host.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reply {
    #[prost(
        oneof = "ReplyKind",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17"
    )]
    pub kind: Option<ReplyKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ReplyKind {
    #[prost(message, tag = "1")]
    Error(Error),
    /// The call did what was asked and has nothing more to say.
    #[prost(message, tag = "2")]
    Done(Done),
    #[prost(message, tag = "3")]
    Info(Info),
    #[prost(message, tag = "4")]
    Started(Process),
    #[prost(message, tag = "5")]
    Output(Output),
    #[prost(message, tag = "6")]
    Exit(Exit),
    #[prost(message, tag = "7")]
    Processes(Processes),
    #[prost(message, tag = "8")]
    Process(Process),
    #[prost(message, tag = "9")]
    File(FileInfo),
    #[prost(bytes = "bytes", tag = "10")]
    Data(Bytes),
    #[prost(message, tag = "11")]
    Listing(Listing),
    #[prost(message, tag = "12")]
    Change(Change),
    #[prost(message, tag = "13")]
    Ports(Ports),
    #[prost(message, tag = "14")]
    Metrics(Metrics),
    /// The guest is about to be captured: every call ends, callers come back by id and offset.
    #[prost(message, tag = "15")]
    Quiesce(Quiesced),
    /// What was refused because the network is off. In a stream of output at most once, and only in that of a
    /// [`Start::report_refusals`] and in those that take it up again.
    #[prost(message, tag = "16")]
    Refusals(Refusals),
    #[prost(message, tag = "17")]
    Services(Services),
}

/// What was refused because the sandbox has no network.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Refusals {
    #[prost(message, repeated, tag = "1")]
    pub names: Vec<RefusedName>,
    /// Queries for further names, which are not kept.
    #[prost(uint64, tag = "2")]
    pub more: u64,
    /// Attempts to reach an address, as the kernel counts them: nothing routes there.
    #[prost(uint64, tag = "3")]
    pub addresses: u64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RefusedName {
    /// Without the last dot; bytes that are no part of host names are written `\\DDD`, as in zone files.
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub queries: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// End every other call, because the sandbox is about to be captured. Streams are asked to come back,
/// short calls finish, long ones are waited for. After `Done` the guest hangs up and takes no new call
/// until the host sends it SIGUSR1.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Quiesce {
    /// How long open calls are waited for.
    #[prost(uint64, tag = "1")]
    pub wait_ms: u64,
}

/// What a virtual machine cannot know when it goes on: the time, what is random, and who it is now.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Renew {
    /// The time of day.
    #[prost(uint64, tag = "1")]
    pub unix_nanos: u64,
    /// For the kernel's random numbers. A copy would else have those of its sibling.
    #[prost(bytes = "bytes", tag = "2")]
    pub seed: Bytes,
    /// Absent: the machine is what it was.
    #[prost(message, optional, tag = "3")]
    pub identity: Option<MachineIdentity>,
}

/// Who a restored machine is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MachineIdentity {
    #[prost(string, tag = "1")]
    pub hostname: String,
    /// Of another sandbox than the one it was captured of, it gets the boot id.
    #[prost(string, tag = "2")]
    pub sandbox: String,
    #[prost(string, tag = "3")]
    pub boot_id: String,
    /// How many processes its programs may have.
    #[prost(uint64, tag = "4")]
    pub pids: u64,
}

/// How a stream ends when the guest is about to be captured.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Quiesced {
    /// Bytes of input taken; what was sent beyond must be sent again.
    #[prost(uint64, tag = "1")]
    pub taken: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Done {
    /// Bytes taken in by a write or an archive.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    #[prost(uint64, tag = "2")]
    pub entries: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Error {
    #[prost(enumeration = "ErrorCode", tag = "1")]
    pub code: i32,
    /// For a person; bounded by the guest, and by the host once more.
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ErrorCode {
    Internal = 0,
    /// The request makes no sense, whatever the state.
    Invalid = 1,
    NotFound = 2,
    AlreadyExists = 3,
    PermissionDenied = 4,
    NotADirectory = 5,
    IsADirectory = 6,
    NotEmpty = 7,
    DiskFull = 8,
    TooManyProcesses = 9,
    /// The process is over, or never had what was asked for (a terminal, an open input).
    Gone = 10,
    Unsupported = 11,
    VersionMismatch = 12,
    ConnectionRefused = 13,
    /// A named limit of the guest was reached.
    Limit = 14,
    NoSuchUser = 15,
    CommandNotFound = 16,
    /// The guest lacks something that the request needs.
    MissingFeature = 17,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Info {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(uint32, tag = "2")]
    pub oldest_supported: u32,
    #[prost(string, tag = "3")]
    pub build: String,
    #[prost(int64, tag = "4")]
    pub started_unix_ms: i64,
    #[prost(string, tag = "5")]
    pub hostname: String,
    /// What this guest has. One of version 1 names nothing and has [`crate::needs::BASELINE`].
    #[prost(string, repeated, tag = "6")]
    pub features: Vec<String>,
}

/// Start a command. With `follow` the same call goes on as `Output` from offset 0.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Start {
    /// Chosen by the host, so that a retry finds the first try (`AlreadyExists`). `prc_…`
    #[prost(string, tag = "1")]
    pub id: String,
    /// Program and arguments; or empty, and then `shell` is given to the user's login shell.
    #[prost(string, repeated, tag = "2")]
    pub argv: Vec<String>,
    #[prost(string, tag = "3")]
    pub shell: String,
    /// Empty: the user's home, else `/`.
    #[prost(string, tag = "4")]
    pub cwd: String,
    /// `KEY=VALUE`, over the guest's own defaults (PATH, HOME, USER, LOGNAME, SHELL, LANG, TERM).
    #[prost(string, repeated, tag = "5")]
    pub env: Vec<String>,
    /// Name or number, with `:group` if wanted; empty: root.
    #[prost(string, tag = "6")]
    pub user: String,
    #[prost(message, optional, tag = "7")]
    pub pty: Option<PtySize>,
    /// Keep standard input open for `Stdin` calls; otherwise it is `/dev/null`, or `input` if given.
    #[prost(bool, tag = "8")]
    pub stdin_open: bool,
    /// Given to the command as its whole standard input.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub input: Option<Bytes>,
    /// 0: none. At its end the whole process group gets SIGTERM, then SIGKILL.
    #[prost(uint64, tag = "10")]
    pub timeout_ms: u64,
    #[prost(bool, tag = "11")]
    pub follow: bool,
    /// Bytes kept of each stream; 0: the guest's default. Bounded by the guest.
    #[prost(uint64, tag = "12")]
    pub ring_bytes: u64,
    /// End the process group when the connection that started it closes (foreground calls that
    /// nobody attaches to again). Needs `follow`.
    #[prost(bool, tag = "13")]
    pub kill_on_disconnect: bool,
    /// For a guest that does not know the fields below; see [`crate::identity`].
    #[prost(string, tag = "14")]
    pub mark: String,
    /// Make `cwd` for the user when it is missing: it is where the sandbox or its image wants commands
    /// to run, not what this call asks for.
    #[prost(bool, tag = "15")]
    pub make_cwd: bool,
    /// What it is; the guest only keeps it.
    #[prost(enumeration = "ProcessKind", tag = "16")]
    pub kind: i32,
    /// Which part of Cove starts it; see [`crate::identity::owner`].
    #[prost(string, tag = "17")]
    pub owner: String,
    /// The caller's own. Shown in listings; does not change what runs.
    #[prost(string, tag = "18")]
    pub tag: String,
    /// Say in the same call what is refused because the network is off.
    #[prost(bool, tag = "19")]
    pub report_refusals: bool,
}

/// What a process is, for whoever decides about its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ProcessKind {
    /// The host or the guest is older than this field.
    Unknown = 0,
    /// Somebody waits for its end, whether or not a connection is open. Its sandbox is never idle.
    Command = 1,
    /// An interactive shell or program. Idle when nobody is attached.
    Terminal = 2,
    CodeContext = 3,
    /// A shell that a dialect keeps for the commands of a session.
    DialectSession = 4,
    /// Runs in the background; nobody waits for its end.
    Service = 5,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PtySize {
    #[prost(uint32, tag = "1")]
    pub cols: u32,
    #[prost(uint32, tag = "2")]
    pub rows: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessRef {
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Replay from the given offsets, then follow live until exit if asked to.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OutputFrom {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(uint64, tag = "2")]
    pub stdout_from: u64,
    #[prost(uint64, tag = "3")]
    pub stderr_from: u64,
    #[prost(bool, tag = "4")]
    pub follow: bool,
    /// Take up the place that a capture interrupted: if it was the foreground follower's, nothing is
    /// dropped for it again.
    #[prost(bool, tag = "5")]
    pub resume: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Channel {
    Stdout = 0,
    Stderr = 1,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Output {
    /// A pty has only `Stdout`.
    #[prost(enumeration = "Channel", tag = "1")]
    pub channel: i32,
    /// Absolute offset of the first byte of `data` in the stream since the process started.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub data: Bytes,
    /// Bytes between what was asked for and `offset` that the ring no longer had.
    #[prost(uint64, tag = "4")]
    pub dropped: u64,
    /// When parts of `data` came, in order. The first is of the first byte, where that is known. Guests before these said
    /// nothing of it.
    #[prost(message, repeated, tag = "5")]
    pub times: Vec<OutputTime>,
}

/// What came at this offset and up to the next such mark came at this time, as far as the guest keeps it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OutputTime {
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    #[prost(int64, tag = "2")]
    pub unix_ms: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Exit {
    /// 128 + signal when killed by one, as shells do.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// 0: it exited by itself.
    #[prost(int32, tag = "2")]
    pub signal: i32,
    #[prost(bool, tag = "3")]
    pub oom: bool,
    #[prost(bool, tag = "4")]
    pub timed_out: bool,
    #[prost(uint64, tag = "5")]
    pub duration_ms: u64,
    /// Memory limit and peak of the sandbox, given when `oom`.
    #[prost(uint64, tag = "6")]
    pub memory_limit_bytes: u64,
    #[prost(uint64, tag = "7")]
    pub memory_peak_bytes: u64,
    #[prost(uint64, tag = "8")]
    pub stdout_bytes: u64,
    #[prost(uint64, tag = "9")]
    pub stderr_bytes: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Signal {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(int32, tag = "2")]
    pub signal: i32,
    /// To the process alone instead of its whole group.
    #[prost(bool, tag = "3")]
    pub only_leader: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Resize {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub size: Option<PtySize>,
}

/// Comes in several frames when long, ended by `Done`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Processes {
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Process {
    #[prost(string, tag = "1")]
    pub id: String,
    /// The pid inside.
    #[prost(int32, tag = "2")]
    pub pid: i32,
    #[prost(string, repeated, tag = "3")]
    pub argv: Vec<String>,
    #[prost(string, tag = "4")]
    pub cwd: String,
    #[prost(string, tag = "5")]
    pub user: String,
    #[prost(message, optional, tag = "6")]
    pub pty: Option<PtySize>,
    #[prost(int64, tag = "7")]
    pub started_unix_ms: i64,
    #[prost(message, optional, tag = "8")]
    pub exit: Option<Exit>,
    #[prost(uint64, tag = "9")]
    pub stdout_bytes: u64,
    #[prost(uint64, tag = "10")]
    pub stderr_bytes: u64,
    /// What the start said for guests that do not know the last three fields.
    #[prost(string, tag = "11")]
    pub mark: String,
    /// Calls attached to its output now.
    #[prost(uint32, tag = "12")]
    pub viewers: u32,
    /// Of the whole process group, from /proc: CPU used and resident memory now.
    #[prost(uint64, tag = "13")]
    pub cpu_ms: u64,
    #[prost(uint64, tag = "14")]
    pub memory_bytes: u64,
    /// Oldest offsets the rings still have.
    #[prost(uint64, tag = "15")]
    pub stdout_oldest: u64,
    #[prost(uint64, tag = "16")]
    pub stderr_oldest: u64,
    /// As the start said; read them with [`crate::identity::Identity::of`].
    #[prost(enumeration = "ProcessKind", tag = "17")]
    pub kind: i32,
    #[prost(string, tag = "18")]
    pub owner: String,
    #[prost(string, tag = "19")]
    pub tag: String,
    /// The network was off when it started, and the guest sees what is refused because of that.
    #[prost(bool, tag = "20")]
    pub sees_refusals: bool,
}

/// File calls act as `user` (empty: root), with that user's rights.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadFile {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// 0: to the end.
    #[prost(uint64, tag = "4")]
    pub length: u64,
    /// As for [`WriteFile`].
    #[prost(bool, tag = "5")]
    pub root_links_only: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WriteFile {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    /// Absent: 0644 for a new file, an existing one keeps its own.
    #[prost(uint32, optional, tag = "3")]
    pub mode: Option<u32>,
    /// `user[:group]`, names or numbers; empty: the acting user, an existing file keeps its own.
    #[prost(string, tag = "4")]
    pub owner: String,
    /// Make missing parent directories.
    #[prost(bool, tag = "5")]
    pub parents: bool,
    /// Write at an offset into the existing file instead of replacing it atomically.
    #[prost(uint64, optional, tag = "6")]
    pub at: Option<u64>,
    #[prost(bool, tag = "7")]
    pub append: bool,
    /// Flush to the disk before answering.
    #[prost(bool, tag = "8")]
    pub sync: bool,
    /// Follow only links that nobody but root can have placed, and refuse the others. For paths below which another
    /// user may write, when root reads or writes there for a caller.
    #[prost(bool, tag = "9")]
    pub root_links_only: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PathRequest {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    /// Describe what a symlink points to instead of the link.
    #[prost(bool, tag = "3")]
    pub follow: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListDir {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    /// 0 and 1: this directory only.
    #[prost(uint32, tag = "3")]
    pub depth: u32,
    /// Entries at most; 0: the guest's own limit. The rest is reported by `truncated`.
    #[prost(uint32, tag = "4")]
    pub limit: u32,
}

/// Listings come in several frames when long, ended by `Done`; `truncated` counts only in the last.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Listing {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<FileInfo>,
    #[prost(bool, tag = "2")]
    pub truncated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FileType {
    Other = 0,
    File = 1,
    Directory = 2,
    Symlink = 3,
    Socket = 4,
    Fifo = 5,
    Device = 6,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct FileInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(enumeration = "FileType", tag = "3")]
    pub r#type: i32,
    #[prost(uint64, tag = "4")]
    pub size: u64,
    #[prost(uint32, tag = "5")]
    pub mode: u32,
    #[prost(uint32, tag = "6")]
    pub uid: u32,
    #[prost(uint32, tag = "7")]
    pub gid: u32,
    #[prost(string, tag = "8")]
    pub owner: String,
    #[prost(string, tag = "9")]
    pub group: String,
    #[prost(int64, tag = "10")]
    pub modified_unix_ms: i64,
    #[prost(string, tag = "11")]
    pub symlink_target: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MakeDir {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    #[prost(uint32, optional, tag = "3")]
    pub mode: Option<u32>,
    #[prost(bool, tag = "4")]
    pub parents: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Move {
    #[prost(string, tag = "1")]
    pub from: String,
    #[prost(string, tag = "2")]
    pub to: String,
    #[prost(string, tag = "3")]
    pub user: String,
    #[prost(bool, tag = "4")]
    pub replace: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Remove {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    #[prost(bool, tag = "3")]
    pub recursive: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SetAttributes {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    #[prost(uint32, optional, tag = "3")]
    pub mode: Option<u32>,
    /// `user[:group]`; empty: unchanged.
    #[prost(string, tag = "4")]
    pub owner: String,
}

/// The tree under `path` as tar: `Data` frames, then `Done`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ArchiveOut {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
}

/// Unpack the tar in the `Input` frames below `path`, never outside of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ArchiveIn {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    /// Keep owners from the archive (needs root inside); otherwise all is the acting user's.
    #[prost(bool, tag = "3")]
    pub keep_owner: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Watch {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    pub user: String,
    #[prost(bool, tag = "3")]
    pub recursive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ChangeKind {
    /// The watch stands; everything after this moment is reported.
    Ready = 0,
    Created = 1,
    Written = 2,
    Removed = 3,
    Renamed = 4,
    Attributes = 5,
    /// Changes came faster than they could be reported; look again.
    Overflow = 6,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Change {
    #[prost(enumeration = "ChangeKind", tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub path: String,
    /// Where a rename came from, when both ends were watched.
    #[prost(string, tag = "3")]
    pub from: String,
    #[prost(bool, tag = "4")]
    pub directory: bool,
}

/// Connect to a TCP port inside (loopback first, v4 then v6). After `Done` the stream carries
/// `Input` and `Reply::Data` frames until both sides ended: the host with `End`, the guest with a
/// second `Done`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ConnectPort {
    #[prost(uint32, tag = "1")]
    pub port: u32,
}

/// End everything: SIGTERM to all, SIGKILL after the grace time, sync, then PID 1 exits.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Shutdown {
    #[prost(uint64, tag = "1")]
    pub grace_ms: u64,
}
