//! The name an engine has on its host, made once per data directory.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

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
    let draft = data_dir.join("instance.new");
    let mut file = fs::File::create(&draft)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, &path)?;
    Ok(name)
}

fn is_name(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Changes with every boot of the host.
pub fn boot_id(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}
