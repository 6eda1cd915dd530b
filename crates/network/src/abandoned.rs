//! What engines that are gone for good have left in the kernel: interfaces of sandboxes that still run, their
//! table and their route to the gateway's address. The caller says who is gone.

use std::net::Ipv4Addr;

use crate::address::{Addresses, index_of};
use crate::link;
use crate::netlink::{Attributes, Batch, DUMP, NetlinkError, Socket, attribute};
use crate::network::{NetworkError, instance_of, table_name};
use crate::nft::Transaction;

const GET_TABLE: u16 = (10 << 8) + 1;
const FAMILY_INET: u8 = 1;

/// Removes interfaces whose index is `abandoned`, and tables and routes of engines that `lives` does not know;
/// says how many there were. The table of an engine that runs cannot be removed by anybody else; what belongs
/// to one stays.
pub fn sweep(
    lives: impl Fn(&str) -> bool,
    abandoned: impl Fn(u32) -> bool,
) -> Result<u64, NetworkError> {
    let mut netfilter = Socket::netfilter().map_err(NetworkError::io("open a netfilter socket"))?;
    let mut route = Socket::route().map_err(NetworkError::io("open a route socket"))?;
    let mut swept = 0;
    let mut held = Vec::new();
    // First: without the rules nothing would stop a sandbox that runs without an engine.
    for name in link::list(&mut route)? {
        if index_of(&name).is_some_and(&abandoned) {
            link::delete(&mut route, &name)?;
            swept += 1;
        }
    }
    for instance in tables(&mut netfilter)? {
        if lives(&instance) {
            continue;
        }
        let mut change = Transaction::new(&table_name(&instance));
        change.delete_table();
        match netfilter.transact(change.finish()) {
            Ok(()) => swept += 1,
            Err(error) if error.errno() == Some(rustix::io::Errno::PERM) => held.push(instance),
            // Somebody else was faster.
            Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (address, metric) in routes(&mut route)? {
        let instance = format!("{metric:08x}");
        if !lives(&instance) && !held.contains(&instance) {
            link::local_address(&mut route, address, metric, false)?;
            swept += 1;
        }
    }
    Ok(swept)
}

fn tables(netfilter: &mut Socket) -> Result<Vec<String>, NetlinkError> {
    const NAME: u16 = 1;
    let mut batch = Batch::default();
    let header = [FAMILY_INET, 0, 0, 0];
    let all = Attributes::default();
    batch.message("list tables", GET_TABLE, DUMP, &header, &all);
    let mut found = Vec::new();
    netfilter.ask("list tables", batch, |_, body| {
        let name = body.get(4..).and_then(|rest| attribute(rest, NAME));
        let name = name.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let instance = name.and_then(|name| instance_of(name.trim_end_matches('\0')));
        found.extend(instance.map(str::to_owned));
    })?;
    Ok(found)
}

/// Addresses that are the gateway's in some range, with the number of the engine that made each its own.
fn routes(route: &mut Socket) -> Result<Vec<(Ipv4Addr, u32)>, NetlinkError> {
    let mut found = link::local_addresses(route)?;
    found.retain(|(address, _)| Addresses::is_gateway(*address));
    Ok(found)
}
