//! What people write, read with the place of every problem.
//!
//! A configuration file (YAML) and an admin request (JSON) become the same tree of [`Node`]s, each of which knows where
//! it stands. The model's readers walk it and report into [`Problems`], so that one report names everything that is
//! wrong; nothing is half accepted. Values are taken as written: `${NAME}` is expanded only where a reader asks for it.

mod json;
mod node;
mod problems;
mod yaml;

pub use json::from_json;
pub use node::{Fields, Kind, Node, Place};
pub use problems::{Problem, Problems, nearest};
pub use yaml::from_yaml;
