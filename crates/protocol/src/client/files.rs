//! File contents, archives, listings and watches as they stream.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;

use super::bounds::LISTING_MAX;
use super::call::Call;
use super::{Guest, GuestError, Listed};
use crate::message::{Change, ChangeKind, Done, FileInfo, ReplyKind, Request, Watch};

/// The contents of a file, chunk by chunk.
pub struct FileReader {
    call: Call,
    info: FileInfo,
    over: bool,
}

impl FileReader {
    pub(super) async fn start(mut call: Call) -> Result<Self, GuestError> {
        match call.reply_soon().await? {
            ReplyKind::File(info) => Ok(Self {
                call,
                info,
                over: false,
            }),
            _ => Err(GuestError::Unexpected("wanted a file")),
        }
    }

    /// The whole file as it was when opened, whatever range was asked for.
    pub fn info(&self) -> &FileInfo {
        &self.info
    }

    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        next_chunk(&mut self.call, &mut self.over)
            .await
            .map(Result::ok)
    }
}

/// A tar stream, chunk by chunk.
pub struct ArchiveReader {
    call: Call,
    over: bool,
    done: Option<Done>,
}

impl ArchiveReader {
    pub(super) fn new(call: Call) -> Self {
        Self {
            call,
            over: false,
            done: None,
        }
    }

    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        match next_chunk(&mut self.call, &mut self.over).await? {
            Ok(data) => Ok(Some(data)),
            Err(done) => {
                self.done = self.done.or(done);
                Ok(None)
            }
        }
    }

    /// How many entries the archive had, once it ended.
    pub fn done(&self) -> Option<Done> {
        self.done
    }
}

async fn next_chunk(
    call: &mut Call,
    over: &mut bool,
) -> Result<Result<Bytes, Option<Done>>, GuestError> {
    if *over {
        return Ok(Err(None));
    }
    match call.reply_soon().await? {
        ReplyKind::Data(data) => Ok(Ok(data)),
        ReplyKind::Done(done) => {
            *over = true;
            Ok(Err(Some(done)))
        }
        _ => Err(GuestError::Unexpected("wanted data")),
    }
}

/// A file or an archive on its way in. Nothing of an atomic write is seen before
/// [`Upload::finish`] returned; dropping or aborting leaves the old file as it was.
pub struct Upload {
    call: Call,
}

impl Upload {
    pub(super) fn new(call: Call) -> Self {
        Self { call }
    }

    #[boxed]
    pub async fn write(&mut self, data: Bytes) -> Result<(), GuestError> {
        self.call.send(data).await
    }

    #[boxed]
    pub async fn finish(mut self) -> Result<Done, GuestError> {
        self.call.send_end().await?;
        match self.call.reply_soon().await? {
            ReplyKind::Done(done) => Ok(done),
            _ => Err(GuestError::Unexpected("wanted done")),
        }
    }

    /// Gives up: the guest undoes what an atomic write left behind.
    pub fn abort(self) {}
}

#[derive(Debug)]
pub struct DirListing {
    pub entries: Listed<FileInfo>,
    pub truncated: bool,
}

pub(super) async fn collect_listing(
    mut call: Call,
    limit: u32,
    entries: Listed<FileInfo>,
) -> Result<DirListing, GuestError> {
    let limit = match limit as usize {
        0 => LISTING_MAX,
        limit => limit.min(LISTING_MAX),
    };
    let mut all = DirListing {
        entries,
        truncated: false,
    };
    loop {
        match call.reply_soon().await? {
            ReplyKind::Listing(part) => {
                all.entries.extend(part.entries)?;
                all.truncated = part.truncated;
                if all.entries.len() > limit {
                    all.entries.truncate(limit);
                    all.truncated = true;
                    return Ok(all);
                }
            }
            ReplyKind::Done(_) => return Ok(all),
            _ => return Err(GuestError::Unexpected("wanted a listing")),
        }
    }
}

/// Changes below a watched path.
pub struct Watcher {
    guest: Guest,
    watch: Watch,
    call: Call,
    /// The call was ended by a capture and has no successor yet.
    quiesced: bool,
}

impl Watcher {
    pub(super) async fn start(guest: Guest, watch: Watch) -> Result<Self, GuestError> {
        let call = stand(&guest, &watch).await?;
        Ok(Self {
            guest,
            watch,
            call,
            quiesced: false,
        })
    }

    /// The next change; `None` when the watched path itself is gone. Dropping the future loses
    /// nothing. After a capture of the sandbox the watch stands again, and an overflow tells that
    /// something may have been missed.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Change>, GuestError> {
        if !self.quiesced {
            match self.call.reply().await {
                Ok(ReplyKind::Change(change)) => return Ok(Some(change)),
                Ok(ReplyKind::Done(_)) => return Ok(None),
                Ok(_) => return Err(GuestError::Unexpected("wanted a change")),
                Err(GuestError::Quiesced) => self.quiesced = true,
                Err(error) => return Err(error),
            }
        }
        self.call = stand(&self.guest, &self.watch).await?;
        self.quiesced = false;
        Ok(Some(Change {
            kind: ChangeKind::Overflow as i32,
            ..Change::default()
        }))
    }
}

async fn stand(guest: &Guest, watch: &Watch) -> Result<Call, GuestError> {
    let mut call = guest.open(Request::Watch(watch.clone())).await?;
    match call.reply_soon().await? {
        ReplyKind::Change(change) if change.kind == ChangeKind::Ready as i32 => Ok(call),
        _ => Err(GuestError::Unexpected("wanted a standing watch")),
    }
}
