//! Conversations by hand; the real clients are met end to end.

use super::wire::Packet;
use super::*;

fn path_of(path: &std::path::Path) -> &[u8] {
    path.to_str().unwrap().as_bytes()
}

/// Kind and rest of every answer to these packets.
fn talk(packets: &[u8]) -> io::Result<Vec<(u8, Vec<u8>)>> {
    let mut output = Vec::new();
    serve(packets, &mut output)?;
    let mut answers = Vec::new();
    let mut rest = output.as_slice();
    let mut packet = Vec::new();
    while wire::read_packet(&mut rest, &mut packet)? {
        answers.push((packet[0], packet[1..].to_vec()));
    }
    Ok(answers)
}

fn request(into: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Packet<'_>)) {
    let mut packet = Packet::begin(into, kind);
    packet.number(7);
    fill(&mut packet);
    packet.end();
}

fn status(answer: &(u8, Vec<u8>)) -> u32 {
    assert_eq!(answer.0, 101, "{answer:?}");
    u32::from_be_bytes(answer.1[4..8].try_into().unwrap())
}

#[test]
fn files_are_written_read_and_listed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a\u{e9}");
    let mut packets = Vec::new();
    request(&mut packets, wire::OPEN, |packet| {
        packet.text(path_of(&file)).number(2 | 8 | 32).number(0);
    });
    request(&mut packets, wire::WRITE, |packet| {
        packet.text(&[0; 4]).long(3).text(b"xyz");
    });
    request(&mut packets, wire::CLOSE, |packet| {
        packet.text(&[0; 4]);
    });
    request(&mut packets, wire::OPENDIR, |packet| {
        packet.text(path_of(directory.path()));
    });
    request(&mut packets, wire::READDIR, |packet| {
        packet.text(&1_u32.to_be_bytes());
    });
    request(&mut packets, wire::READDIR, |packet| {
        packet.text(&1_u32.to_be_bytes());
    });
    let answers = talk(&packets).unwrap();
    assert_eq!(answers[0].0, 102);
    assert_eq!(status(&answers[1]), 0);
    assert_eq!(status(&answers[2]), 0);
    assert_eq!(answers[4].0, 104);
    assert_eq!(status(&answers[5]), 1, "the end of the directory");
    assert_eq!(std::fs::read(&file).unwrap(), b"\0\0\0xyz");
}

#[test]
fn what_makes_no_sense_is_refused_and_the_session_goes_on() {
    let mut packets = Vec::new();
    for (kind, bytes) in [
        (wire::OPEN, &[0xff_u8; 4][..]),
        (wire::READ, b""),
        (wire::CLOSE, b"\0\0\0\x01x"),
        (wire::STAT, b"\0\0\0\x02a\0"),
        (wire::SETSTAT, b"\0\0\0\x01/\x80\0\0\0\xff\xff\xff\xff"),
        (wire::EXTENDED, b"\0\0\0\x04evil"),
        (99, b"what"),
    ] {
        request(&mut packets, kind, |packet| {
            packet.raw(bytes);
        });
    }
    let statuses: Vec<_> = talk(&packets).unwrap().iter().map(status).collect();
    assert_eq!(statuses, [5, 5, 5, 5, 5, 8, 8]);
}

#[test]
fn a_packet_too_long_or_cut_off_ends_the_session() {
    assert!(talk(&[0xff, 0xff, 0xff, 0xff, 1]).is_err());
    assert!(talk(&[0, 0, 0, 9, 1]).is_err());
    assert!(talk(&[0, 0]).is_err());
    assert!(talk(&[0, 0, 0, 0]).is_err());
    assert!(talk(&[]).unwrap().is_empty());
}

#[test]
fn only_so_many_files_are_open_at_once() {
    let mut packets = Vec::new();
    for _ in 0..=HANDLES_MAX {
        request(&mut packets, wire::OPENDIR, |packet| {
            packet.text(b"/");
        });
    }
    let answers = talk(&packets).unwrap();
    assert!(answers[..HANDLES_MAX].iter().all(|(kind, _)| *kind == 102));
    assert_eq!(status(&answers[HANDLES_MAX]), 4);
}

#[test]
fn a_pipe_nobody_writes_to_does_not_hold_the_session_up() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let mut packets = Vec::new();
    request(&mut packets, wire::OPEN, |packet| {
        packet.text(path_of(&pipe)).number(1).number(0);
    });
    request(&mut packets, wire::REALPATH, |packet| {
        packet.text(b"/nowhere/../etc/./nothing");
    });
    let answers = talk(&packets).unwrap();
    assert_eq!(answers[0].0, 102);
    assert_eq!(answers.len(), 2);
}
