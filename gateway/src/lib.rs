//! The gateway: who calls, what they may use, and the way of a call.
//!
//! Read `call.rs` first: it is the table of contents. `registry`, `policy`, `view` and `surface` are the pure core,
//! where every decision is made; the other modules bring requests to it and answers back.

pub mod app;
pub mod cli;
pub mod identity;
pub mod live;
pub mod node;
pub mod policy;
pub mod refusal;
pub mod registry;
#[cfg(feature = "standalone")]
pub mod standalone;
pub mod surface;
pub mod view;
pub mod workers;

mod admin;
mod body;
mod bridge;
mod call;
mod handle;
mod http;
mod mcp;
mod own_tools;

/// Decodes one request body; for benches, which see only what is public.
#[doc(hidden)]
pub fn decode_for_bench(body: &[u8], headers: &::http::HeaderMap) -> bool {
    call::decode::decode(body, headers).is_ok()
}

/// What a gateway does with an upstream's result; for benches.
#[doc(hidden)]
pub fn answer_for_bench(result: &bytes::Bytes) -> usize {
    call::answer::slices_for_bench(result)
}

#[cfg(test)]
mod fixture;
