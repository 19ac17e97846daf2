//! What gateway and worker have in common.
//!
//! `ids` and `limits` are the vocabulary; `document` reads what people write, with the place of each problem;
//! `model` is what is stored, and `openapi`
//! makes some of it; `store` keeps it; `tenants` joins file and store; `mcp` is the protocol's wire form;
//! `wire` carries a call between gateway and worker, and `placement` says which
//! worker. Nothing here decides who may do what: that is the gateway's.

pub mod clock;
pub mod config;
pub mod cores;
pub mod digest;
pub mod document;
pub mod ids;
pub mod limits;
pub mod mcp;
pub mod model;
pub mod openapi;
pub mod ops;
pub mod placement;
pub mod schema;
pub mod secret;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod tenants;
pub mod wire;
