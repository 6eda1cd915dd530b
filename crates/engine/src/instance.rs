//! What a data directory is called, made once: the name its engine has on the machine, and the id of the host
//! that it is to everybody else.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use cove_model::HostId;

/// Holds the host's id, beside the records and the pool that it stands for.
const HOST_FILE: &str = "host";

/// Reads the host's id or makes one. One that cannot be read is not replaced: the database knows sandboxes by it.
pub fn host_id(data_dir: &Path) -> io::Result<HostId> {
    let path = data_dir.join(HOST_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => {
            return text.trim().parse().map_err(|error| {
                let fix = "put the host's id back; the database names it when it refuses another";
                io::Error::other(format!("{}: {error}; {fix}", path.display()))
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = HostId::random();
    write(data_dir, HOST_FILE, id.as_str())?;
    Ok(id)
}

/// Whole and on disk, or not there.
fn write(data_dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let draft = data_dir.join(format!("{name}.new"));
    let mut file = fs::File::create(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, data_dir.join(name))?;
    fs::File::open(data_dir)?.sync_all()
}

/// Reads the name or makes one. Names go into cgroups and later interfaces, so they are short.
pub fn name(data_dir: &Path) -> io::Result<String> {
    let path = data_dir.join("instance");
    match fs::read_to_string(&path) {
        Ok(text) if is_name(text.trim()) => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let name = format!("{:08x}", rand::random::<u32>());
    write(data_dir, "instance", &name)?;
    Ok(name)
}

fn is_name(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Changes with every boot of the host.
pub fn boot_id(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_id_for_ever_and_a_damaged_one_is_not_replaced() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let id = host_id(folder.path()).unwrap();
        assert_eq!(host_id(folder.path()).unwrap(), id);
        let path = folder.path().join(HOST_FILE);
        // By hand, as the documentation says.
        fs::write(&path, format!("{id}\n")).unwrap();
        assert_eq!(host_id(folder.path()).unwrap(), id);
        for damaged in ["", "host_", "sbx_aaaaaaaaaaaaaaaaaaaa"] {
            fs::write(&path, damaged).unwrap();
            host_id(folder.path()).unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }
}
