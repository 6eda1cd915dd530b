//! What a gateway process must be able to enforce for a call to mean what it says.
//!
//! Every field of what restricts a sandbox is looked at here by name, so that a new one does not compile before
//! somebody has decided which feature it needs.

use cove_wire::{Feature, Needs, Side};

use super::{Call, Hello, OLDEST, Placed, Request, Start, VERSION};
use crate::limits::Limits;
use crate::policy::{Allowed, Policy};

/// The modes of a policy, and rules of names, addresses and ports.
pub const POLICY: Feature = Feature::new("policy");
/// What sandboxes share is divided by owner.
pub const OWNER_SHARES: Feature = Feature::new("owner-shares");
/// The operator's limits of connections and questions.
pub const LIMITS: Feature = Feature::new("limits");
/// Addresses that are never dialled.
pub const RESERVED: Feature = Feature::new("reserved-addresses");

/// Connections to bound hosts are handed to a terminator.
pub const TERMINATION: Feature = Feature::new("termination");

/// What processes of version 2 can do, although they do not say so.
pub const BASELINE: &[Feature] = &[POLICY, OWNER_SHARES, LIMITS, RESERVED];
/// What the process of this build can do.
pub const FEATURES: &[Feature] = &[POLICY, OWNER_SHARES, LIMITS, RESERVED, TERMINATION];

pub const SIDE: Side = Side {
    wire: "gateway",
    version: VERSION,
    oldest: OLDEST,
    features: FEATURES,
};

impl Request {
    /// A call in the form of version 2 where every process can do all that it restricts. Otherwise it has that of
    /// version 3, which a process refuses that would not look at `needs`.
    pub fn new(instance: &str, call: Call) -> Self {
        let needs = call.needs();
        let version = match (&call, needs.are_among(BASELINE)) {
            // Every version answers it, and says more to those who know more.
            (Call::Hello, _) | (_, false) => VERSION,
            (_, true) => OLDEST,
        };
        Self {
            version,
            instance: instance.to_owned(),
            needs: needs.names(),
            call,
        }
    }
}

impl Hello {
    /// Whether the process can do all that an engine of this build may ask of it.
    pub fn has_everything(&self) -> bool {
        let says = |feature: &Feature| self.features.iter().any(|it| it == feature.name());
        let assumed = |feature: &Feature| self.version == OLDEST && BASELINE.contains(feature);
        SIDE.accept_version(self.version).is_ok()
            && FEATURES
                .iter()
                .all(|feature| says(feature) || assumed(feature))
    }
}

impl Call {
    pub fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        match self {
            Self::Place(it) => placed(it, &mut needs),
            Self::Replace(table) => table.iter().for_each(|it| placed(it, &mut needs)),
            // These ask, or take back what was said.
            Self::Hello
            | Self::Watch
            | Self::Remove { .. }
            | Self::Forget { .. }
            | Self::Append(_)
            | Self::Egress(_)
            | Self::Upstreams(_)
            | Self::Stop => {}
        }
        needs
    }
}

impl Start {
    pub fn needs(&self) -> Needs {
        let Self {
            limits,
            reserved,
            table,
            version: _,
            needs: _,
            instance: _,
            build: _,
            uid: _,
            gid: _,
            owner: _,
            upstreams: _,
            logs: _,
            dns: _,
            proxy: _,
        } = self;
        let Limits {
            connections: _,
            connections_in_all: _,
            half_open: _,
            half_open_in_all: _,
            queries_per_second: _,
            queries_burst: _,
            queries_outstanding: _,
            dns_streams: _,
            dns_streams_in_all: _,
            tunnel_bytes_per_second: _,
            tunnel_bytes_burst: _,
            hello_ms: _,
            dial_ms: _,
        } = limits;
        let mut needs = Needs::default();
        needs.add(LIMITS).add_if(!reserved.is_empty(), RESERVED);
        table.iter().for_each(|it| placed(it, &mut needs));
        needs
    }
}

fn placed(placed: &Placed, needs: &mut Needs) {
    let Placed {
        owner,
        policy: Policy { mode: _, allowed },
        termination,
        address: _,
        sandbox: _,
    } = placed;
    needs
        .add(POLICY)
        .add_if(!owner.is_empty(), OWNER_SHARES)
        .add_if(termination.is_some(), TERMINATION);
    for allowed in allowed {
        needs.add(entry(allowed));
    }
}

/// Where a rule comes from only informs.
fn entry(Allowed { rule: _, preset: _ }: &Allowed) -> Feature {
    POLICY
}
