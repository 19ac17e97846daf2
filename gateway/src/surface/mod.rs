//! What agents read: every text is a function of the view at the moment it is sent.

pub mod list;
pub mod recovery;
pub mod schema;
pub mod spec;
pub mod spec_arguments;
