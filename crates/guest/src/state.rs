//! What all calls share. Everything here belongs to the one event loop thread.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

use crate::figures::Figures;
use crate::process::table::Table;
use crate::quiesce::Quiet;
use crate::refusals::Refusals;
use crate::services::Services;
use crate::standstill::Standstill;

pub struct State {
    pub table: Table,
    pub figures: Figures,
    /// Calls open now.
    pub calls: Cell<u32>,
    /// Those of them that are file calls.
    pub file_calls: Cell<u32>,
    /// A shutdown has begun: nothing new is started.
    pub stopping: Cell<bool>,
    /// Told whenever children were reaped.
    pub reaped: Notify,
    /// Told when the program is to end.
    pub finished: Notify,
    pub quiet: Quiet,
    pub refusals: Refusals,
    pub services: Services,
    pub open_files: Cell<libc::rlimit>,
    pub started_unix_ms: i64,
    /// What the sandbox was called when somebody last looked.
    pub hostname: RefCell<String>,
    /// The sandbox has a kernel of its own.
    pub own_kernel: bool,
    /// Where output is kept over a stop; see [`crate::process::kept`].
    pub kept: Option<PathBuf>,
    /// This is PID 1 of a virtual machine, whose programs stand still while it is captured.
    pub standstill: Option<Standstill>,
}

impl State {
    pub fn new(
        root_files: PathBuf,
        own_kernel: bool,
        kept: Option<PathBuf>,
        resolver: Option<Ipv4Addr>,
        standstill: Option<Standstill>,
    ) -> Rc<Self> {
        Rc::new(Self {
            table: Table::default(),
            figures: Figures::new(root_files),
            calls: Cell::new(0),
            file_calls: Cell::new(0),
            stopping: Cell::new(false),
            reaped: Notify::new(),
            finished: Notify::new(),
            quiet: Quiet::default(),
            refusals: Refusals::new(resolver),
            services: Services::default(),
            open_files: Cell::new(crate::setup::raise_open_files()),
            started_unix_ms: unix_ms(),
            hostname: RefCell::new(hostname()),
            own_kernel,
            kept,
            standstill,
        })
    }
}

pub fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

pub fn unix_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}
