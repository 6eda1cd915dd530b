//! From a reference to the list of layers: index, manifest and configuration, each checked
//! against its digest.

use bytes::Bytes;
use serde::Deserialize;

use sha2::Sha256;

use crate::client::{Ask, Client};
use crate::error::RegistryError;
use crate::wire::{
    ARGUMENTS_MAX, CONFIG_BYTES_MAX, CONFIG_TEXT_BYTES_MAX, Configuration, Digest, LAYERS_MAX,
    Layer, Manifest, Order, VARIABLES_MAX,
};

const MAX_MANIFEST_BYTES: usize = 4 << 20;
const MAX_CONFIG_BYTES: usize = 8 << 20;
/// An index may lead to another; more than this in a row is nobody's image.
const MAX_INDEXES: usize = 3;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

const CONFIG_TYPES: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];
/// The unpacker recognises the compression itself.
const LAYER_TYPES: [&str; 9] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
    // Not for everybody to pass on; a registry that has them hands them out like any other. The places
    // elsewhere that such a layer may name are never asked.
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

#[derive(Deserialize)]
struct ConfigFile {
    architecture: String,
    os: String,
    config: Option<ConfigSection>,
    rootfs: RootFs,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigSection {
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

impl Client {
    /// Asks what the reference means, down to the layers for this machine.
    pub async fn resolve(&self, order: &Order) -> Result<Manifest, RegistryError> {
        let body = self.manifest(&order.wanted).await?;
        let digest = digest_of(&body);
        if let Some(expected) = order.digest {
            check_digest(expected, digest)?;
        }
        let mut document = parse(&body)?;
        let mut indexes = 0;
        while let Some(manifests) = document.manifests.take() {
            indexes += 1;
            if indexes > MAX_INDEXES {
                return Err(malformed("indexes are nested too deeply"));
            }
            let (chosen, expected) = choose(manifests, &order.arch)?;
            let body = self.manifest(&chosen.digest).await?;
            check_digest(expected, digest_of(&body))?;
            document = parse(&body)?;
        }
        let (Some(config), Some(layers)) = (document.config, document.layers) else {
            return Err(malformed("the manifest lists no layers"));
        };
        if !CONFIG_TYPES.contains(&&*config.media_type) {
            return Err(RegistryError::UnsupportedMedia {
                media_type: config.media_type,
            });
        }
        let config = self.config(&config.digest).await?;
        let layers = pair(layers, config.rootfs.diff_ids)?;
        if config.os != "linux" || config.architecture != order.arch {
            let available = format!("{}/{}", config.os, config.architecture);
            return Err(RegistryError::NoPlatform {
                arch: order.arch.clone(),
                available,
            });
        }
        Ok(Manifest {
            digest,
            layers,
            configuration: config.config.unwrap_or_default().checked()?,
        })
    }

    async fn manifest(&self, wanted: &str) -> Result<Bytes, RegistryError> {
        let path = format!("manifests/{wanted}");
        let ask = Ask {
            path: &path,
            accept: Some(ACCEPTED),
            from: 0,
        };
        self.get_small(ask, "the manifest", MAX_MANIFEST_BYTES)
            .await
    }

    async fn config(&self, digest: &str) -> Result<ConfigFile, RegistryError> {
        let expected = form(digest)?;
        let path = format!("blobs/{digest}");
        let ask = Ask {
            path: &path,
            accept: None,
            from: 0,
        };
        let body = self
            .get_small(ask, "the configuration", MAX_CONFIG_BYTES)
            .await?;
        check_digest(expected, digest_of(&body))?;
        serde_json::from_slice(&body).map_err(|error| malformed(&format!("configuration: {error}")))
    }
}

fn parse(body: &[u8]) -> Result<Document, RegistryError> {
    let document: Document =
        serde_json::from_slice(body).map_err(|error| malformed(&format!("manifest: {error}")))?;
    let known = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];
    match &document.media_type {
        Some(media_type) if !known.contains(&&**media_type) => {
            Err(RegistryError::UnsupportedMedia {
                media_type: media_type.clone(),
            })
        }
        _ if document.schema_version != 2 => {
            let media_type = format!("a manifest of schema version {}", document.schema_version);
            Err(RegistryError::UnsupportedMedia { media_type })
        }
        _ => Ok(document),
    }
}

/// The entry of an index that runs on this machine.
fn choose(manifests: Vec<Descriptor>, arch: &str) -> Result<(Descriptor, Digest), RegistryError> {
    const KNOWN: [&str; 4] = [OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST];
    let rank = |entry: &Descriptor| {
        let Some(platform) = entry.platform.as_ref().filter(|it| !it.os.is_empty()) else {
            // Some builders do not say what it is for; the configuration tells.
            return KNOWN.contains(&&*entry.media_type).then_some(2);
        };
        let fits = platform.os == "linux" && platform.architecture == arch;
        // Without a variant, or with the first one, it runs on every machine of the architecture.
        match platform.variant.as_deref() {
            _ if !fits => None,
            None | Some("" | "v8" | "v1") => Some(0),
            Some(_) => Some(1),
        }
    };
    let available = || {
        let platforms = manifests.iter().filter_map(|entry| entry.platform.as_ref());
        let names: Vec<_> = platforms
            .map(|platform| format!("{}/{}", platform.os, platform.architecture))
            .take(20)
            .collect();
        names.join(", ")
    };
    let best = (0..manifests.len())
        .filter_map(|index| Some((rank(&manifests[index])?, index)))
        .min()
        .map(|(_, index)| index);
    let Some(best) = best else {
        return Err(RegistryError::NoPlatform {
            arch: arch.to_owned(),
            available: available(),
        });
    };
    let chosen = manifests
        .into_iter()
        .nth(best)
        .expect("the index was just found");
    let digest = form(&chosen.digest)?;
    if !KNOWN.contains(&&*chosen.media_type) {
        return Err(RegistryError::UnsupportedMedia {
            media_type: chosen.media_type,
        });
    }
    Ok((chosen, digest))
}

fn pair(layers: Vec<Descriptor>, diff_ids: Vec<String>) -> Result<Vec<Layer>, RegistryError> {
    if layers.is_empty() || layers.len() != diff_ids.len() {
        return Err(malformed("the configuration does not match the layers"));
    }
    if layers.len() > LAYERS_MAX {
        let (size, limit) = (layers.len() as u64, LAYERS_MAX as u64);
        return Err(RegistryError::TooLarge {
            what: "the list of layers".into(),
            size,
            limit,
        });
    }
    layers
        .into_iter()
        .zip(diff_ids)
        .map(|(layer, diff_id)| {
            let (digest, diff_id) = (form(&layer.digest)?, form(&diff_id)?);
            if !LAYER_TYPES.contains(&&*layer.media_type) {
                return Err(RegistryError::UnsupportedMedia {
                    media_type: layer.media_type,
                });
            }
            Ok(Layer {
                digest,
                size: layer.size,
                diff_id,
            })
        })
        .collect()
}

impl ConfigSection {
    /// As it is handed on, when it is no larger than a real one.
    fn checked(self) -> Result<Configuration, RegistryError> {
        let variable = |text: String| {
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            (name.to_owned(), value.to_owned())
        };
        let configuration = Configuration {
            env: self
                .env
                .unwrap_or_default()
                .into_iter()
                .map(variable)
                .collect(),
            user: self.user.unwrap_or_default(),
            workdir: self.working_dir.unwrap_or_default(),
            entrypoint: self.entrypoint.unwrap_or_default(),
            cmd: self.cmd.unwrap_or_default(),
        };
        let unusable = |text: &String| text.len() > CONFIG_TEXT_BYTES_MAX || text.contains('\0');
        if configuration.texts().any(unusable) {
            return Err(malformed(
                "the configuration has a text that no process can take",
            ));
        }
        if configuration.bytes() > CONFIG_BYTES_MAX
            || configuration.env.len() > VARIABLES_MAX
            || configuration.entrypoint.len() > ARGUMENTS_MAX
            || configuration.cmd.len() > ARGUMENTS_MAX
        {
            return Err(malformed(
                "the configuration is larger than any process can take",
            ));
        }
        Ok(configuration)
    }
}

fn digest_of(body: &[u8]) -> Digest {
    use sha2::Digest as _;
    Digest(Sha256::digest(body).into())
}

fn check_digest(expected: Digest, actual: Digest) -> Result<(), RegistryError> {
    if expected == actual {
        return Ok(());
    }
    Err(RegistryError::DigestMismatch {
        expected: expected.to_string(),
        actual: actual.to_string(),
    })
}

fn form(digest: &str) -> Result<Digest, RegistryError> {
    Digest::parse(digest).ok_or_else(|| malformed("a digest is not sha256"))
}

fn malformed(reason: &str) -> RegistryError {
    RegistryError::Malformed {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "amd64";

    fn entry(os: &str, architecture: &str, variant: Option<&str>, fill: char) -> Descriptor {
        Descriptor {
            media_type: OCI_MANIFEST.to_owned(),
            digest: format!("sha256:{}", fill.to_string().repeat(64)),
            size: 1,
            platform: Some(Platform {
                os: os.to_owned(),
                architecture: architecture.to_owned(),
                variant: variant.map(str::to_owned),
            }),
        }
    }

    #[test]
    fn the_plainest_variant_for_this_machine_is_chosen() {
        let here = HERE;
        let list = vec![
            entry("windows", here, None, '1'),
            entry("linux", "s390x", None, '2'),
            entry("linux", here, Some("v3"), '3'),
            entry("linux", here, None, '4'),
        ];
        assert!(choose(list, HERE).unwrap().0.digest.ends_with("444"));
        let untold = |fill| Descriptor {
            platform: None,
            ..entry("", "", None, fill)
        };
        let list = vec![
            untold('5'),
            entry("linux", here, Some("v3"), '3'),
            untold('6'),
        ];
        assert!(choose(list, HERE).unwrap().0.digest.ends_with("333"));
        let list = vec![entry("linux", "s390x", None, '2'), untold('6')];
        assert!(choose(list, HERE).unwrap().0.digest.ends_with("666"));
        let missing = choose(vec![entry("linux", "s390x", None, '2')], HERE);
        assert!(
            matches!(missing, Err(RegistryError::NoPlatform { available, .. }) if available == "linux/s390x")
        );
    }

    #[test]
    fn layers_and_configuration_must_fit_each_other() {
        let layer = |media_type: &str| Descriptor {
            media_type: media_type.to_owned(),
            ..entry("", "", None, 'a')
        };
        let diff_id = format!("sha256:{}", "b".repeat(64));
        assert_eq!(
            pair(vec![layer(LAYER_TYPES[1])], vec![diff_id.clone()])
                .unwrap()
                .len(),
            1
        );
        assert!(pair(vec![], vec![]).is_err());
        assert!(pair(vec![layer(LAYER_TYPES[1])], vec![]).is_err());
        assert!(pair(vec![layer("text/plain")], vec![diff_id.clone()]).is_err());
        assert!(pair(vec![layer(LAYER_TYPES[1])], vec!["md5:0".to_owned()]).is_err());
    }

    #[test]
    fn old_schemas_and_other_artifacts_are_refused() {
        for text in [
            r#"{"schemaVersion":1}"#,
            r#"{"schemaVersion":2,"mediaType":"application/x"}"#,
        ] {
            assert!(
                matches!(
                    parse(text.as_bytes()),
                    Err(RegistryError::UnsupportedMedia { .. })
                ),
                "{text}"
            );
        }
        assert!(matches!(parse(b"[]"), Err(RegistryError::Malformed { .. })));
    }
}
