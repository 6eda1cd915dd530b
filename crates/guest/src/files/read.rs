//! Reading a file or a range of it.

use std::os::unix::fs::FileExt;

use cove_protocol::frame::CHUNK;
use cove_protocol::message::{ReadFile, ReplyKind};

use super::conn::Conn;
use super::identity::{Identity, Names};
use super::{absolute, list, open, root_links};
use crate::call::Ended;
use crate::failure::Doing;

pub fn serve(conn: &mut Conn, who: &Identity, request: &ReadFile) -> Result<(), Ended> {
    let path = absolute(&request.path)?;
    let file = match request.root_links_only {
        true => root_links::Place::find(path, false)?.read()?,
        false => open::regular(path, who)?.0,
    };
    let metadata = file.metadata().doing(&request.path)?;
    let info = list::describe(path, &metadata, &mut Names::new(who));
    conn.reply(ReplyKind::File(info))?;

    let mut left = match request.length {
        0 => u64::MAX,
        length => length,
    };
    let mut offset = request.offset;
    // Small files need no large buffer; files of /proc have no size at all.
    let expected = metadata.len().saturating_sub(offset).min(left).max(4096);
    let mut buffer = vec![0; usize::try_from(expected).unwrap_or(CHUNK).min(CHUNK)];
    let mut sent = 0;
    while left > 0 {
        let part = buffer.len().min(usize::try_from(left).unwrap_or(CHUNK));
        let count = file
            .read_at(&mut buffer[..part], offset)
            .doing(&request.path)?;
        if count == 0 {
            break;
        }
        conn.data(&buffer[..count])?;
        offset += count as u64;
        left -= count as u64;
        sent += count as u64;
    }
    conn.done(sent, 0)
}
