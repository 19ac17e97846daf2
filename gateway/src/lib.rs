//! The gateway: who calls, what they may use, and the way of a call.
//!
//! Read `call.rs` first: it is the table of contents. `registry`, `policy`, `view` and `surface` are the pure core,
//! where every decision is made; the other modules bring requests to it and answers back.

pub mod app;
pub mod cli;
pub mod identity;
pub mod live;
pub mod policy;
pub mod refusal;
pub mod registry;
#[cfg(feature = "standalone")]
pub mod standalone;
pub mod surface;
pub mod view;

mod admin;
mod body;
mod call;
mod http;
mod mcp;
mod ops;

#[cfg(test)]
mod fixture;
