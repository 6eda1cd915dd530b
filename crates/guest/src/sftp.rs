//! The SFTP server: version 3 with OpenSSH's extensions, over standard input and output.
//!
//! The guest's program runs as this when the gateway starts it as an ordinary command, with the rights of
//! the user that logged in and nothing else. So an image needs no server of its own, every byte that a
//! client sends is read inside the sandbox, and a path means what it means to any program there.

use std::collections::HashMap;
use std::fs::{File, ReadDir};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::iter::Peekable;
use std::path::PathBuf;
use std::process::ExitCode;

mod attributes;
mod extended;
mod files;
mod names;
mod wire;

use wire::{Body, Status};

/// The argument that makes the guest's program this.
pub const ARGUMENT: &str = "sftp";
const VERSION: u32 = 3;
/// Files and directories a client may have open at once.
const HANDLES_MAX: usize = 256;
/// Bytes of one packet, as OpenSSH's own server takes them.
const PACKET_MAX: usize = 256 * 1024;
/// Bytes read or written by one request: a packet less room for what is around them.
const DATA_MAX: usize = PACKET_MAX - 1024;

enum Handle {
    File(File),
    Directory(PathBuf, Box<Peekable<ReadDir>>),
}

struct Server {
    handles: HashMap<u32, Handle>,
    next_handle: u32,
    owners: names::Owners,
}

/// What a request is answered with.
enum Answer {
    Status(Status, String),
    Handle(u32),
    Data(Vec<u8>),
    Names(Vec<names::Entry>),
    Attributes(attributes::Attributes),
    Extended(Vec<u8>),
}

/// Why a request is refused.
enum Refusal {
    Io(io::Error),
    Status(Status, &'static str),
    /// The packet makes no sense.
    Malformed,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Io(error) => Self::Status(Status::of(&error), error.to_string()),
            Refusal::Status(status, text) => Self::Status(status, text.to_owned()),
            Refusal::Malformed => {
                Self::Status(Status::BadMessage, "the request is invalid".to_owned())
            }
        }
    }
}

fn done() -> Answer {
    Answer::Status(Status::Ok, String::new())
}

/// Serves one client until it leaves.
pub fn run() -> ExitCode {
    let input = BufReader::with_capacity(PACKET_MAX, io::stdin().lock());
    let output = BufWriter::with_capacity(PACKET_MAX, io::stdout().lock());
    match serve(input, output) {
        Ok(()) => ExitCode::SUCCESS,
        // A client that is gone needs no explanation.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sftp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut server = Server {
        handles: HashMap::new(),
        next_handle: 0,
        owners: names::Owners::read(),
    };
    let mut packet = Vec::new();
    let mut reply = Vec::new();
    while wire::read_packet(&mut input, &mut packet)? {
        reply.clear();
        let mut body = Body::new(&packet);
        let Some(kind) = body.byte() else {
            return Err(malformed("an empty packet"));
        };
        if kind == wire::INIT {
            let mut version = wire::Packet::begin(&mut reply, wire::VERSION);
            version.number(VERSION);
            for (name, value) in extended::OFFERED {
                version.text(name.as_bytes()).text(value.as_bytes());
            }
            version.end();
        } else {
            let Some(id) = body.number() else {
                return Err(malformed("a request without a number"));
            };
            let answer = server.answer(kind, body).unwrap_or_else(Answer::from);
            wire::write_answer(&mut reply, id, answer);
        }
        output.write_all(&reply)?;
        output.flush()?;
    }
    Ok(())
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Server {
    fn answer(&mut self, kind: u8, mut body: Body<'_>) -> Result<Answer, Refusal> {
        match kind {
            wire::OPEN => self.open(&mut body),
            wire::CLOSE => self.close(&mut body),
            wire::READ => self.read(&mut body),
            wire::WRITE => self.write(&mut body),
            wire::LSTAT => files::stat(&mut body, false),
            wire::STAT => files::stat(&mut body, true),
            wire::FSTAT => self.fstat(&mut body),
            wire::SETSTAT => files::set_stat(&mut body, true),
            wire::FSETSTAT => self.fset_stat(&mut body),
            wire::OPENDIR => self.open_directory(&mut body),
            wire::READDIR => self.read_directory(&mut body),
            wire::REMOVE => files::remove(&mut body),
            wire::MKDIR => files::make_directory(&mut body),
            wire::RMDIR => files::remove_directory(&mut body),
            wire::REALPATH => files::real_path(&mut body),
            wire::RENAME => files::rename(&mut body),
            wire::READLINK => files::read_link(&mut body),
            wire::SYMLINK => files::symlink(&mut body),
            wire::EXTENDED => self.extended(&mut body),
            _ => Err(Refusal::Status(
                Status::Unsupported,
                "this server does not know the request",
            )),
        }
    }

    fn keep(&mut self, handle: Handle) -> Result<Answer, Refusal> {
        if self.handles.len() >= HANDLES_MAX {
            return Err(Refusal::Status(
                Status::Failure,
                "too many files are open in this session",
            ));
        }
        // Numbers come round after four thousand million; the few in use are skipped.
        while self.handles.contains_key(&self.next_handle) {
            self.next_handle = self.next_handle.wrapping_add(1);
        }
        let number = self.next_handle;
        self.next_handle = number.wrapping_add(1);
        self.handles.insert(number, handle);
        Ok(Answer::Handle(number))
    }

    fn file(&self, body: &mut Body<'_>) -> Result<&File, Refusal> {
        match self.handles.get(&body.handle()?) {
            Some(Handle::File(file)) => Ok(file),
            _ => Err(no_handle()),
        }
    }

    fn open(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let file = files::open(body)?;
        self.keep(Handle::File(file))
    }

    fn close(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let closed = self.handles.remove(&body.handle()?);
        closed.map(|_| done()).ok_or_else(no_handle)
    }

    fn read(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let file = self.file(body)?;
        let (offset, length) = (body.long()?, body.needed_number()?);
        let length = usize::try_from(length).unwrap_or(DATA_MAX).min(DATA_MAX);
        let mut data = vec![0; length];
        let count = files::read_at(file, &mut data, offset)?;
        if count == 0 && length > 0 {
            return Err(Refusal::Status(Status::EndOfFile, "end of file"));
        }
        data.truncate(count);
        Ok(Answer::Data(data))
    }

    fn write(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let file = self.file(body)?;
        let offset = body.long()?;
        std::os::unix::fs::FileExt::write_all_at(file, body.text()?, offset)?;
        Ok(done())
    }

    fn fstat(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let metadata = self.file(body)?.metadata()?;
        Ok(Answer::Attributes((&metadata).into()))
    }

    fn fset_stat(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let file = self.file(body)?;
        attributes::Change::read(body)?.apply_to(file)?;
        Ok(done())
    }

    fn open_directory(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let path = body.path()?;
        let entries = std::fs::read_dir(&path)?;
        self.keep(Handle::Directory(path, Box::new(entries.peekable())))
    }

    fn read_directory(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        let Some(Handle::Directory(path, entries)) = self.handles.get_mut(&body.handle()?) else {
            return Err(no_handle());
        };
        let found = names::next_entries(path, entries, &self.owners)?;
        if found.is_empty() {
            return Err(Refusal::Status(Status::EndOfFile, "end of the directory"));
        }
        Ok(Answer::Names(found))
    }
}

fn no_handle() -> Refusal {
    Refusal::Status(Status::Failure, "the handle is not open")
}

#[cfg(test)]
mod tests;
