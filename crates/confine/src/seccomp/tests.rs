#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;

fn answer(
    program: &[libc::sock_filter],
    architecture: u32,
    number: u32,
    arguments: [u32; 3],
) -> u32 {
    let [first, second, third] = arguments.map(u64::from);
    // What is beyond an argument's 32 bits is not looked at.
    let beyond = 0xabcd << 32;
    let call = SeenCall {
        architecture,
        number,
        arguments: [first | beyond, second | beyond, third | beyond, 0, 0, 0],
    };
    super::answer(program, &call).unwrap()
}

const REFUSED: u32 = fails_with(libc::EPERM);

#[test]
fn only_what_is_on_the_list_is_allowed() {
    let listed = [libc::SYS_read, libc::SYS_exit_group];
    for (otherwise, said) in [
        (Otherwise::Kill, libc::SECCOMP_RET_KILL_PROCESS),
        (Otherwise::Refuse, REFUSED),
        (Otherwise::RefuseNoted, libc::SECCOMP_RET_TRAP),
        (Otherwise::Absent, fails_with(libc::ENOSYS)),
    ] {
        let program = assemble(&listed.map(Rule::allow), otherwise).unwrap();
        for number in 0..600 {
            let expected = match listed.contains(&number) {
                true => libc::SECCOMP_RET_ALLOW,
                false => said,
            };
            let got = answer(&program, ARCHITECTURE, number as u32, [0; 3]);
            assert_eq!(got, expected, "call {number}, {otherwise:?}");
        }
        // The same numbers of another table, and those of x32, are not the same calls.
        let read = libc::SYS_read as u32;
        let foreign = answer(&program, 0x4000_0003, read, [0; 3]);
        let expected = match otherwise {
            Otherwise::Absent => said,
            _ => libc::SECCOMP_RET_KILL_PROCESS,
        };
        assert_eq!(foreign, expected);
        let x32 = answer(&program, ARCHITECTURE, 0x4000_0000 | read, [0; 3]);
        assert_eq!(x32, said);
    }
}

#[test]
fn conditions_look_at_the_argument_they_name() {
    let both_bits = Test::Masked {
        mask: 0b101,
        value: 0b101,
    };
    let threads = Verdict::When(0, both_bits, &Verdict::Allow, &Verdict::Fail(libc::EPERM));
    // Family 1 whatever the rest is, family 2 with protocols 0 and 6 only.
    let protocols = Verdict::When(
        2,
        Test::OneOf(&[0, 6]),
        &Verdict::Allow,
        &Verdict::Fail(libc::EPROTONOSUPPORT),
    );
    let second = Verdict::When(
        0,
        Test::OneOf(&[2]),
        &protocols,
        &Verdict::Fail(libc::EAFNOSUPPORT),
    );
    let rules = [
        Rule::allow_where(libc::SYS_ioctl, 1, &[7, 9]),
        Rule::new(libc::SYS_clone, threads),
        Rule::fail(libc::SYS_clone3, libc::ENOSYS),
        Rule::new(
            libc::SYS_socket,
            Verdict::When(0, Test::OneOf(&[1]), &Verdict::Allow, &second),
        ),
        Rule::allow_where(libc::SYS_prctl, 0, &[]),
        Rule::allow(libc::SYS_read),
    ];
    let program = assemble(&rules, Otherwise::Refuse).unwrap();
    let ask =
        |number: libc::c_long, arguments| answer(&program, ARCHITECTURE, number as u32, arguments);
    for value in [7, 9] {
        assert_eq!(ask(libc::SYS_ioctl, [0, value, 0]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(ask(libc::SYS_ioctl, [value, 0, value]), REFUSED);
    }
    for (flags, said) in [
        (0b101, libc::SECCOMP_RET_ALLOW),
        (0b111, libc::SECCOMP_RET_ALLOW),
        (0b100, REFUSED),
        (0, REFUSED),
    ] {
        assert_eq!(ask(libc::SYS_clone, [flags, 7, 7]), said);
    }
    let absent = fails_with(libc::ENOSYS);
    assert_eq!(ask(libc::SYS_clone3, [0; 3]), absent);
    for (arguments, said) in [
        ([1, 0, 99], libc::SECCOMP_RET_ALLOW),
        ([2, 0, 0], libc::SECCOMP_RET_ALLOW),
        ([2, 0, 6], libc::SECCOMP_RET_ALLOW),
        ([2, 0, 99], fails_with(libc::EPROTONOSUPPORT)),
        ([16, 1, 1], fails_with(libc::EAFNOSUPPORT)),
    ] {
        assert_eq!(ask(libc::SYS_socket, arguments), said, "{arguments:?}");
    }
    assert_eq!(ask(libc::SYS_prctl, [0; 3]), REFUSED);
    assert_eq!(ask(libc::SYS_read, [0; 3]), libc::SECCOMP_RET_ALLOW);
}

#[test]
fn neighbouring_numbers_do_not_bleed_into_each_other() {
    // Every pattern of verdicts over a few numbers that follow each other, the first one included.
    let verdicts = [Verdict::Unlisted, Verdict::Allow, Verdict::Fail(libc::EIO)];
    let count = 5;
    for pattern in 0..verdicts.len().pow(count) {
        let chosen = |at: u32| verdicts[pattern / verdicts.len().pow(at) % verdicts.len()];
        let rules: Vec<_> = (0..count)
            .map(|at| Rule::new(at.into(), chosen(at)))
            .collect();
        let program = assemble(&rules, Otherwise::Refuse).unwrap();
        for at in 0..count + 2 {
            let expected = match if at < count {
                chosen(at)
            } else {
                Verdict::Unlisted
            } {
                Verdict::Allow => libc::SECCOMP_RET_ALLOW,
                Verdict::Fail(errno) => fails_with(errno),
                _ => REFUSED,
            };
            let got = answer(&program, ARCHITECTURE, at, [0; 3]);
            assert_eq!(got, expected, "call {at}, pattern {pattern}");
        }
    }
}

#[test]
fn rules_that_disagree_are_refused() {
    let agreeing = [Rule::allow(7), Rule::allow(7)];
    assemble(&agreeing, Otherwise::Kill).unwrap();
    let disagreeing = [Rule::allow(7), Rule::fail(7, libc::EPERM)];
    let error = assemble(&disagreeing, Otherwise::Kill).unwrap_err();
    assert!(error.to_string().contains("system call 7"), "{error}");
}
