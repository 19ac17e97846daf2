//! What Rollcall promises to the people who run it, one test a promise: real processes, a real Redis, upstreams that
//! remember what reached them. Figures are printed; run with `--nocapture` to read them.
//!
//! `ROLLCALL_PROMISES_SCALE` multiplies the sizes. One promise is tested at a time: they measure.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "a test ends where it fails, and measures real time"
)]

mod durability;
mod isolation;
mod peers;
mod revocation;
mod scene;
