//! What Rollcall is tested and loaded with: a mock upstream, an issuer of tokens, a plain HTTP client, the
//! conformance suite.
//!
//! None of it knows the gateway's or the worker's code, so that it can judge them.

pub mod client;
pub mod conformance;
pub mod issuer;
pub mod redis;
pub mod upstream;
