//! Lists of system calls that programs of Cove leave themselves before they read strangers' bytes.
//!
//! Owns the shape of such a filter and its installation; which calls are on the list, and what happens
//! to one that is not, comes from the program. The filter of sandboxes is another matter: it looks at
//! arguments, and the spawner builds it.

use std::io;

/// How the kernel tells a filter which table of numbers a call means.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in the kernel's `seccomp_data`.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// What becomes of a call that is not on the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// The process dies: what it was asked to read has taken it over.
    Kill,
    /// The call fails with EPERM: a library that tries something new finds another way.
    Refuse,
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

/// Calls of another table of numbers always kill: no program of ours makes one.
fn program(allowed: &[libc::c_long], otherwise: Otherwise) -> Vec<libc::sock_filter> {
    let otherwise = match otherwise {
        Otherwise::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        Otherwise::Refuse => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    };
    let mut program = vec![
        instruction(LOAD, OFFSET_ARCHITECTURE, 0, 0),
        instruction(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        instruction(LOAD, OFFSET_NUMBER, 0, 0),
    ];
    for number in allowed {
        program.push(instruction(JUMP_EQUAL, *number as u32, 0, 1));
        program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    program.push(instruction(RETURN, otherwise, 0, 0));
    program
}

/// Leaves only the calls on the list, for good. The caller must have given up new privileges.
pub fn allow_only(
    allowed: &[libc::c_long],
    otherwise: Otherwise,
    threads: Threads,
) -> io::Result<()> {
    let mut program = program(allowed, otherwise);
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

    /// What the filter answers, by a tiny interpreter of the three instructions it uses.
    fn answer(program: &[libc::sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            match step.code {
                LOAD if step.k == OFFSET_NUMBER => accumulator = number,
                LOAD => accumulator = architecture,
                JUMP_EQUAL if accumulator == step.k => at += usize::from(step.jt),
                JUMP_EQUAL => at += usize::from(step.jf),
                RETURN => return step.k,
                other => panic!("instruction {other:#x} is not used"),
            }
        }
    }

    #[test]
    fn only_what_is_on_the_list_is_allowed() {
        let listed = [libc::SYS_read, libc::SYS_exit_group];
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for (otherwise, said) in [
            (Otherwise::Kill, libc::SECCOMP_RET_KILL_PROCESS),
            (Otherwise::Refuse, refused),
        ] {
            let program = program(&listed, otherwise);
            for number in 0..600 {
                let expected = match listed.contains(&number) {
                    true => libc::SECCOMP_RET_ALLOW,
                    false => said,
                };
                let got = answer(&program, ARCHITECTURE, number as u32);
                assert_eq!(got, expected, "call {number}, {otherwise:?}");
            }
            // The same numbers of another table, and those of x32, are not the same calls.
            let read = libc::SYS_read as u32;
            let foreign = answer(&program, 0x4000_0003, read);
            assert_eq!(foreign, libc::SECCOMP_RET_KILL_PROCESS);
            assert_eq!(answer(&program, ARCHITECTURE, 0x4000_0000 | read), said);
        }
    }
}
