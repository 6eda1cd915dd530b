//! Arguments about volumes.

use clap::Subcommand;
use cove_api::volume::Mount;

use super::sandbox::HostOptions;
use crate::units::megabytes;

#[derive(Debug, Clone, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume, empty or as a copy of another
    Create {
        /// Name, unique in the organisation
        name: String,
        /// Size, like 512M or 20G [default: 10G, or the size of --from]
        #[arg(long, value_parser = megabytes, value_name = "SIZE")]
        size: Option<u64>,
        /// Copy the present content of this volume
        #[arg(long, value_name = "VOLUME")]
        from: Option<String>,
        /// Make the copy read-only: a snapshot of the volume
        #[arg(long, requires = "from")]
        read_only: bool,
        #[command(flatten)]
        host: HostOptions,
    },
    /// List volumes
    #[command(visible_alias = "list")]
    Ls {
        /// Print ids only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Show a volume and the sandboxes that mount it
    Show { volume: String },
    /// Delete volumes that no sandbox mounts
    #[command(visible_alias = "delete")]
    Rm {
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// List a directory of a volume
    Files {
        volume: String,
        #[arg(default_value = "/")]
        path: String,
    },
    /// Copy a file into or out of a volume
    Cp {
        /// FILE, VOLUME:PATH, or - for standard input
        source: String,
        /// FILE, VOLUME:PATH, or - for standard output
        target: String,
    },
}

/// `VOLUME:PATH[:ro]`.
pub fn mount(text: &str) -> Result<Mount, String> {
    let wrong = || "must be VOLUME:PATH or VOLUME:PATH:ro".to_owned();
    let (volume, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (path, read_only) = match rest.rsplit_once(':') {
        Some((path, "ro")) => (path, true),
        Some((path, "rw")) => (path, false),
        Some(_) => return Err(wrong()),
        None => (rest, false),
    };
    if volume.is_empty() || !path.starts_with('/') {
        return Err(wrong());
    }
    Ok(Mount {
        volume: volume.to_owned(),
        path: path.to_owned(),
        read_only,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_people_write_them() {
        let read = mount("data:/srv/data:ro").unwrap();
        assert_eq!(
            (read.volume.as_str(), read.path.as_str()),
            ("data", "/srv/data")
        );
        assert!(read.read_only);
        assert!(!mount("data:/srv").unwrap().read_only);
        assert!(!mount("data:/srv:rw").unwrap().read_only);
        for bad in [
            "",
            "data",
            "data:",
            ":/srv",
            "data:srv",
            "data:/srv:xx",
            "/a:/b:c",
        ] {
            assert!(mount(bad).is_err(), "{bad} was accepted");
        }
    }
}
