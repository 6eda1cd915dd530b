//! Lists of system calls that programs of Cove leave themselves before they read strangers' bytes.
//!
//! Owns the shape of such a filter and its installation; which calls are on the list, and what happens
//! to one that is not, comes from the program. The filter of sandboxes is another matter, and the spawner
//! builds it.

use std::io;

mod refused;

pub use refused::{Refused, note_refused};

/// How the kernel tells a filter which table of numbers a call means.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in the kernel's `seccomp_data`.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
/// The first argument's lower half; all that are looked at are 32 bits wide to the kernel.
const OFFSET_ARGUMENTS: u32 = if cfg!(target_endian = "little") {
    16
} else {
    20
};
const ARGUMENT_BYTES: u32 = 8;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;

/// What becomes of a call that is not on the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// The process dies: what it was asked to read has taken it over.
    Kill,
    /// The call fails with EPERM: a library that tries something new finds another way.
    Refuse,
    /// The same, and its number is noted: see [`note_refused`], which must have been called.
    RefuseNoted,
}

/// One line of a list.
#[derive(Debug, Clone, Copy)]
pub enum Rule<'a> {
    Allow(libc::c_long),
    /// Allowed when the argument, counted from 0, is one of these.
    AllowWhere(libc::c_long, u32, &'a [u32]),
    /// The same, and with others it fails with this error, without a note.
    AllowWhereOrFail(libc::c_long, u32, &'a [u32], i32),
    /// Allowed when the argument has all of these bits; otherwise it fails with this error, without a note.
    AllowWithOrFail(libc::c_long, u32, u32, i32),
    /// Fails with this error, without a note: callers expect that and go another way.
    Fail(libc::c_long, i32),
}

/// Which threads a filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The calling one, and those it makes.
    This,
    All,
}

fn instruction(code: u16, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

impl Rule<'_> {
    fn number(&self) -> u32 {
        let (Self::Allow(number)
        | Self::AllowWhere(number, ..)
        | Self::AllowWhereOrFail(number, ..)
        | Self::AllowWithOrFail(number, ..)
        | Self::Fail(number, _)) = self;
        *number as u32
    }

    /// What is done once the number fits. Ends with a verdict either way.
    fn body(&self, otherwise: u32) -> Vec<libc::sock_filter> {
        let argument = |index: &u32| OFFSET_ARGUMENTS + index * ARGUMENT_BYTES;
        let allow = instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
        let refuse = instruction(RETURN, otherwise, 0, 0);
        let fail = |errno: i32| {
            let verdict = libc::SECCOMP_RET_ERRNO | errno as u32;
            instruction(RETURN, verdict, 0, 0)
        };
        let one_of = |index: &u32, values: &[u32], end| {
            let mut body = vec![instruction(LOAD, argument(index), 0, 0)];
            for value in values {
                body.extend([instruction(JUMP_EQUAL, *value, 0, 1), allow]);
            }
            body.push(end);
            body
        };
        match self {
            Self::Allow(_) => vec![allow],
            Self::AllowWhere(_, index, values) => one_of(index, values, refuse),
            Self::AllowWhereOrFail(_, index, values, errno) => one_of(index, values, fail(*errno)),
            Self::AllowWithOrFail(_, index, bits, errno) => vec![
                instruction(LOAD, argument(index), 0, 0),
                instruction(AND, *bits, 0, 0),
                instruction(JUMP_EQUAL, *bits, 0, 1),
                allow,
                fail(*errno),
            ],
            Self::Fail(_, errno) => vec![fail(*errno)],
        }
    }
}

/// Calls of another table of numbers always kill: no program of ours makes one.
fn program(rules: &[Rule<'_>], otherwise: Otherwise) -> io::Result<Vec<libc::sock_filter>> {
    let otherwise = match otherwise {
        Otherwise::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        Otherwise::Refuse => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        Otherwise::RefuseNoted => libc::SECCOMP_RET_TRAP,
    };
    let mut program = vec![
        instruction(LOAD, OFFSET_ARCHITECTURE, 0, 0),
        instruction(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        instruction(LOAD, OFFSET_NUMBER, 0, 0),
    ];
    for rule in rules {
        let body = rule.body(otherwise);
        let over = u8::try_from(body.len()).map_err(io::Error::other)?;
        program.push(instruction(JUMP_EQUAL, rule.number(), 0, over));
        program.extend(body);
    }
    program.push(instruction(RETURN, otherwise, 0, 0));
    Ok(program)
}

/// As [`install`], for a list without conditions.
pub fn allow_only(
    allowed: &[libc::c_long],
    otherwise: Otherwise,
    threads: Threads,
) -> io::Result<()> {
    let rules: Vec<_> = allowed.iter().map(|number| Rule::Allow(*number)).collect();
    install(&rules, otherwise, threads)
}

/// Leaves only the calls on the list, for good. The caller must have given up new privileges.
pub fn install(rules: &[Rule<'_>], otherwise: Otherwise, threads: Threads) -> io::Result<()> {
    let mut program = program(rules, otherwise)?;
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    let flags = match threads {
        Threads::This => 0,
        Threads::All => libc::SECCOMP_FILTER_FLAG_TSYNC,
    };
    // SAFETY: the filter points to `program`, which outlives the call; the kernel copies it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        )
    };
    match result {
        0 => Ok(()),
        // With all threads meant, a positive answer is the one that could not follow.
        1.. => Err(io::Error::other(format!(
            "thread {result} has another filter"
        ))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers, by a tiny interpreter of the instructions it uses.
    fn answer(
        program: &[libc::sock_filter],
        architecture: u32,
        number: u32,
        arguments: [u32; 3],
    ) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            match step.code {
                LOAD if step.k == OFFSET_NUMBER => accumulator = number,
                LOAD if step.k == OFFSET_ARCHITECTURE => accumulator = architecture,
                LOAD => {
                    let index = (step.k - OFFSET_ARGUMENTS) / ARGUMENT_BYTES;
                    accumulator = arguments[index as usize];
                }
                AND => accumulator &= step.k,
                JUMP_EQUAL if accumulator == step.k => at += usize::from(step.jt),
                JUMP_EQUAL => at += usize::from(step.jf),
                RETURN => return step.k,
                other => panic!("instruction {other:#x} is not used"),
            }
        }
    }

    const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    #[test]
    fn only_what_is_on_the_list_is_allowed() {
        let listed = [libc::SYS_read, libc::SYS_exit_group];
        for (otherwise, said) in [
            (Otherwise::Kill, libc::SECCOMP_RET_KILL_PROCESS),
            (Otherwise::Refuse, REFUSED),
            (Otherwise::RefuseNoted, libc::SECCOMP_RET_TRAP),
        ] {
            let program = program(&listed.map(Rule::Allow), otherwise).unwrap();
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
            assert_eq!(foreign, libc::SECCOMP_RET_KILL_PROCESS);
            let x32 = answer(&program, ARCHITECTURE, 0x4000_0000 | read, [0; 3]);
            assert_eq!(x32, said);
        }
    }

    #[test]
    fn conditions_look_at_the_argument_they_name() {
        let rules = [
            Rule::AllowWhere(libc::SYS_ioctl, 1, &[7, 9]),
            Rule::AllowWithOrFail(libc::SYS_clone, 0, 0b101, libc::EPERM),
            Rule::Fail(libc::SYS_clone3, libc::ENOSYS),
            Rule::AllowWhereOrFail(libc::SYS_socket, 0, &[1], libc::EAFNOSUPPORT),
            Rule::Allow(libc::SYS_read),
        ];
        let program = program(&rules, Otherwise::Refuse).unwrap();
        let ask = |number: libc::c_long, arguments| {
            answer(&program, ARCHITECTURE, number as u32, arguments)
        };
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
        let absent = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        assert_eq!(ask(libc::SYS_clone3, [0; 3]), absent);
        assert_eq!(ask(libc::SYS_socket, [1, 0, 0]), libc::SECCOMP_RET_ALLOW);
        let unknown = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
        assert_eq!(ask(libc::SYS_socket, [16, 1, 1]), unknown);
        assert_eq!(ask(libc::SYS_read, [0; 3]), libc::SECCOMP_RET_ALLOW);
    }
}
