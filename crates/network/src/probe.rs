//! What of a host gets in the way of its sandboxes' network, for `cove doctor`.

use std::fs;
use std::io;

use crate::netlink::{Attributes, Batch, DUMP, NetlinkError, Socket, attribute};

const GET_CHAIN: u16 = (10 << 8) + 4;
const FORWARD: u32 = 2;
const INPUT: u32 = 1;
const DROP: u32 = 0;
const FAMILY_INET: u8 = 1;
const FAMILY_IPV4: u8 = 2;

/// A chain of somebody else's that drops what it does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barrier {
    /// `table chain`
    pub name: String,
    /// It stands before the host itself, where the gateway listens; otherwise on the way through it.
    pub input: bool,
}

/// Chains whose policy is to drop, in tables that are not Cove's.
pub fn barriers() -> Result<Vec<Barrier>, NetlinkError> {
    let failed = |source: io::Error| NetlinkError {
        step: "open a netfilter socket",
        source,
    };
    let mut socket = Socket::netfilter().map_err(failed)?;
    let mut batch = Batch::default();
    batch.message(
        "list chains",
        GET_CHAIN,
        DUMP,
        &[0; 4],
        &Attributes::default(),
    );
    let mut found = Vec::new();
    socket.ask("list chains", batch, |_, body| {
        if let [family, _, _, _, rest @ ..] = body
            && matches!(*family, FAMILY_INET | FAMILY_IPV4)
        {
            found.extend(barrier(rest));
        }
    })?;
    Ok(found)
}

fn barrier(chain: &[u8]) -> Option<Barrier> {
    let text = |kind| {
        let bytes = attribute(chain, kind)?;
        Some(
            String::from_utf8_lossy(bytes)
                .trim_end_matches('\0')
                .to_owned(),
        )
    };
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.get(0..4)?.try_into().ok()?));
    let (table, name) = (text(1)?, text(3)?);
    let hook = number(attribute(attribute(chain, 4)?, 1)?)?;
    let policy = number(attribute(chain, 5)?)?;
    let stands = policy == DROP && matches!(hook, FORWARD | INPUT) && !table.starts_with("cove-");
    stands.then(|| Barrier {
        name: format!("{table} {name}"),
        input: hook == INPUT,
    })
}

/// `net.ipv4.conf.all.rp_filter`, which weakens each interface's own when it is 2.
pub fn loose_source_check() -> bool {
    fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").is_ok_and(|text| text.trim() == "2")
}
