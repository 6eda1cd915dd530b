//! Identity tokens of sandboxes: the claims, the keys that sign them, and the two documents by which others
//! check them (OpenID discovery and JWKS).
//!
//! Nothing here knows HTTP, the database or a clock: the time is an argument, and keys are kept by whoever
//! calls ([`KeySet::load`] and [`KeySet::save`] are for the file that control keeps). A token is good for a
//! few minutes at most, because whoever checks it asks nobody.
#![forbid(unsafe_code)]

mod claims;
mod documents;
mod file;
mod issuer;
mod keys;

pub use claims::{Claims, CoveClaims, audience_problem};
pub use documents::{Discovery, Jwk, Jwks};
pub use issuer::{Issuer, IssuerError};
pub use keys::{
    KeyError, KeySet, OVERLAP_S, PUBLISH_AHEAD_S, ROTATE_AFTER_S, Rotation, SigningKey,
};
