//! The reference fold.
