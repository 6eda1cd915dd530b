//! What a program in the sandbox does. Everything here is called inside the sandbox's namespace.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};

use cove_gateway::dns::wire::{self, WireName};
use socket2::{Domain, Socket, Type};

use crate::world::{GATEWAY, PATIENCE, SANDBOX, name};

/// What the resolver said, taken apart without its own code.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub code: u8,
    pub addresses: Vec<Ipv4Addr>,
    pub records: u16,
    pub bytes: Vec<u8>,
}

pub fn query(text: &str, kind: u16) -> Vec<u8> {
    wire::encode_query(7, &WireName::from_name(&name(text)), kind)
}

/// A question whose labels may be anything.
pub fn odd_query(labels: &[&[u8]]) -> Vec<u8> {
    let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in labels {
        message.push(label.len() as u8);
        message.extend_from_slice(label);
    }
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    message
}

pub fn read_answer(bytes: &[u8]) -> Said {
    let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (code, records) = (bytes[3] & 15, number(6));
    let mut addresses = Vec::new();
    let mut at = 12;
    while number(4) > 0 && bytes[at] != 0 {
        at += 1 + usize::from(bytes[at]);
    }
    at += 5;
    for _ in 0..records {
        let (kind, length) = (number(at + 2), usize::from(number(at + 10)));
        if kind == wire::A {
            addresses.push(Ipv4Addr::new(
                bytes[at + 12],
                bytes[at + 13],
                bytes[at + 14],
                bytes[at + 15],
            ));
        }
        at += 12 + length;
    }
    Said {
        code,
        addresses,
        records,
        bytes: bytes.to_vec(),
    }
}

pub fn ask_bytes(from: Ipv4Addr, server: Ipv4Addr, message: &[u8]) -> io::Result<Said> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((server, 53))?;
    socket.send(message)?;
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer)?;
    Ok(read_answer(&buffer[..length]))
}

pub fn ask(text: &str) -> Said {
    ask_bytes(SANDBOX, GATEWAY, &query(text, wire::A)).unwrap()
}

pub fn connect_from(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddrV4::new(from, 0).into())?;
    socket.connect_timeout(&SocketAddrV4::new(to, port).into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A reset can come so early that it is the connecting that fails.
pub fn connect(to: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    connect_from(SANDBOX, to, port)
}

/// Sends, and reads the first line of what comes back. An error is how a denial ends.
pub fn exchange(stream: io::Result<TcpStream>, bytes: &[u8]) -> io::Result<String> {
    let mut stream = stream?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    // Until the first line is there; the servers keep the connection open.
    while !answer.contains(&b'\n') {
        match stream.read(&mut buffer)? {
            0 => break,
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Whether the connection was ended by the other side, rather than by our patience.
pub fn is_cut(result: &io::Result<usize>) -> bool {
    match result {
        Ok(count) => *count == 0,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ),
    }
}

/// Ended without a byte of an answer, or with a TLS alert only.
pub fn is_denied(result: &io::Result<String>) -> bool {
    match result {
        Ok(text) => text.is_empty() || text.as_bytes().first() == Some(&21),
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ),
    }
}

fn list(length_bytes: usize, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&length[4 - length_bytes..], body].concat()
}

pub fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &list(2, body)].concat()
}

pub fn server_name(name: &[u8]) -> Vec<u8> {
    extension(0, &list(2, &[&[0][..], &list(2, name)].concat()))
}

/// A TLS hello with these extensions, cut into records of that many bytes.
pub fn hello_of(extensions: &[Vec<u8>], record_bytes: usize) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &list(1, &[]),
        &list(2, &[0x13, 0x01]),
        &list(1, &[0]),
        &list(2, &extensions.concat()),
    ]
    .concat();
    let message = [&[1][..], &list(3, &body)].concat();
    message
        .chunks(record_bytes)
        .flat_map(|part| [&[22, 3, 1][..], &list(2, part)].concat())
        .collect()
}

pub fn hello(name: &str) -> Vec<u8> {
    hello_of(&[server_name(name.as_bytes())], 16_000)
}

pub fn get(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}
