//! The key of one organisation for object storage, wrapped by the fleet key.
//!
//! The fleet key has the form of a host key: a file of root's, or a command's answer. It is in neither the database
//! nor the bucket, so neither of them alone, nor both together, opens anything.

use cove_model::OrgId;
use cove_model::secret::WrappedKeys;
use zeroize::Zeroizing;

use crate::VaultError;
use crate::host_key::HostKeys;

fn about(org: &OrgId) -> Vec<u8> {
    format!("cove object key 1 {org}").into_bytes()
}

/// As the database keeps it.
pub fn wrap_object_key(org: &OrgId, fleet: &HostKeys, key: &[u8]) -> Result<String, VaultError> {
    let wrapped = fleet.wrap(&about(org), key)?;
    serde_json::to_string(&wrapped).map_err(|error| VaultError::Make(error.to_string()))
}

/// What [`wrap_object_key`] wrapped for the same organisation.
pub fn open_object_key(
    org: &OrgId,
    fleet: &HostKeys,
    text: &str,
) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let refused = || VaultError::Wrapped {
        org: org.to_string(),
    };
    let wrapped: WrappedKeys = serde_json::from_str(text).map_err(|_| refused())?;
    fleet.unwrap(&about(org), &wrapped)?.ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_for_its_organisation_and_fleet_alone() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = HostKeys::load_or_make(&dir.path().join("a")).unwrap();
        let other = HostKeys::load_or_make(&dir.path().join("b")).unwrap();
        let (ours, theirs) = (OrgId::random(), OrgId::random());
        let kept = wrap_object_key(&ours, &fleet, b"key").unwrap();
        assert!(!kept.contains("a2V5"));
        assert_eq!(&open_object_key(&ours, &fleet, &kept).unwrap()[..], b"key");
        let moved = open_object_key(&theirs, &fleet, &kept);
        assert!(matches!(moved, Err(VaultError::Wrapped { .. })));
        let foreign = open_object_key(&ours, &other, &kept);
        assert!(matches!(foreign, Err(VaultError::OtherHostKey { .. })));
        assert!(open_object_key(&ours, &fleet, "{}").is_err());
    }
}
