//! A: who sees and may do what.
