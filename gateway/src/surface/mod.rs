//! What agents read: every text is a function of the view at the moment it is sent.

pub mod changes;
pub mod instructions;
pub mod lint;
pub mod list;
pub mod manifest;
pub mod own;
pub mod recovery;
pub mod schema;
pub mod search;
pub mod signature;
pub mod spec;
pub mod spec_arguments;
pub mod text;
