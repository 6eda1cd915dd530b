//! Why a call is refused: the code the host acts on and the sentence a person reads.

use std::io;

use cove_protocol::message::{self, ErrorCode};

/// Bytes of an error text; what a caller sent may be quoted in it.
const MESSAGE_MAX: usize = 1024;

#[derive(Debug)]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_MAX.min(message.len())));
        Self { code, message }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Invalid, message)
    }

    /// What the kernel said about `what`.
    pub fn io(what: &str, error: &io::Error) -> Self {
        let code = match error.raw_os_error() {
            Some(errno) => code_of(errno),
            None => match error.kind() {
                io::ErrorKind::NotFound => ErrorCode::NotFound,
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => ErrorCode::Invalid,
                _ => ErrorCode::Internal,
            },
        };
        Self::new(code, format!("{what}: {error}"))
    }

    pub fn into_message(self) -> message::Error {
        message::Error {
            code: self.code as i32,
            message: self.message,
        }
    }
}

/// Adds to a system error what was being done.
pub trait Doing<T> {
    fn doing(self, what: &str) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|error| Failure::io(what, &error))
    }
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|errno| Failure::io(what, &errno.into()))
    }
}

pub fn code_of(errno: i32) -> ErrorCode {
    match errno {
        libc::ENOENT => ErrorCode::NotFound,
        libc::EEXIST => ErrorCode::AlreadyExists,
        libc::EACCES | libc::EPERM | libc::EROFS => ErrorCode::PermissionDenied,
        libc::ENOTDIR => ErrorCode::NotADirectory,
        libc::EISDIR => ErrorCode::IsADirectory,
        libc::ENOTEMPTY => ErrorCode::NotEmpty,
        libc::ENOSPC | libc::EDQUOT => ErrorCode::DiskFull,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EFBIG => ErrorCode::Limit,
        libc::EINVAL | libc::ELOOP | libc::ENAMETOOLONG | libc::E2BIG | libc::ENXIO => {
            ErrorCode::Invalid
        }
        libc::ECONNREFUSED => ErrorCode::ConnectionRefused,
        libc::ESRCH | libc::EPIPE => ErrorCode::Gone,
        libc::EOPNOTSUPP | libc::ENOSYS => ErrorCode::Unsupported,
        _ => ErrorCode::Internal,
    }
}
