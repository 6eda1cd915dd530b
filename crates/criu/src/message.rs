//! What is said over the socket of `criu swrk`: protobuf messages, one per packet, with the fields
//! Cove uses. Tags and numbers are CRIU's.

/// A request, and the answer to a notification.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub options: Option<Options>,
    #[prost(bool, optional, tag = "3")]
    pub notify_success: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    Empty = 0,
    Dump = 1,
    Restore = 2,
    Notify = 6,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Options {
    /// A descriptor of the process that made the socket pair; -1: `images_dir` is a path.
    #[prost(int32, required, tag = "1")]
    pub images_dir_fd: i32,
    #[prost(string, optional, tag = "68")]
    pub images_dir: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(bool, optional, tag = "3")]
    pub leave_running: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub ext_unix_sk: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub tcp_established: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    pub file_locks: Option<bool>,
    #[prost(int32, optional, tag = "9")]
    pub log_level: Option<i32>,
    #[prost(string, optional, tag = "10")]
    pub log_file: Option<String>,
    #[prost(bool, optional, tag = "12")]
    pub notify_scripts: Option<bool>,
    #[prost(string, optional, tag = "13")]
    pub root: Option<String>,
    #[prost(int32, optional, tag = "17")]
    pub work_dir_fd: Option<i32>,
    #[prost(bool, optional, tag = "18")]
    pub link_remap: Option<bool>,
    #[prost(bool, optional, tag = "26")]
    pub rst_sibling: Option<bool>,
    #[prost(enumeration = "CgroupMode", optional, tag = "34")]
    pub manage_cgroups_mode: Option<i32>,
    #[prost(uint32, optional, tag = "35")]
    pub ghost_limit: Option<u32>,
    #[prost(string, repeated, tag = "37")]
    pub external: Vec<String>,
    #[prost(uint32, optional, tag = "38")]
    pub empty_ns: Option<u32>,
    #[prost(string, optional, tag = "44")]
    pub freeze_cgroup: Option<String>,
    #[prost(uint32, optional, tag = "45")]
    pub timeout: Option<u32>,
    #[prost(bool, optional, tag = "50")]
    pub orphan_pts_master: Option<bool>,
    #[prost(enumeration = "NetworkLock", optional, tag = "64")]
    pub network_lock: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CgroupMode {
    Ignore = 0,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum NetworkLock {
    Unset = 0,
    Skip = 3,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    #[prost(int32, required, tag = "1")]
    pub kind: i32,
    #[prost(bool, required, tag = "2")]
    pub success: bool,
    #[prost(message, optional, tag = "4")]
    pub restored: Option<Restored>,
    #[prost(message, optional, tag = "5")]
    pub notify: Option<Notify>,
    #[prost(int32, optional, tag = "7")]
    pub errno: Option<i32>,
    // Its field 9 is the first error of the log, which may quote a guest: it is not read.
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Restored {
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Notify {
    #[prost(string, optional, tag = "1")]
    pub script: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}
