//! Archives that arrive before the build that uses them, each by a link that is good once.
//!
//! The link is all that its holder shows, so it is random, ends soon, and is good only as long as the key that asked for
//! it. An archive lies in a file without a name, as a context does: nothing of it is left when the server ends, and a
//! client that is told so sends it again. What an organisation keeps is counted until the last build that reads it ends.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cove_limits::{
    BUILD_CONTEXT_MAX, BUILD_LINK_S, BUILD_LINKS_MAX, BUILD_UPLOAD_KEPT_S, BUILD_UPLOADS_ALL_MAX,
    BUILD_UPLOADS_MAX,
};
use cove_model::{KeyId, OrgId};
use cove_store::Scope;
use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::context::{Context, Part, Segment};
use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::{Origin, Principal};
use crate::shares::{Portion, Shares, Sharing};

const LINK_TIME: Duration = Duration::from_secs(BUILD_LINK_S);
const KEPT_TIME: Duration = Duration::from_secs(BUILD_UPLOAD_KEPT_S);
/// Hexadecimal digits of a name: a SHA-256 that the client made. What it is a hash of is the client's business.
const NAME_CHARS: usize = 64;
const PIECE: usize = 256 * 1024;
const GZIP: [u8; 2] = [0x1f, 0x8b];

struct Link {
    org: OrgId,
    key: KeyId,
    name: String,
    until: Instant,
}

/// An archive that has arrived whole, and what is counted for it.
pub(super) struct Upload {
    file: Arc<File>,
    bytes: u64,
    _paid: Portion<OrgId>,
}

struct Kept {
    upload: Arc<Upload>,
    used: Instant,
}

#[derive(Default)]
struct Table {
    /// By the hash of the secret in it.
    links: HashMap<[u8; 32], Link>,
    kept: HashMap<(OrgId, String), Kept>,
}

impl Table {
    fn tidy(&mut self, now: Instant) {
        self.links.retain(|_, link| link.until > now);
        self.kept
            .retain(|_, kept| now.duration_since(kept.used) < KEPT_TIME);
    }
}

pub(crate) struct Uploads {
    table: Mutex<Table>,
    shares: Arc<Shares<OrgId>>,
}

impl Default for Uploads {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            shares: Shares::new(Sharing {
                total: BUILD_UPLOADS_ALL_MAX,
                promised: BUILD_UPLOADS_MAX / 4,
                hard: BUILD_UPLOADS_ALL_MAX,
            }),
        }
    }
}

impl Uploads {
    /// Forgets what nobody has used for long.
    pub(crate) fn tidy(&self) {
        self.table.lock().tidy(Instant::now());
    }

    fn find(&self, org: &OrgId, name: &str) -> Option<Arc<Upload>> {
        let now = Instant::now();
        let mut table = self.table.lock();
        table.tidy(now);
        let kept = table.kept.get_mut(&(org.clone(), name.to_owned()))?;
        kept.used = now;
        Some(Arc::clone(&kept.upload))
    }

    fn link(&self, link: Link) -> Result<String, ControlError> {
        let mut table = self.table.lock();
        table.tidy(Instant::now());
        let own = table.links.values().filter(|other| other.org == link.org);
        if own.count() >= BUILD_LINKS_MAX {
            return Err(ControlError::new(
                ErrorCode::LimitReached,
                format!("the organisation has {BUILD_LINKS_MAX} unused upload links"),
            )
            .hint("use them, or wait until they expire")
            .retry_after(60));
        }
        let secret = hex::encode(rand::random::<[u8; 32]>());
        table.links.insert(digest(&secret), link);
        Ok(secret)
    }

    /// A link is good for one try.
    fn take_link(&self, secret: &str) -> Option<Link> {
        let mut table = self.table.lock();
        table.tidy(Instant::now());
        table.links.remove(&digest(secret))
    }

    /// Gives up what the organisation has used longest ago. Whether there was something.
    fn give_up_one(&self, org: &OrgId) -> bool {
        let mut table = self.table.lock();
        let own = table.kept.iter().filter(|((of, _), _)| of == org);
        let oldest = own.min_by_key(|(_, kept)| kept.used);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else {
            return false;
        };
        table.kept.remove(&key);
        true
    }

    fn grow(&self, org: &OrgId, paid: &mut Portion<OrgId>, bytes: usize) -> bool {
        loop {
            let own = self.shares.held_by(org);
            if own + bytes <= BUILD_UPLOADS_MAX && paid.grow(bytes) {
                return true;
            }
            if !self.give_up_one(org) {
                return false;
            }
        }
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

fn check_upload_name(name: &str) -> Result<(), ControlError> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match name.len() == NAME_CHARS && name.bytes().all(digit) {
        true => Ok(()),
        false => Err(ControlError::invalid(
            "the name of an upload must be 64 lower-case hexadecimal digits",
        )),
    }
}

fn not_good() -> ControlError {
    ControlError::new(
        ErrorCode::Unauthenticated,
        "this upload link was used, has expired or never existed",
    )
    .hint("request another link with an API key; each link works once")
}

/// An archive on its way in.
pub struct BuildFileUpload {
    control: Control,
    org: OrgId,
    name: String,
    file: File,
    bytes: u64,
    paid: Portion<OrgId>,
}

impl BuildFileUpload {
    pub async fn write(&mut self, piece: Bytes) -> Result<(), ControlError> {
        let at = self.bytes;
        self.bytes += piece.len() as u64;
        if self.bytes > BUILD_CONTEXT_MAX as u64 {
            return Err(ControlError::new(
                ErrorCode::PayloadTooLarge,
                format!("an upload has at most {BUILD_CONTEXT_MAX} bytes"),
            )
            .hint("leave files out"));
        }
        let uploads = &self.control.0.uploads;
        if !uploads.grow(&self.org, &mut self.paid, piece.len()) {
            return Err(ControlError::new(
                ErrorCode::LimitReached,
                "the organisation has no room for more build uploads",
            )
            .hint("wait until a build ends, or send less")
            .retry_after(30));
        }
        let file = self.file.try_clone().map_err(super::context::unwritable)?;
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&piece, at)).await;
        written
            .map_err(|error| ControlError::internal("cannot store the upload").because(error))?
            .map_err(super::context::unwritable)
    }

    /// Builds may use it from now on.
    pub fn finish(self) {
        let upload = Arc::new(Upload {
            file: Arc::new(self.file),
            bytes: self.bytes,
            _paid: self.paid,
        });
        let used = Instant::now();
        let mut table = self.control.0.uploads.table.lock();
        table
            .kept
            .insert((self.org, self.name), Kept { upload, used });
    }
}

/// A place for one archive.
pub struct BuildFileLink {
    /// An archive of that name is here already.
    pub present: bool,
    /// Shown to [`Control::build_file_upload`].
    pub secret: String,
}

impl Control {
    /// Needs `manage`. A link for an archive of this name, which is a hash that the client made.
    pub async fn build_file_link(
        &self,
        principal: &Principal,
        name: &str,
    ) -> Result<BuildFileLink, ControlError> {
        let outcome = async {
            principal.require(Scope::Manage)?;
            check_upload_name(name)?;
            let key = principal
                .key
                .clone()
                .ok_or_else(|| ControlError::internal("only API keys can request a link"))?;
            let uploads = &self.0.uploads;
            let secret = uploads.link(Link {
                org: principal.org.clone(),
                key,
                name: name.to_owned(),
                until: Instant::now() + LINK_TIME,
            })?;
            Ok(BuildFileLink {
                present: uploads.find(&principal.org, name).is_some(),
                secret,
            })
        };
        let outcome = outcome.await;
        let operation = Operation::new("template.build_file_link", format!("{name:.64}"));
        self.conclude(principal, operation, outcome).await
    }

    /// Whoever holds the link sends the archive for the key that asked for it. The link is used up by this.
    pub async fn build_file_upload(
        &self,
        secret: &str,
        origin: Origin,
    ) -> Result<(Principal, BuildFileUpload), ControlError> {
        let link = self.0.uploads.take_link(secret).ok_or_else(not_good)?;
        let principal = self.holder_of_link(&link, origin).await?;
        let outcome = self.begin_upload(&link);
        let operation = Operation::new("template.build_file", link.name);
        let upload = self.conclude(&principal, operation, outcome).await?;
        Ok((principal, upload))
    }

    /// The key may have ended meanwhile.
    async fn holder_of_link(&self, link: &Link, origin: Origin) -> Result<Principal, ControlError> {
        let key = self.key_by_id(&link.org, &link.key).await?;
        let mut principal = self.admit(key.ok_or_else(not_good)?, origin)?;
        principal.require(Scope::Manage)?;
        principal.home = false;
        Ok(principal)
    }

    fn begin_upload(&self, link: &Link) -> Result<BuildFileUpload, ControlError> {
        let shares = &self.0.uploads.shares;
        let paid = shares.take(link.org.clone(), 0);
        Ok(BuildFileUpload {
            control: self.clone(),
            org: link.org.clone(),
            name: link.name.clone(),
            file: scratch_file(self.config().build_dir.clone())?,
            bytes: 0,
            paid: paid.ok_or_else(|| ControlError::internal("nothing is too much"))?,
        })
    }

    /// The archives of these names, which no limit takes away while they are held.
    pub(super) fn uploads_of(
        &self,
        org: &OrgId,
        names: &[String],
    ) -> Result<Vec<(String, Arc<Upload>)>, ControlError> {
        let found = names.iter().map(|name| {
            check_upload_name(name)?;
            let upload = self.0.uploads.find(org, name).ok_or_else(|| {
                ControlError::invalid(format!(
                    "the files {name} were not uploaded, or the upload has expired"
                ))
                .hint("upload them again, then start the build")
            })?;
            Ok((name.clone(), upload))
        });
        found.collect()
    }
}

fn scratch_file(directory: Option<PathBuf>) -> Result<File, ControlError> {
    let file = match directory {
        Some(directory) => tempfile::tempfile_in(directory),
        None => tempfile::tempfile(),
    };
    file.map_err(super::context::unwritable)
}

/// One context of several archives, each below its name. Blocks.
pub(super) fn assemble(
    directory: Option<PathBuf>,
    uploads: &[(String, Arc<Upload>)],
    most: u64,
    stop: &CancellationToken,
    place: Arc<()>,
) -> Result<Context, ControlError> {
    let mut file = scratch_file(directory)?;
    let mut segments = Vec::new();
    let mut end = 0;
    for (name, upload) in uploads {
        let begin = end;
        let mut first = [0; GZIP.len()];
        let is_gzip = upload.bytes >= GZIP.len() as u64
            && upload.file.read_exact_at(&mut first, 0).is_ok()
            && first == GZIP;
        let part = Part::new(&upload.file, 0, upload.bytes);
        let copied = match is_gzip {
            true => copy(MultiGzDecoder::new(part), &mut file, &mut end, most, stop),
            false => copy(part, &mut file, &mut end, most, stop),
        };
        copied.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                super::context::unwritable(error)
            }
            _ => ControlError::invalid(format!("the files {name}: {error}")),
        })?;
        segments.push(Segment {
            prefix: name.clone(),
            offset: begin,
            bytes: end - begin,
        });
    }
    Ok(Context::new(file, segments, place))
}

fn copy(
    mut from: impl Read,
    to: &mut File,
    end: &mut u64,
    most: u64,
    stop: &CancellationToken,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        if stop.is_cancelled() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = from.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        *end += count as u64;
        if *end > most {
            return Err(super::archive::odd(format!(
                "the files of one build have at most {most} bytes, unpacked"
            )));
        }
        to.write_all(&piece[..count])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(org: &OrgId, until: Instant) -> Link {
        Link {
            org: org.clone(),
            key: KeyId::random(),
            name: "0".repeat(NAME_CHARS),
            until,
        }
    }

    #[test]
    fn a_link_is_good_once_and_not_for_ever() {
        let uploads = Uploads::default();
        let org = OrgId::random();
        let later = Instant::now() + LINK_TIME;
        let secret = uploads.link(link(&org, later)).unwrap();
        assert!(uploads.take_link("").is_none());
        assert!(uploads.take_link(&secret[1..]).is_none());
        assert!(uploads.take_link(&secret).is_some());
        assert!(uploads.take_link(&secret).is_none());
        let over = uploads.link(link(&org, Instant::now())).unwrap();
        assert!(uploads.take_link(&over).is_none());
    }

    #[test]
    fn an_organisation_has_a_number_of_links_and_others_have_theirs() {
        let uploads = Uploads::default();
        let (one, other) = (OrgId::random(), OrgId::random());
        let later = Instant::now() + LINK_TIME;
        for _ in 0..BUILD_LINKS_MAX {
            uploads.link(link(&one, later)).unwrap();
        }
        let refused = uploads.link(link(&one, later)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::LimitReached);
        assert!(uploads.link(link(&other, later)).is_ok());
    }

    #[test]
    fn what_is_kept_is_counted_until_nobody_reads_it() {
        let uploads = Uploads::default();
        let (one, other) = (OrgId::random(), OrgId::random());
        let keep = |name: &str, bytes: usize| {
            let mut paid = uploads.shares.take(one.clone(), 0).unwrap();
            let fits = uploads.grow(&one, &mut paid, bytes);
            let upload = Arc::new(Upload {
                file: Arc::new(tempfile::tempfile().unwrap()),
                bytes: 0,
                _paid: paid,
            });
            let kept = Kept {
                upload: Arc::clone(&upload),
                used: Instant::now(),
            };
            if fits {
                let key = (one.clone(), name.to_owned());
                uploads.table.lock().kept.insert(key, kept);
            }
            fits.then_some(upload)
        };
        let half = BUILD_UPLOADS_MAX / 2;
        let first = keep("first", half).unwrap();
        assert!(keep("second", half).is_some());
        assert!(uploads.find(&other, "first").is_none());
        // The oldest goes, but a build still reads it: that is no room.
        assert!(keep("third", half).is_some(), "the second is given up");
        assert!(uploads.find(&one, "second").is_none());
        drop(first);
        assert!(keep("fourth", half).is_some());
        assert!(uploads.shares.held_by(&one) <= BUILD_UPLOADS_MAX);
    }

    #[test]
    fn archives_of_one_organisation_leave_room_for_those_of_another() {
        let uploads = Uploads::default();
        let mut greedy = uploads.shares.take(OrgId::random(), 0).unwrap();
        while greedy.grow(BUILD_UPLOADS_MAX / 4) {}
        assert_eq!(greedy.amount(), BUILD_UPLOADS_ALL_MAX / 2);
        let mut other = uploads.shares.take(OrgId::random(), 0).unwrap();
        assert!(other.grow(BUILD_UPLOADS_MAX / 4));
    }

    #[test]
    fn archives_that_unpack_to_more_than_a_context_are_refused() {
        let mut file = tempfile::tempfile().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(&mut file, flate2::Compression::fast());
        gzip.write_all(&vec![0; 1 << 20]).unwrap();
        gzip.finish().unwrap();
        let bytes = file.metadata().unwrap().len();
        let shares = Shares::new(Sharing::new(1, 1));
        let upload = Arc::new(Upload {
            file: Arc::new(file),
            bytes,
            _paid: shares.take(OrgId::random(), 0).unwrap(),
        });
        let stop = CancellationToken::new();
        let uploads = [("bomb".to_owned(), upload)];
        assert!(assemble(None, &uploads, 1 << 20, &stop, Arc::default()).is_ok());
        let refused = assemble(None, &uploads, (1 << 20) - 1, &stop, Arc::default());
        let refused = refused.err().expect("it is too large");
        assert!(refused.message.contains("unpacked"), "{}", refused.message);
    }
}
