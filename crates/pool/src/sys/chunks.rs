//! Where a filesystem on one device keeps what: its chunks, read from the chunk tree.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::{SearchArgs, TREE_SEARCH, ioctl};

const CHUNK_TREE: u64 = 3;
const FIRST_CHUNK: u64 = 256;
const CHUNK_ITEM: u32 = 228;
const DATA: u64 = 1;
/// Of an item's header in a search: transid, objectid, offset of eight bytes each, type and length of four.
const HEADER: usize = 32;
/// Where in a chunk item its length, its type and the place of its first stripe are.
const LENGTH_AT: usize = 0;
const TYPE_AT: usize = 24;
const STRIPE_OFFSET_AT: usize = 56;

/// A stretch of the device that holds data, or else what the filesystem itself cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// In the filesystem's own address space.
    pub logical: u64,
    /// On the device.
    pub physical: u64,
    pub length: u64,
    pub is_data: bool,
}

/// All chunks, by logical address. Each is taken to have one stripe, as in a pool of our own making.
pub(crate) fn chunks(root: BorrowedFd<'_>) -> Result<Vec<Chunk>, Errno> {
    let mut found = Vec::new();
    let mut from = 0u64;
    loop {
        let mut args = Box::new(SearchArgs {
            tree_id: CHUNK_TREE,
            min_objectid: FIRST_CHUNK,
            max_objectid: FIRST_CHUNK,
            min_offset: from,
            max_offset: u64::MAX,
            min_transid: 0,
            max_transid: u64::MAX,
            min_type: CHUNK_ITEM,
            max_type: CHUNK_ITEM,
            nr_items: u32::MAX,
            unused: 0,
            unused_more: [0; 4],
            buf: [0; 4096 - 104],
        });
        ioctl(root, TREE_SEARCH, &mut *args)?;
        let before = found.len();
        let mut rest = &args.buf[..];
        for _ in 0..args.nr_items {
            let (Some(logical), Some(length)) = (number(rest, 16), item_length(rest)) else {
                break;
            };
            let Some(item) = rest.get(HEADER..HEADER + length) else {
                break;
            };
            if let Some(chunk) = parse(logical, item) {
                found.push(chunk);
            }
            from = logical.saturating_add(1);
            rest = &rest[HEADER + length..];
        }
        if args.nr_items == 0 || found.len() == before || from == u64::MAX {
            return Ok(found);
        }
    }
}

fn parse(logical: u64, item: &[u8]) -> Option<Chunk> {
    Some(Chunk {
        logical,
        physical: number(item, STRIPE_OFFSET_AT)?,
        length: number(item, LENGTH_AT)?,
        is_data: number(item, TYPE_AT)? & DATA != 0,
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn item_length(header: &[u8]) -> Option<usize> {
    let bytes: [u8; 4] = header.get(28..32)?.try_into().ok()?;
    usize::try_from(u32::from_ne_bytes(bytes)).ok()
}
