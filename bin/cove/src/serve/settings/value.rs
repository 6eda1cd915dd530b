//! How values of each kind are read from text and shown as text: the file, the environment and the
//! command line all come through here.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How values of a kind are read and shown.
pub trait Value: Sized {
    fn read(text: &str) -> Result<Self, String>;
    fn show(&self) -> String;
}

macro_rules! parsed {
    ($($kind:ty => $wrong:literal),*) => {$(
        impl Value for $kind {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| $wrong.to_owned())
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

parsed!(u64 => "must be a whole number", SocketAddr => "must be like 127.0.0.1:7070", String => "must be text", bool => "must be true or false");

impl Value for f64 {
    fn read(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
            _ => Err("must be a number, not below 0".into()),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Err("must be a path".into())
        } else {
            Ok(text.into())
        }
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Value for Option<PathBuf> {
    fn read(text: &str) -> Result<Self, String> {
        Ok(Some(text).filter(|text| !text.is_empty()).map(Into::into))
    }
    fn show(&self) -> String {
        self.as_ref()
            .map_or_else(String::new, |path| path.display().to_string())
    }
}

/// Names with commas between them; in the file also as a list.
impl Value for Vec<String> {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(String::is_empty) {
            return Err("must be names with commas between them".into());
        }
        Ok(names)
    }
    fn show(&self) -> String {
        self.join(",")
    }
}
