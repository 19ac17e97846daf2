//! The worker: owns upstream MCP connections and makes the calls that a gateway has authorized.
//!
//! Read `call.rs` for the way of a call. A worker resolves credentials, speaks both eras of MCP over HTTP and stdio, and
//! publishes catalogs; it never decides who may call what, and nothing of a caller's request headers reaches it.

mod call;
mod catalog;
mod credentials;
pub mod node;
mod ownership;
mod upstream;
mod worker;

pub use worker::{Worker, WorkerSettings};
