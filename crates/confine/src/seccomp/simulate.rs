//! What a filter would answer, without installing it; for tests of lists.

use super::{
    AND, ARCHITECTURE, ARGUMENT_BYTES, JUMP, JUMP_AT_LEAST, JUMP_EQUAL, LOAD, OFFSET_ARCHITECTURE,
    OFFSET_ARGUMENTS, OFFSET_NUMBER, RETURN,
};

/// A system call as a filter sees it.
#[derive(Debug, Clone, Copy)]
pub struct SeenCall {
    pub architecture: u32,
    pub number: u32,
    pub arguments: [u64; 6],
}

impl SeenCall {
    /// One of this machine's own architecture.
    pub fn new(number: u32, arguments: [u64; 6]) -> Self {
        Self {
            architecture: ARCHITECTURE,
            number,
            arguments,
        }
    }

    fn load(&self, offset: u32) -> Option<u32> {
        match offset {
            OFFSET_NUMBER => Some(self.number),
            OFFSET_ARCHITECTURE => Some(self.architecture),
            _ => {
                let index = offset.checked_sub(OFFSET_ARGUMENTS)? / ARGUMENT_BYTES;
                self.arguments
                    .get(index as usize)
                    .map(|&value| value as u32)
            }
        }
    }
}

/// The kernel's answer, such as `SECCOMP_RET_ALLOW`; `None` where the program is not one of ours.
pub fn answer(program: &[libc::sock_filter], call: &SeenCall) -> Option<u32> {
    let (mut at, mut accumulator) = (0, 0);
    // Jumps go forward only, so a program ends after so many steps at the most.
    for _ in 0..program.len() {
        let step = program.get(at)?;
        at += 1;
        let branch = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
        match step.code {
            LOAD => accumulator = call.load(step.k)?,
            AND => accumulator &= step.k,
            JUMP => at += step.k as usize,
            JUMP_EQUAL => at += branch(accumulator == step.k),
            JUMP_AT_LEAST => at += branch(accumulator >= step.k),
            RETURN => return Some(step.k),
            _ => return None,
        }
    }
    None
}
