//! Measures what the gateway costs on a test network: setting a connection up, carrying bytes and
//! changing a policy, beside the same without it. Needs root.
//!
//! ```text
//! cargo run --release -p cove-gateway --example figures
//! ```
// A measurement that cannot be taken ends the program.
#![allow(clippy::unwrap_used, dead_code)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::time::{Duration, Instant};

#[path = "../tests/it/client.rs"]
mod client;
#[path = "../tests/it/world.rs"]
mod world;

use client::{connect, hello};
use world::{DATABASE, GATEWAY, GOOD, HOST, SANDBOX, SINK, World};

const ROUNDS: usize = 500;
const BYTES: u64 = 2 << 30;

fn main() {
    const LIST: [&str; 3] = ["good.example", "sink.example", "db.example:5432"];
    let world = World::new(&LIST);
    let direct = {
        let _open = DirectPath::open(&world);
        (
            median(|| world.inside(|| first_byte(SINK, 5432))),
            world.inside(upload),
        )
    };
    let (direct, plain) = direct;
    let carried = median(|| world.inside(|| first_byte(DATABASE, 5432)));
    println!("connect and first byte, direct      {direct:?}");
    println!("connect and first byte, by address  {carried:?}");
    let carried = median(|| world.inside(|| tls_first_byte(GOOD)));
    println!("connect and first byte, by TLS name {carried:?}");
    let spliced = world.inside(upload);
    println!("throughput, routed  {plain:.2} Gbit/s");
    println!(
        "throughput, spliced {spliced:.2} Gbit/s ({:.0} %)",
        spliced / plain * 100.0
    );
    let change = median(|| {
        let mut stream = world.inside(|| {
            let mut stream = connect(GOOD, 443).unwrap();
            stream.write_all(&hello("good.example")).unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            stream
        });
        let begin = Instant::now();
        world.allow(&["db.example:5432"]);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let taken = begin.elapsed();
        world.allow(&LIST);
        taken
    });
    println!("policy change until a stream is cut {change:?}");
}

/// Routes packets past the gateway while it is held.
struct DirectPath<'a>(&'a World);

impl<'a> DirectPath<'a> {
    fn open(world: &'a World) -> Self {
        let back = format!("route add {SANDBOX}/32 via {HOST}\n");
        world.internet.command("ip", &["-batch", "-"], &back);
        world
            .host
            .command("sysctl", &["-qw", "net.ipv4.ip_forward=1"], "");
        let exempt = format!("insert rule ip redirection prerouting ip daddr {SINK} accept\n");
        world.host.command("nft", &["-f", "-"], &exempt);
        Self(world)
    }
}

impl Drop for DirectPath<'_> {
    fn drop(&mut self) {
        let rules = format!(
            "flush chain ip redirection prerouting\n\
             add rule ip redirection prerouting iifname sb0 ip daddr != {GATEWAY} meta l4proto tcp dnat to {GATEWAY}:4443\n"
        );
        self.0.host.command("nft", &["-f", "-"], &rules);
    }
}

fn median(mut measure: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..ROUNDS).map(|_| measure()).collect();
    all.sort_unstable();
    all[ROUNDS / 2]
}

fn first_byte(to: Ipv4Addr, port: u16) -> Duration {
    let begin = Instant::now();
    let mut stream = connect(to, port).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    begin.elapsed()
}

fn tls_first_byte(to: Ipv4Addr) -> Duration {
    let begin = Instant::now();
    let mut stream = connect(to, 443).unwrap();
    stream.write_all(&hello("good.example")).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    begin.elapsed()
}

/// Gigabits a second to a server that throws everything away.
fn upload() -> f64 {
    let mut stream = connect(SINK, 443).unwrap();
    stream.write_all(&hello("sink.example")).unwrap();
    let begin = Instant::now();
    let block = vec![0; 1 << 20];
    for _ in 0..BYTES >> 20 {
        stream.write_all(&block).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    BYTES as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e9
}
