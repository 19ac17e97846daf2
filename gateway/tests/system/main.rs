//! Whole-system tests: the program in one process on free ports, talked to over HTTP, with upstreams that are real or
//! that remember what reached them. Each runs over the function call and over the byte codec where the link matters.

mod admin;
mod calls;
mod catalogs;
mod harness;
mod http;
mod identity;
mod peers;
mod policy;
mod specs;
mod stdio;
mod upstreams;
