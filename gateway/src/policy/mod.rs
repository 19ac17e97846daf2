//! Policies: compiled into one bitset a segment, bound when written, linted on the way in.

pub mod bind;
pub mod compile;
pub mod explain;

pub use bind::{bind, could_reach, unmatched};
pub use compile::{Allowed, compile, denies_uri, reaches};
