//! What root writes into a sandbox for its secrets: files that its owner asked for, and the organisation's authority
//! beside the image's own roots. Users inside may control the directories, so the guest follows no link of theirs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cove_protocol::client::{Guest, GuestError};
use cove_protocol::message::{ErrorCode as GuestCode, ReadFile, Remove, WriteFile};

use crate::error::{ControlError, ErrorCode};

/// The bundles of certificates that programs look at: Debian's and Alpine's, Fedora's.
pub const BUNDLES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];
/// Where `update-ca-certificates` and `update-ca-trust` find the organisation's authority when they write those anew.
const ANCHORS: [&str; 2] = [
    "/usr/local/share/ca-certificates/cove-secrets.crt",
    "/etc/pki/ca-trust/source/anchors/cove-secrets.crt",
];
/// The authority alone.
pub const AUTHORITY_FILE: &str = "/etc/cove/secrets-ca.pem";
/// A bundle above this is not one.
const BUNDLE_BYTES_MAX: usize = 4 << 20;
/// In the name of every organisation's authority, and of no other one.
const AUTHORITY_NAME: &[u8] = b"Cove secrets of org_";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
const ROOT: &str = "root";

/// Adds the authority to the image's bundles, and takes those of other organisations away; the bundle that programs
/// are pointed to.
pub async fn trust(guest: &Guest, authority: &str) -> Result<&'static str, ControlError> {
    let ours = Bytes::copy_from_slice(authority.as_bytes());
    // Whether anything of this was done shows by this file, and whose it is by what it says in the end.
    if read(guest, AUTHORITY_FILE).await?.is_none() {
        put(guest, AUTHORITY_FILE, ours.clone(), 0o644, ROOT.into()).await?;
    }
    let mut found = None;
    for (bundle, anchor) in BUNDLES.iter().zip(ANCHORS) {
        let Some(text) = read(guest, bundle).await? else {
            continue;
        };
        found = found.or(Some(*bundle));
        let mut wanted = without_others(&text, Some(authority)).unwrap_or_else(|| text.clone());
        if !contains(&wanted, authority.trim().as_bytes()) {
            if !wanted.ends_with(b"\n") {
                wanted.push(b'\n');
            }
            wanted.extend_from_slice(authority.as_bytes());
        }
        if wanted != text {
            write(guest, bundle, wanted.into(), Some(0o644), ROOT.into()).await?;
        }
        put(guest, anchor, ours.clone(), 0o644, ROOT.into()).await?;
    }
    if found.is_none() {
        // An image without roots trusts nobody; now it trusts the bound hosts.
        write(guest, BUNDLES[0], ours.clone(), Some(0o644), ROOT.into()).await?;
    }
    put(guest, AUTHORITY_FILE, ours, 0o644, ROOT.into()).await?;
    Ok(found.unwrap_or(BUNDLES[0]))
}

/// Takes the authorities of other organisations away; whether there were any.
pub async fn distrust_others(guest: &Guest, ours: Option<&str>) -> Result<bool, ControlError> {
    match read(guest, AUTHORITY_FILE).await? {
        None => return Ok(false),
        Some(text) if Some(text.as_slice()) == ours.map(str::as_bytes) => return Ok(false),
        Some(_) => {}
    }
    for bundle in BUNDLES {
        let text = read(guest, bundle).await?;
        if let Some(text) = text.and_then(|text| without_others(&text, ours)) {
            write(guest, bundle, text.into(), Some(0o644), ROOT.into()).await?;
        }
    }
    for file in ANCHORS.into_iter().chain([AUTHORITY_FILE]) {
        let text = read(guest, file).await?;
        if text.is_some_and(|text| without_others(&text, ours).is_some()) {
            let remove = Remove {
                path: file.to_owned(),
                user: ROOT.into(),
                ..Remove::default()
            };
            guest.remove(remove).await?;
        }
    }
    Ok(true)
}

/// Writes a file anew, unless it says the same already.
pub async fn put(
    guest: &Guest,
    path: &str,
    bytes: Bytes,
    mode: u32,
    owner: String,
) -> Result<(), ControlError> {
    match read(guest, path).await? {
        Some(text) if text == bytes => Ok(()),
        _ => write(guest, path, bytes, Some(mode), owner).await,
    }
}

/// A bundle without the authorities of other organisations; nothing where there is none in it.
fn without_others(text: &[u8], ours: Option<&str>) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find(BEGIN) {
        // The two marks share dashes: an end that overlaps the beginning is none.
        let Some(end) = rest[begin + BEGIN.len()..].find(END) else {
            break;
        };
        let end = begin + BEGIN.len() + end + END.len();
        let certificate = &rest[begin..end];
        let foreign =
            is_authority(certificate) && ours.is_none_or(|ours| ours.trim() != certificate);
        let (upto, after) = match foreign {
            // Its line ends with it.
            true => (begin, end + usize::from(rest[end..].starts_with('\n'))),
            false => (end, end),
        };
        kept.push_str(&rest[..upto]);
        rest = &rest[after..];
    }
    kept.push_str(rest);
    (kept.len() != text.len()).then(|| kept.into_bytes())
}

fn is_authority(certificate: &str) -> bool {
    let body = &certificate[BEGIN.len()..certificate.len() - END.len()];
    let body: String = body.split_whitespace().collect();
    let der = STANDARD.decode(body);
    der.is_ok_and(|der| contains(&der, AUTHORITY_NAME))
}

pub fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

pub async fn read(guest: &Guest, path: &str) -> Result<Option<Vec<u8>>, ControlError> {
    let wanted = ReadFile {
        path: path.to_owned(),
        user: ROOT.into(),
        root_links_only: true,
        ..ReadFile::default()
    };
    match read_as(guest, wanted.clone()).await {
        // What is only compared may come from anywhere; what is written then is refused by that guest.
        Err(error) if is_older(&error) => {
            let wanted = ReadFile {
                root_links_only: false,
                ..wanted
            };
            read_as(guest, wanted)
                .await
                .map_err(|error| told(path, error))
        }
        outcome => outcome.map_err(|error| told(path, error)),
    }
}

async fn read_as(guest: &Guest, wanted: ReadFile) -> Result<Option<Vec<u8>>, GuestError> {
    let mut reader = match guest.read_file(wanted).await {
        Ok(reader) => reader,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    loop {
        match reader.next().await {
            Ok(Some(piece)) if text.len() + piece.len() <= BUNDLE_BYTES_MAX => {
                text.extend_from_slice(&piece);
            }
            Ok(Some(_)) => {
                return Err(GuestError::Refused {
                    code: GuestCode::Limit,
                    message: "the file is too large".into(),
                });
            }
            Ok(None) => return Ok(Some(text)),
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

fn is_absent(error: &GuestError) -> bool {
    let absent = [GuestCode::NotFound, GuestCode::NotADirectory];
    error.code().is_some_and(|code| absent.contains(&code))
}

/// The guest began before it could keep from following links.
fn is_older(error: &GuestError) -> bool {
    let older = [GuestCode::VersionMismatch, GuestCode::MissingFeature];
    error.code().is_some_and(|code| older.contains(&code))
}

/// `mode`: absent keeps that of an existing file.
pub async fn write(
    guest: &Guest,
    path: &str,
    bytes: Bytes,
    mode: Option<u32>,
    owner: String,
) -> Result<(), ControlError> {
    let written = async {
        let wanted = WriteFile {
            path: path.to_owned(),
            user: ROOT.into(),
            mode,
            owner,
            parents: true,
            root_links_only: true,
            ..WriteFile::default()
        };
        let mut upload = guest.write_file(wanted).await?;
        upload.write(bytes).await?;
        upload.finish().await
    };
    match written.await {
        Ok(_) => Ok(()),
        Err(error) if is_older(&error) => Err(ControlError::new(
            ErrorCode::Unsupported,
            format!("{path} must be written for the sandbox's secrets, and its guest is older than this server"),
        )
        .hint("stop and start the sandbox; it then has the guest of this server")),
        Err(error) => Err(told(path, error)),
    }
}

/// What is in the way was put there inside.
fn told(path: &str, error: GuestError) -> ControlError {
    let in_the_way = matches!(
        error.code(),
        Some(
            GuestCode::PermissionDenied
                | GuestCode::Invalid
                | GuestCode::IsADirectory
                | GuestCode::NotADirectory
                | GuestCode::Limit
        )
    );
    if !in_the_way {
        return error.into();
    }
    let GuestError::Refused { message, .. } = &error else {
        return error.into();
    };
    ControlError::conflict(format!(
        "cannot write a file of the sandbox's secrets: {message}"
    ))
    .hint(format!(
        "remove what is at {path}, for example with the file API; commands run again afterwards"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> String {
        let body = STANDARD.encode(format!("....{name}...."));
        let (one, two) = body.split_at(8);
        format!("{BEGIN}\n{one}\n{two}\n{END}\n")
    }

    #[test]
    fn only_authorities_of_other_organisations_go() {
        let ours = certificate("Cove secrets of org_ours");
        let theirs = certificate("Cove secrets of org_theirs");
        let public = certificate("A public one");
        let bundle = format!("# roots\n{public}{theirs}{ours}# end\n{theirs}{public}");
        let without = |ours| without_others(bundle.as_bytes(), ours).map(String::from_utf8);
        assert_eq!(
            without(Some(ours.as_str())),
            Some(Ok(format!("# roots\n{public}{ours}# end\n{public}")))
        );
        assert_eq!(
            without(None),
            Some(Ok(format!("# roots\n{public}# end\n{public}")))
        );
        let clean = format!("{public}{ours}{BEGIN} cut");
        assert_eq!(without_others(clean.as_bytes(), Some(&ours)), None);
        assert_eq!(without_others(b"\xff", None), None);
        let overlapping = "-----BEGIN CERTIFICATE-----END CERTIFICATE-----";
        assert_eq!(without_others(overlapping.as_bytes(), None), None);
    }
}
