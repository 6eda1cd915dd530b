//! What a sandbox uses, and where it listens.

#[derive(Clone, PartialEq, prost::Message)]
pub struct Ports {
    #[prost(message, repeated, tag = "1")]
    pub ports: Vec<Port>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Port {
    #[prost(uint32, tag = "1")]
    pub port: u32,
    #[prost(string, tag = "2")]
    pub address: String,
    /// Pid and name of a process holding it, when one could be found.
    #[prost(int32, tag = "3")]
    pub pid: i32,
    #[prost(string, tag = "4")]
    pub process: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Metrics {
    #[prost(uint64, tag = "1")]
    pub cpu_usec: u64,
    #[prost(uint64, tag = "2")]
    pub memory_bytes: u64,
    #[prost(uint64, tag = "3")]
    pub memory_peak_bytes: u64,
    #[prost(uint64, tag = "4")]
    pub memory_limit_bytes: u64,
    #[prost(uint64, tag = "5")]
    pub memory_cache_bytes: u64,
    #[prost(uint64, tag = "6")]
    pub oom_kills: u64,
    #[prost(uint32, tag = "7")]
    pub processes: u32,
    #[prost(uint32, tag = "8")]
    pub threads: u32,
    #[prost(uint64, tag = "9")]
    pub disk_used_bytes: u64,
    #[prost(uint64, tag = "10")]
    pub network_received_bytes: u64,
    #[prost(uint64, tag = "11")]
    pub network_sent_bytes: u64,
    /// Processes of the guest's table that have not exited.
    #[prost(uint32, tag = "12")]
    pub running_commands: u32,
    /// Calls open now, this one not counted.
    #[prost(uint32, tag = "13")]
    pub open_calls: u32,
    #[prost(uint32, tag = "14")]
    pub cpus: u32,
}
