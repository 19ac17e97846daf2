//! What Rollcall is tested and loaded with: clusters of real processes, a private Redis, faults between any two of
//! them, a mock upstream, an issuer of tokens, open-loop load, a plain HTTP client, the conformance suite.
//!
//! None of it knows the gateway's or the worker's code, so that it can judge them.

pub mod arrivals;
pub mod capacity;
pub mod certificates;
pub mod client;
pub mod cluster;
pub mod compare;
pub mod conformance;
pub mod fault;
pub mod hop;
pub mod issuer;
pub mod lane;
pub mod node;
pub mod processor;
pub mod programs;
pub mod recall;
pub mod redis;
pub mod redis_family;
pub mod upstream;
