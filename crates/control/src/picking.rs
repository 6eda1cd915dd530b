//! Lists that are narrowed by more than the database looks at. A page of them is as full as any other, and there is
//! a next one only where something follows.

use cove_store::{PAGE_DEFAULT, PAGE_MAX, Page, PageRequest, SandboxFilter, SnapshotRecord};

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;
use crate::sandboxes::Sandbox;

struct Picking<T> {
    room: usize,
    items: Vec<T>,
    /// Something follows that the page has no room for.
    more: bool,
}

impl<T> Picking<T> {
    fn new(page: &PageRequest) -> Self {
        let room = match page.limit {
            0 => PAGE_DEFAULT,
            limit => limit.min(PAGE_MAX),
        };
        Self {
            room: room as usize,
            items: Vec::new(),
            more: false,
        }
    }

    fn take(&mut self, found: Vec<T>, wanted: impl Fn(&T) -> bool) {
        for item in found.into_iter().filter(wanted) {
            if self.items.len() == self.room {
                self.more = true;
                return;
            }
            self.items.push(item);
        }
    }

    fn page(self, behind: impl Fn(&T) -> String) -> Page<T> {
        Page {
            next_cursor: self.items.last().filter(|_| self.more).map(behind),
            items: self.items,
        }
    }
}

impl Control {
    /// As [`Control::list_sandboxes`], of those that are wanted.
    pub async fn pick_sandboxes(
        &self,
        principal: &Principal,
        filter: &SandboxFilter,
        page: &PageRequest,
        wanted: impl Fn(&Sandbox) -> bool,
    ) -> Result<Page<Sandbox>, ControlError> {
        let mut picking = Picking::new(page);
        let mut ahead = PageRequest {
            limit: PAGE_MAX,
            cursor: page.cursor.clone(),
        };
        loop {
            let found = self.list_sandboxes(principal, filter, &ahead).await?;
            picking.take(found.items, &wanted);
            ahead.cursor = found.next_cursor;
            if picking.more || ahead.cursor.is_none() {
                return Ok(picking
                    .page(|last| cove_store::cursor_behind(last.created_at, last.id.as_str())));
            }
        }
    }

    /// As [`Control::list_snapshots`], of those that are wanted.
    pub async fn pick_snapshots(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        page: &PageRequest,
        wanted: impl Fn(&SnapshotRecord) -> bool,
    ) -> Result<Page<SnapshotRecord>, ControlError> {
        let mut picking = Picking::new(page);
        let mut ahead = PageRequest {
            limit: PAGE_MAX,
            cursor: page.cursor.clone(),
        };
        loop {
            let found = self.list_snapshots(principal, sandbox, &ahead).await?;
            picking.take(found.items, &wanted);
            ahead.cursor = found.next_cursor;
            if picking.more || ahead.cursor.is_none() {
                return Ok(picking
                    .page(|last| cove_store::cursor_behind(last.created_at, last.id.as_str())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_full_and_the_last_one_has_no_successor() {
        let page = PageRequest {
            limit: 2,
            cursor: None,
        };
        let even = |n: &u32| n.is_multiple_of(2);
        let mut picking = Picking::new(&page);
        picking.take(vec![1, 2, 3], even);
        assert!(!picking.more);
        picking.take(vec![4, 5], even);
        assert!(!picking.more, "nothing is known to follow");
        picking.take(vec![6, 8], even);
        let found = picking.page(u32::to_string);
        assert_eq!(found.items, [2, 4]);
        assert_eq!(found.next_cursor.as_deref(), Some("4"));
        let mut last = Picking::new(&page);
        last.take(vec![6, 7, 8, 9], even);
        assert_eq!(last.page(u32::to_string).next_cursor, None);
    }
}
