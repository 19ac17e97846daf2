//! Policies: compiled into one bitset a segment, bound when written, linted on the way in.

pub mod bind;
pub mod compile;

pub use bind::{bind, unmatched};
pub use compile::{Allowed, compile, reaches};
