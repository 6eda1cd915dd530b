//! Listings, which come in many parts, and who pays for them while they are held.

use std::ops::{Deref, DerefMut};

use prost::Message;

use super::GuestError;

/// Pays for what is held of a guest's listings.
pub trait Pay: Send + Sync {
    /// Begins a bill for one listing; dropping it gives everything back.
    fn bill(&self) -> Box<dyn Bill>;
}

pub trait Bill: Send + Sync {
    /// So many bytes more; `false` when there is no room for them.
    fn add(&mut self, bytes: usize) -> bool;
}

/// What a guest listed, paid for until it is dropped.
pub struct Listed<T> {
    items: Vec<T>,
    bill: Option<Box<dyn Bill>>,
}

impl<T> Listed<T> {
    pub(super) fn new(payer: Option<&dyn Pay>) -> Self {
        Self {
            items: Vec::new(),
            bill: payer.map(Pay::bill),
        }
    }
}

impl<T: Message> Listed<T> {
    /// Takes a part over, if there is room for it.
    pub(super) fn extend(&mut self, part: Vec<T>) -> Result<(), GuestError> {
        let held = |item: &T| item.encoded_len() + size_of::<T>();
        let bytes = part.iter().map(held).sum();
        if let Some(bill) = &mut self.bill
            && !bill.add(bytes)
        {
            return Err(GuestError::NoRoom);
        }
        self.items.extend(part);
        Ok(())
    }
}

impl<T> Deref for Listed<T> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.items
    }
}

impl<T> DerefMut for Listed<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Listed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.items.fmt(f)
    }
}

impl<T> IntoIterator for Listed<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;
    fn into_iter(self) -> IntoIter<T> {
        IntoIter {
            items: self.items.into_iter(),
            _bill: self.bill,
        }
    }
}

/// Paid for until all of it is dropped.
pub struct IntoIter<T> {
    items: std::vec::IntoIter<T>,
    _bill: Option<Box<dyn Bill>>,
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.items.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}
