//! Figures about requests, in the text form Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;

use axum::http::Method;
use cove_api::route::Operation;
use cove_control::{HostReport, ObjectFigures, Operations, TableSize};

/// Upper bounds of the duration histogram, in milliseconds.
const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 1000, 5000, 30_000, 300_000];
/// Routes of dialects that are counted apart. Patterns are fixed in the program and so are the methods;
/// this is far above all of them together.
const DIALECT_ROUTES_MAX: usize = 4096;
/// Methods that routes of dialects are for. Everything else a caller may come up with is one.
const METHODS: [Method; 6] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];
const OTHER_METHOD: &str = "other";
/// Statuses by their first digit, 1xx to 5xx.
const CLASSES: usize = 5;

#[derive(Default)]
struct PerOperation {
    by_class: [AtomicU64; CLASSES],
    buckets: [AtomicU64; BUCKETS_MS.len()],
    count: AtomicU64,
    total_us: AtomicU64,
}

/// What was asked for.
#[derive(Debug, Clone)]
pub enum Asked {
    /// An operation of the contract.
    Operation(Operation),
    /// A route of a dialect, as its method and pattern: see [`Asked::dialect`].
    Dialect(String),
    /// No route at all.
    Nothing,
}

impl Asked {
    pub fn dialect(method: &Method, pattern: &str) -> Self {
        let known = METHODS.contains(method);
        let method = if known { method.as_str() } else { OTHER_METHOD };
        Self::Dialect(format!("{method} {pattern}"))
    }

    /// For the log and as a label.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Operation(operation) => operation.as_str(),
            Self::Dialect(route) => route,
            Self::Nothing => "",
        }
    }
}

impl PerOperation {
    fn count(&self, status: u16, elapsed: Duration) {
        let class = usize::from(status / 100).clamp(1, CLASSES) - 1;
        self.by_class[class].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.total_us.fetch_add(
            u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            Relaxed,
        );
        if let Some(at) = BUCKETS_MS
            .iter()
            .position(|bound| elapsed <= Duration::from_millis(*bound))
        {
            self.buckets[at].fetch_add(1, Relaxed);
        }
    }
}

pub struct Metrics {
    operations: Vec<PerOperation>,
    /// By what is shown of the route.
    dialects: RwLock<BTreeMap<String, Arc<PerOperation>>>,
    /// Requests that matched no route.
    unmatched: AtomicU64,
    in_flight: AtomicI64,
    pub connections: AtomicI64,
    pub streams: AtomicI64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: Operation::ALL
                .iter()
                .map(|_| PerOperation::default())
                .collect(),
            dialects: RwLock::default(),
            unmatched: AtomicU64::new(0),
            in_flight: AtomicI64::new(0),
            connections: AtomicI64::new(0),
            streams: AtomicI64::new(0),
        }
    }
}

/// What the server holds besides requests.
#[derive(Debug, Default)]
pub struct Own {
    pub log_lines_lost: Option<u64>,
    pub store: Operations,
    pub tables: Vec<TableSize>,
    /// Bytes of requests and answers that are paid for.
    pub held_bytes: usize,
    /// Where there is object storage.
    pub objects: Option<ObjectFigures>,
}

/// A request that has begun; give it back to [`Metrics::end`].
#[must_use]
pub struct Begun(());

impl Metrics {
    pub fn begin(&self) -> Begun {
        self.in_flight.fetch_add(1, Relaxed);
        Begun(())
    }

    pub fn end(&self, _: Begun, asked: &Asked, status: u16, elapsed: Duration) {
        self.in_flight.fetch_sub(1, Relaxed);
        match asked {
            Asked::Operation(operation) => {
                if let Some(of) = self.operations.get(*operation as usize) {
                    of.count(status, elapsed);
                }
            }
            Asked::Dialect(route) => match self.dialect(route) {
                Some(of) => of.count(status, elapsed),
                None => _ = self.unmatched.fetch_add(1, Relaxed),
            },
            Asked::Nothing => _ = self.unmatched.fetch_add(1, Relaxed),
        }
    }

    fn dialect(&self, route: &str) -> Option<Arc<PerOperation>> {
        let known = self.dialects.read();
        if let Some(of) = known.get(route) {
            return Some(Arc::clone(of));
        }
        drop(known);
        let mut known = self.dialects.write();
        if known.len() >= DIALECT_ROUTES_MAX && !known.contains_key(route) {
            return None;
        }
        Some(Arc::clone(known.entry(route.to_owned()).or_default()))
    }

    pub fn render(&self, own: &Own, host: Option<&HostReport>) -> String {
        let mut out = String::new();
        own_figures(&mut out, own);
        if let Some(objects) = &own.objects {
            object_figures(&mut out, objects);
        }
        if let Some(lost) = own.log_lines_lost {
            let name = "cove_log_lines_lost_total";
            head(
                &mut out,
                name,
                "counter",
                "Log lines that could not be written",
            );
            line(&mut out, name, "", lost as f64);
        }
        gauge(
            &mut out,
            "cove_http_requests_in_flight",
            "Requests being answered",
            self.in_flight.load(Relaxed) as f64,
        );
        gauge(
            &mut out,
            "cove_http_connections",
            "Open connections",
            self.connections.load(Relaxed) as f64,
        );
        gauge(
            &mut out,
            "cove_http_streams",
            "Live answers under way",
            self.streams.load(Relaxed) as f64,
        );
        head(
            &mut out,
            "cove_http_unmatched_total",
            "counter",
            "Requests that matched no route",
        );
        line(
            &mut out,
            "cove_http_unmatched_total",
            "",
            self.unmatched.load(Relaxed) as f64,
        );

        head(
            &mut out,
            "cove_http_requests_total",
            "counter",
            "Requests answered",
        );
        self.each(|name, of| {
            for (class, count) in of.by_class.iter().enumerate() {
                let count = count.load(Relaxed);
                if count > 0 {
                    let labels = format!("operation=\"{name}\",status=\"{}xx\"", class + 1);
                    line(&mut out, "cove_http_requests_total", &labels, count as f64);
                }
            }
        });
        head(
            &mut out,
            "cove_http_request_seconds",
            "histogram",
            "Time to the response headers",
        );
        self.each(|name, of| {
            let mut below = 0;
            for (bound, bucket) in BUCKETS_MS.iter().zip(&of.buckets) {
                below += bucket.load(Relaxed);
                let labels = format!("operation=\"{name}\",le=\"{}\"", *bound as f64 / 1e3);
                line(
                    &mut out,
                    "cove_http_request_seconds_bucket",
                    &labels,
                    below as f64,
                );
            }
            let count = of.count.load(Relaxed) as f64;
            line(
                &mut out,
                "cove_http_request_seconds_bucket",
                &format!("operation=\"{name}\",le=\"+Inf\""),
                count,
            );
            let labels = format!("operation=\"{name}\"");
            let total = of.total_us.load(Relaxed) as f64 / 1e6;
            line(&mut out, "cove_http_request_seconds_sum", &labels, total);
            line(&mut out, "cove_http_request_seconds_count", &labels, count);
        });
        if let Some(host) = host {
            host_figures(&mut out, host);
        }
        out
    }

    fn each(&self, mut visit: impl FnMut(&str, &PerOperation)) {
        for (operation, of) in Operation::ALL.iter().zip(&self.operations) {
            if of.count.load(Relaxed) > 0 {
                visit(operation.as_str(), of);
            }
        }
        let dialects = self.dialects.read();
        for (route, of) in dialects.iter() {
            visit(route, of);
        }
    }
}

fn own_figures(out: &mut String, own: &Own) {
    let operations = "cove_store_operations_total";
    let help = "Database operations";
    head(out, operations, "counter", help);
    line(out, operations, "kind=\"read\"", own.store.reads as f64);
    line(out, operations, "kind=\"write\"", own.store.writes as f64);
    let held = own.held_bytes as f64;
    let help = "Bytes of requests and answers held in memory";
    gauge(out, "cove_held_bytes", help, held);
    let tables = "cove_table_entries";
    head(out, tables, "gauge", "Entries of the server's own tables");
    for (name, size) in &own.tables {
        line(out, tables, &format!("table=\"{name}\""), *size as f64);
    }
}

fn object_figures(out: &mut String, of: &ObjectFigures) {
    let gauges = [
        (
            "cove_objects_snapshots",
            "Snapshots in object storage",
            of.totals.stored,
        ),
        (
            "cove_objects_uploading",
            "Snapshots on their way to object storage",
            of.totals.uploading,
        ),
        (
            "cove_objects_bytes",
            "Bytes in object storage that snapshots use",
            of.totals.bytes,
        ),
        (
            "cove_objects_condemned",
            "Objects that wait for deletion from object storage",
            of.totals.condemned,
        ),
    ];
    for (name, help, value) in gauges {
        gauge(out, name, help, value as f64);
    }
    let counters = [
        (
            "cove_objects_uploads_total",
            "Snapshots uploaded",
            of.uploads,
        ),
        (
            "cove_objects_upload_failures_total",
            "Uploads that failed and are retried",
            of.upload_failures,
        ),
        (
            "cove_objects_sent_bytes_total",
            "Bytes written to object storage",
            of.sent_bytes,
        ),
        (
            "cove_objects_fetches_total",
            "Snapshots fetched back",
            of.fetches,
        ),
        (
            "cove_objects_fetch_failures_total",
            "Fetches that failed",
            of.fetch_failures,
        ),
        (
            "cove_objects_fetched_bytes_total",
            "Bytes of snapshots fetched back",
            of.fetched_bytes,
        ),
        (
            "cove_objects_deleted_total",
            "Objects deleted from object storage",
            of.deleted,
        ),
        (
            "cove_objects_evicted_total",
            "Copies on hosts that were evicted",
            of.evicted,
        ),
    ];
    for (name, help, value) in counters {
        head(out, name, "counter", help);
        line(out, name, "", value as f64);
    }
}

fn host_figures(out: &mut String, host: &HostReport) {
    for (name, help, value) in [
        (
            "cove_sandboxes",
            "Sandboxes on the host",
            host.sandboxes as f64,
        ),
        (
            "cove_sandboxes_running",
            "Sandboxes that run",
            host.running as f64,
        ),
        ("cove_host_cpus", "CPUs of the host", f64::from(host.cpus)),
        (
            "cove_host_memory_bytes",
            "Memory of the host",
            host.memory_bytes as f64,
        ),
        (
            "cove_host_disk_bytes",
            "Size of the storage pool",
            host.disk_bytes as f64,
        ),
        (
            "cove_host_disk_free_bytes",
            "Free space in the storage pool",
            host.disk_free_bytes as f64,
        ),
        (
            "cove_promised_cpus",
            "CPUs promised to sandboxes",
            host.promised_cpu,
        ),
        (
            "cove_promised_memory_bytes",
            "Memory promised to sandboxes",
            host.promised_memory_bytes as f64,
        ),
        (
            "cove_promised_disk_bytes",
            "Disk promised to sandboxes",
            host.promised_disk_bytes as f64,
        ),
    ] {
        gauge(out, name, help, value);
    }
}

/// Figures of each node.
pub fn nodes(out: &mut String, nodes: &[cove_control::Node]) {
    type Figure = fn(&cove_control::Node) -> Option<f64>;
    let figures: [(&str, &str, Figure); 9] = [
        ("cove_node_up", "Whether the node answers.", |node| {
            Some(f64::from(node.state == cove_control::NodeState::Ready))
        }),
        (
            "cove_node_cordoned",
            "Whether the node takes no new sandboxes.",
            |node| Some(f64::from(node.cordoned)),
        ),
        (
            "cove_node_clock_skew_seconds",
            "Clock of the node minus clock of the server.",
            |node| node.clock_skew_ms.map(|skew| skew as f64 / 1000.0),
        ),
        ("cove_node_sandboxes", "Sandboxes on the node.", |node| {
            node.inventory.as_ref().map(|known| known.sandboxes as f64)
        }),
        (
            "cove_node_sandboxes_running",
            "Sandboxes that run on the node.",
            |node| node.inventory.as_ref().map(|known| known.running as f64),
        ),
        (
            "cove_node_promised_cpu_ratio",
            "Share of the CPUs that is promised.",
            |node| {
                let known = node.inventory.as_ref()?;
                Some(share(known.promised_cpu_milli, known.cpu_milli))
            },
        ),
        (
            "cove_node_promised_memory_ratio",
            "Share of the memory that is promised.",
            |node| {
                let known = node.inventory.as_ref()?;
                Some(share(known.promised_memory_bytes, known.memory_bytes))
            },
        ),
        (
            "cove_node_promised_disk_ratio",
            "Share of the disk that is promised.",
            |node| {
                let known = node.inventory.as_ref()?;
                Some(share(known.promised_disk_bytes, known.disk_bytes))
            },
        ),
        (
            "cove_node_certificate_expires_seconds",
            "When the certificate of the node ends, since 1970.",
            |node| Some(node.certificate_expires_at.unix_timestamp() as f64),
        ),
    ];
    if nodes.is_empty() {
        return;
    }
    for (name, help, figure) in figures {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n");
        for node in nodes {
            if let Some(value) = figure(node) {
                // Names of nodes have no character that would need quoting.
                let _ = writeln!(out, "{name}{{node=\"{}\"}} {value}", node.name);
            }
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

fn gauge(out: &mut String, name: &str, help: &str, value: f64) {
    head(out, name, "gauge", help);
    line(out, name, "", value);
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    let _ = match labels {
        "" => writeln!(out, "{name} {value}"),
        labels => writeln!(out, "{name}{{{labels}}} {value}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_once_in_each_place() {
        let metrics = Metrics::default();
        let begun = metrics.begin();
        let exec = Asked::Operation(Operation::Exec);
        metrics.end(begun, &exec, 200, Duration::from_millis(7));
        let begun = metrics.begin();
        metrics.end(begun, &Asked::Nothing, 404, Duration::ZERO);
        for _ in 0..2 {
            let begun = metrics.begin();
            let route = Asked::dialect(&Method::GET, "/e2b/sandboxes/{id}");
            metrics.end(begun, &route, 200, Duration::ZERO);
        }
        let own = Own {
            log_lines_lost: Some(3),
            tables: vec![("locks", 7)],
            ..Own::default()
        };
        let text = metrics.render(&own, None);
        for expected in [
            "cove_http_requests_total{operation=\"exec\",status=\"2xx\"} 1",
            "cove_http_request_seconds_bucket{operation=\"exec\",le=\"0.005\"} 0",
            "cove_http_request_seconds_bucket{operation=\"exec\",le=\"0.01\"} 1",
            "cove_http_request_seconds_count{operation=\"exec\"} 1",
            "cove_http_unmatched_total 1",
            "cove_log_lines_lost_total 3",
            "cove_table_entries{table=\"locks\"} 7",
            "cove_store_operations_total{kind=\"read\"} 0",
            "cove_http_requests_total{operation=\"GET /e2b/sandboxes/{id}\",status=\"2xx\"} 2",
            "cove_http_requests_in_flight 0",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
    }
}
