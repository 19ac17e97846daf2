//! Whole-system tests: the program in one process on free ports, talked to over HTTP, with upstreams that are real or
//! that remember what reached them. Each runs over the function call and over the byte codec where the link matters.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::string_slice,
    clippy::too_many_lines,
    reason = "a test ends where it fails, and measures real time"
)]

mod admin;
mod apis;
mod bridge;
mod bridges;
mod calls;
mod catalogs;
mod cli;
mod harness;
mod http;
mod identity;
mod kinds;
mod listen;
mod peers;
mod policy;
mod program;
mod sessions;
mod specs;
mod stdio;
mod surfaces;
mod upstreams;
