//! Filters of system calls: what a list of rules means as a BPF program, and its installation.
//!
//! Which calls are on a list, and what happens to one that is not, comes from the program that confines
//! itself, or from the spawner for sandboxes. The program is a binary search over ranges of numbers: the
//! kernel walks it once per system call number when it is installed, and a linear list makes that cost
//! as much as starting a sandbox.

use std::collections::BTreeMap;
use std::io;

pub mod calls;
mod refused;
mod simulate;
#[cfg(test)]
mod tests;

pub use refused::{Refused, note_refused};
pub use simulate::{SeenCall, answer};

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
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
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
    /// The call does not exist, as on an older kernel, so that programs fall back. Calls of another
    /// architecture do not exist either; elsewhere they kill.
    Absent,
}

/// What becomes of a call that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    Allow,
    /// Fails with this error, without a note: callers expect that and go another way.
    Fail(i32),
    /// As if it were not on the list.
    Unlisted,
    /// Looks at the lower half of an argument, counted from 0: the first verdict if it fits, else the second.
    When(u32, Test<'a>, &'a Verdict<'a>, &'a Verdict<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test<'a> {
    OneOf(&'a [u32]),
    /// The bits of the mask are exactly these.
    Masked {
        mask: u32,
        value: u32,
    },
}

/// One line of a list.
#[derive(Debug, Clone, Copy)]
pub struct Rule<'a> {
    pub number: libc::c_long,
    pub verdict: Verdict<'a>,
}

impl<'a> Rule<'a> {
    pub const fn new(number: libc::c_long, verdict: Verdict<'a>) -> Self {
        Self { number, verdict }
    }

    pub const fn allow(number: libc::c_long) -> Self {
        Self::new(number, Verdict::Allow)
    }

    pub const fn fail(number: libc::c_long, errno: i32) -> Self {
        Self::new(number, Verdict::Fail(errno))
    }

    /// Allowed when the argument is one of these, else refused as what is not on the list.
    pub const fn allow_where(number: libc::c_long, argument: u32, values: &'a [u32]) -> Self {
        let test = Test::OneOf(values);
        let verdict = Verdict::When(argument, test, &Verdict::Allow, &Verdict::Unlisted);
        Self::new(number, verdict)
    }
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

fn op(code: u16, value: u32) -> libc::sock_filter {
    instruction(code, value, 0, 0)
}

const fn fails_with(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

/// The rules as a program. Fails when two rules disagree about a call, or a verdict is too long for a jump.
pub fn assemble(rules: &[Rule<'_>], otherwise: Otherwise) -> io::Result<Vec<libc::sock_filter>> {
    let (unlisted, foreign) = match otherwise {
        Otherwise::Kill => (
            libc::SECCOMP_RET_KILL_PROCESS,
            libc::SECCOMP_RET_KILL_PROCESS,
        ),
        Otherwise::Refuse => (fails_with(libc::EPERM), libc::SECCOMP_RET_KILL_PROCESS),
        Otherwise::RefuseNoted => (libc::SECCOMP_RET_TRAP, libc::SECCOMP_RET_KILL_PROCESS),
        Otherwise::Absent => (fails_with(libc::ENOSYS), fails_with(libc::ENOSYS)),
    };
    let mut listed = BTreeMap::new();
    for rule in rules {
        let number = u32::try_from(rule.number).map_err(io::Error::other)?;
        let before = listed.insert(number, rule.verdict);
        if before.is_some_and(|before| before != rule.verdict) {
            let why = format!("two rules disagree about system call {number}");
            return Err(io::Error::other(why));
        }
    }
    // Where each run of numbers with one verdict begins. What is above all rules is not on the list, the
    // numbers of x32 included.
    let mut ranges = vec![(0, Verdict::Unlisted)];
    for (number, verdict) in listed {
        let (last, current) = ranges[ranges.len() - 1];
        if current != verdict {
            if last == number {
                ranges.pop();
            }
            ranges.push((number, verdict));
        }
        ranges.push((number + 1, Verdict::Unlisted));
    }
    ranges.dedup_by(|later, earlier| later.1 == earlier.1);
    let mut code = vec![
        op(LOAD, OFFSET_ARCHITECTURE),
        instruction(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        op(RETURN, foreign),
        op(LOAD, OFFSET_NUMBER),
    ];
    search(&ranges, unlisted, &mut code)?;
    Ok(code)
}

/// Emits a search for the range that holds the number in the accumulator.
fn search(
    ranges: &[(u32, Verdict<'_>)],
    unlisted: u32,
    code: &mut Vec<libc::sock_filter>,
) -> io::Result<()> {
    if let [(_, verdict)] = ranges {
        code.extend(leaf(verdict, unlisted)?);
        return Ok(());
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    // A conditional jump reaches 255 instructions, a plain one anywhere.
    code.push(instruction(JUMP_AT_LEAST, high[0].0, 0, 1));
    let hop = code.len();
    code.push(op(JUMP, 0));
    search(low, unlisted, code)?;
    code[hop].k = (code.len() - hop - 1) as u32;
    search(high, unlisted, code)
}

/// What is done once the number fits. Ends with a return on every way through.
fn leaf(verdict: &Verdict<'_>, unlisted: u32) -> io::Result<Vec<libc::sock_filter>> {
    let (argument, test, fits, differs) = match verdict {
        Verdict::Allow => return Ok(vec![op(RETURN, libc::SECCOMP_RET_ALLOW)]),
        Verdict::Fail(errno) => return Ok(vec![op(RETURN, fails_with(*errno))]),
        Verdict::Unlisted => return Ok(vec![op(RETURN, unlisted)]),
        Verdict::When(argument, test, fits, differs) => (argument, test, fits, differs),
    };
    let fits = leaf(fits, unlisted)?;
    let mut code = vec![op(LOAD, OFFSET_ARGUMENTS + argument * ARGUMENT_BYTES)];
    let values = match test {
        Test::OneOf(values) => *values,
        Test::Masked { mask, value } => {
            code.push(op(AND, *mask));
            std::slice::from_ref(value)
        }
    };
    let over = u8::try_from(fits.len()).map_err(io::Error::other)?;
    for (at, value) in values.iter().enumerate() {
        // The last comparison goes over what is done for those that fit, the others go on to the next.
        let after = values.len() - at - 1;
        let hit = u8::try_from(after).map_err(io::Error::other)?;
        let miss = if after == 0 { over } else { 0 };
        code.push(instruction(JUMP_EQUAL, *value, hit, miss));
    }
    if !values.is_empty() {
        code.extend(fits);
    }
    code.extend(leaf(differs, unlisted)?);
    Ok(code)
}

/// As [`install`], for lists without conditions.
pub fn allow_only(
    lists: &[&[libc::c_long]],
    otherwise: Otherwise,
    threads: Threads,
) -> io::Result<()> {
    let allowed = lists.iter().copied().flatten();
    let rules: Vec<_> = allowed.map(|number| Rule::allow(*number)).collect();
    install(&rules, otherwise, threads)
}

/// Leaves only the calls on the list, for good. The caller must have given up new privileges.
pub fn install(rules: &[Rule<'_>], otherwise: Otherwise, threads: Threads) -> io::Result<()> {
    apply(&assemble(rules, otherwise)?, threads)
}

/// Installs what [`assemble`] made. Allocates nothing where it succeeds.
pub fn apply(program: &[libc::sock_filter], threads: Threads) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    let flags = match threads {
        Threads::This => 0,
        Threads::All => libc::SECCOMP_FILTER_FLAG_TSYNC,
    };
    // SAFETY: the filter points to `program`, which outlives the call; the kernel only reads and copies it.
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
