//! What is stored: tenants, servers, platform tools, bundles, policies, catalogs.
//!
//! Each type is read from what people wrote (`read`, with the place of every problem) and is kept as JSON inside a
//! versioned envelope (`store::encode`). Nothing here decides anything.

pub mod catalog;
pub mod entry;
pub mod http_call;
pub mod instructions;
pub mod mcp_session;
pub mod policy;
pub mod server;
pub mod tenant;
pub mod tool;

pub use catalog::{About, Catalog, CatalogPointer, EntryKind};
pub use entry::{Entry, Glob, Target};
pub use http_call::HttpCall;
pub use instructions::Instructions;
pub use mcp_session::McpSession;
pub use policy::{Bound, BridgeTools, Denial, Policy, SessionPolicy};
pub use server::{Isolation, Server, ServerEra, Transport};
pub use tenant::{Allotment, Bundle, Settings};
pub use tool::PlatformTool;
