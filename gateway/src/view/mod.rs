//! The view: registry ∩ policy at one moment, and the resolution of names in it.

pub mod resolve;
mod sight;

pub use resolve::{Permit, Refused, Unavailable};
pub use sight::{Disclosure, Sight, View, Views};
