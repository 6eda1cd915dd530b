//! The program itself, run as root on real trees: what it packs comes out of another tool as it was, and
//! what it may not reach it does not reach.
#![allow(clippy::unwrap_used)]

mod cell;
mod memory;
mod trees;

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use cove_parser::{Packing, Parser};

/// Ids that own nothing on the host.
const TEST_UID_BASE: u32 = 1_900_000_000;
/// Far above what even a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(120);

fn parser() -> Parser {
    Parser::new(cove_embedded::PARSER, TEST_UID_BASE).unwrap()
}

/// All that is packed, and how it ended.
fn all(mut packing: Packing) -> Result<Vec<u8>, cove_parser::ParserError> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match packing.read(&mut chunk, PATIENCE).unwrap() {
            0 => break,
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
    packing.finish().map(|()| bytes)
}

/// On a file system that can be idmapped.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}
