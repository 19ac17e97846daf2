//! MCP on the wire: envelopes over raw JSON, revisions, header forms, event streams.
//!
//! Only what a gateway must read is read; ids, params and results stay the bytes that came.

pub mod era;
pub mod headers;
pub mod jsonrpc;
pub mod param_headers;
pub mod raw;
pub mod sse;
