//! `cove exec` between other programs.

use std::io::Read;
use std::process::Stdio;

use super::harness::{Cove, signal, wait_for};

#[test]
fn standard_input_goes_through_whole() {
    let cove = Cove::start();
    cove.sandbox("box");
    let input: Vec<u8> = (0..2_000_000u32).map(|i| (i % 251) as u8).collect();
    let output = cove.fed(["exec", "-i", "box", "--", "cat"], &input);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.stdout == input,
        "{} bytes came back of {}",
        output.stdout.len(),
        input.len()
    );
    let counted = cove.fed(["exec", "-i", "box", "--", "wc", "-c"], b"12345");
    assert_eq!(counted.stdout, b"5\n");
    // One that does not read its input is not held up by it.
    assert!(
        cove.fed(["exec", "-i", "box", "--", "true"], &input)
            .status
            .success()
    );
}

#[test]
fn standard_input_is_left_alone_unless_asked_for() {
    let cove = Cove::start();
    cove.sandbox("box");
    // As in `while read line; do cove exec ...; done < list`: the list is not for the command.
    let script = "while read line; do \"$0\" exec box -- sh -c \"cat; echo $line\"; done";
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", script, super::harness::program()])
        .env("COVE_DATA_DIR", cove.data_dir())
        .env_remove("COVE_URL")
        .env_remove("COVE_API_KEY")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"one\ntwo\nthree\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo\nthree\n");
}

#[test]
fn output_is_whole_and_streams_stay_apart() {
    let cove = Cove::start();
    cove.sandbox("box");
    let output = cove.run(["exec", "box", "-c", "seq 1 200000; echo problem >&2"]);
    let expected: String = (1..=200_000).map(|i| format!("{i}\n")).collect();
    assert!(
        output.stdout == expected.as_bytes(),
        "{} bytes",
        output.stdout.len()
    );
    assert_eq!(output.stderr, b"problem\n");
}

#[test]
fn a_reader_that_leaves_ends_the_command_as_in_any_pipe() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut child = cove
        .command(["exec", "box", "--", "yes"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(&some, b"y\ny\n");
    assert_eq!(child.wait().unwrap().code(), Some(141));
    wait_for("the command inside ended", || {
        let all = cove.json(["ps", "--all", "box"]);
        all.as_array()
            .unwrap()
            .iter()
            .all(|process| !process["exit"].is_null())
            .then_some(())
    });
}

#[test]
fn an_interrupt_reaches_the_command() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut child = cove
        .command([
            "exec",
            "box",
            "-c",
            "trap 'echo caught; exit 9' INT; echo ready; while true; do sleep 0.1; done",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    stdout.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    signal(child.id().cast_signed(), rustix::process::Signal::INT);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "caught\n");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}
