//! Output that is collected before it is answered, in pieces that are paid for one by one.

use std::collections::VecDeque;

use cove_control::{Account, Charge, PIECE};

/// Output is paid for in steps, so that a command that says little costs little.
const STEP: usize = 4 * 1024;

/// The beginning of a stream: as much as one answer may have and as its owner has room for.
pub struct Output {
    pieces: VecDeque<Vec<u8>>,
    length: usize,
    max: usize,
    charge: Charge,
    cut: bool,
}

impl Output {
    /// Keeps at most `max` bytes.
    pub fn new(account: &Account, max: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            length: 0,
            max,
            charge: account.charge(),
            cut: false,
        }
    }

    /// Takes what fits. After something did not, nothing more is taken: there are no holes.
    pub fn take(&mut self, mut data: &[u8]) {
        while !data.is_empty() && !self.cut {
            let room = match self.pieces.back() {
                Some(last) => PIECE - last.len(),
                None => 0,
            };
            if room == 0 {
                self.pieces.push_back(Vec::new());
                continue;
            }
            let most = room.min(self.max - self.length);
            let (fitting, rest) = data.split_at(data.len().min(most));
            let paid = (self.length + fitting.len()).next_multiple_of(STEP);
            let more = paid.saturating_sub(self.charge.bytes());
            if fitting.is_empty() || (more > 0 && !self.charge.grow(more)) {
                self.cut = true;
                return;
            }
            if let Some(last) = self.pieces.back_mut() {
                last.extend_from_slice(fitting);
            }
            self.length += fitting.len();
            data = rest;
        }
    }

    /// Takes all of it or nothing: for what is of no use in part.
    pub fn take_whole(&mut self, data: &[u8]) -> bool {
        let paid = (self.length + data.len()).next_multiple_of(STEP);
        let more = paid.saturating_sub(self.charge.bytes());
        let fits = !self.cut && data.len() <= self.max - self.length;
        if !fits || (more > 0 && !self.charge.grow(more)) {
            return false;
        }
        self.take(data);
        true
    }

    /// Whether something is missing.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// What is to stand behind output that is not whole, for whoever reads it.
    pub fn cut_remark(&self) -> String {
        match self.cut {
            false => String::new(),
            true => format!(
                "\n[the output is cut here, after {} bytes: one answer holds no more; write it to a file and read that]\n",
                self.length
            ),
        }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The next piece, which its taker holds from now on.
    pub(crate) fn next_piece(&mut self) -> Option<Vec<u8>> {
        let piece = self.pieces.pop_front()?;
        self.length -= piece.len();
        let left = self.length.next_multiple_of(STEP);
        self.charge.shrink(self.charge.bytes().saturating_sub(left));
        Some(piece)
    }

    /// All of it in one place, which is paid for once more; `None` when there is no room for that.
    pub fn whole(&mut self) -> Option<Vec<u8>> {
        if !self.charge.grow(self.length) {
            return None;
        }
        let mut all = Vec::with_capacity(self.length);
        for piece in &self.pieces {
            all.extend_from_slice(piece);
        }
        Some(all)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use cove_control::{Budget, Origin, Principal, Scope, Sharing};
    use cove_model::{KeyId, OrgId};

    use super::*;

    pub fn account(total: usize) -> (Budget, Account) {
        let budget = Budget::new(Sharing::new(total, 0));
        let principal = Principal {
            org: OrgId::random(),
            key: Some(KeyId::random()),
            scopes: vec![Scope::Use],
            home: false,
            sandbox: None,
            origin: Origin::default(),
        };
        let account = budget.account(&principal);
        (budget, account)
    }

    #[test]
    fn output_is_paid_for_until_it_is_taken_and_cut_where_the_share_ends() {
        // A key has a quarter of it all.
        let (budget, account) = account(4 * 128 * 1024);
        let mut output = Output::new(&account, usize::MAX);
        output.take(b"little");
        assert_eq!(budget.held(), STEP);
        output.take(&[7; 100_000]);
        assert!(!output.is_cut());
        assert_eq!(budget.held(), 100_006_usize.next_multiple_of(STEP));
        output.take(&[8; 100_000]);
        assert!(output.is_cut());
        let kept = output.len();
        output.take(b"x");
        assert_eq!(output.len(), kept, "nothing follows a hole");
        let first = output.next_piece().expect("a piece");
        assert_eq!(first.len(), PIECE);
        assert!(budget.held() <= (kept - PIECE).next_multiple_of(STEP));
        drop(output);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn an_answer_has_its_own_limit() {
        let (_, account) = account(1024 * 1024);
        let mut output = Output::new(&account, 10);
        output.take(b"0123456789");
        assert!(!output.is_cut() && output.cut_remark().is_empty());
        output.take(b"x");
        assert!(output.is_cut() && output.len() == 10);
        assert!(output.cut_remark().contains("after 10 bytes"));
    }
}
