//! The canonical registry: names, segments, and what a tenant has of them.

pub mod build;
pub mod enrol;
pub mod naming;
pub mod roster;
pub mod segment;
pub mod uri;

pub use build::{Binding, Missing, Registry, Shadowed};
pub use roster::{Place, Roster};
pub use segment::{Definition, Listed, Listing, Segment, Segments, name_of};
