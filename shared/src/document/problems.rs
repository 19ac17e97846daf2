//! The report of all that is wrong with a document.

use std::cell::RefCell;
use std::fmt;

use super::node::Place;

/// One thing that is wrong: where, at which key, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub place: Place,
    /// The path of keys from the document's root, such as `tenants.acme.servers[0].url`; empty for the document itself.
    pub path: String,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.what)
    }
}

/// Problems found so far. Shared by reference among readers.
#[derive(Debug, Default)]
pub struct Problems(RefCell<Vec<Problem>>);

impl Problems {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&self, place: &Place, path: &str, what: impl Into<String>) {
        self.0.borrow_mut().push(Problem { place: place.clone(), path: path.to_owned(), what: what.into() });
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// In the order in which they stand in the document.
    pub fn into_list(self) -> Vec<Problem> {
        let mut list = self.0.into_inner();
        list.sort_by(|a, b| a.place.cmp(&b.place));
        list
    }
}

/// The candidate nearest to `name`, if one is near enough to be what was meant.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|c| (distance(name, c), c))
        .filter(|(d, c)| *d <= (c.len().max(name.len()) / 3).max(1))
        .min()
        .map(|(_, c)| c)
}

/// Levenshtein distance over bytes; inputs are short keys.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (y, slot) in b.bytes().zip(row.iter_mut().skip(1)) {
            let above = *slot;
            *slot = (above + 1).min(left + 1).min(corner + usize::from(x != y));
            corner = above;
            left = *slot;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_recognized() {
        assert_eq!(nearest("lisen", ["listen", "limits"]), Some("listen"));
        assert_eq!(nearest("zzz", ["listen", "limits"]), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
