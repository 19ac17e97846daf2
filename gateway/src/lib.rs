//! The gateway: who calls, what they may use, and the way of a call.
//!
//! Read `call.rs` first: it is the table of contents. `registry`, `policy`, `view` and `surface` are the pure core,
//! where every decision is made; the other modules bring requests to it and answers back.

pub mod policy;
pub mod registry;
pub mod surface;
pub mod view;

#[cfg(test)]
mod fixture;
