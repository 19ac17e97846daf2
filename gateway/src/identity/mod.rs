//! Who calls: session tokens, their issuers' keys, and the challenge for those who bring none.

pub mod challenge;
pub mod issuers;
mod keys;
pub mod principal;
mod verify;

pub use issuers::Issuers;
pub use principal::Principal;
