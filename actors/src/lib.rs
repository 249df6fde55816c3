//! Who acts in a Tombolo federation.

#![forbid(unsafe_code)]

pub mod env;
pub mod identity;
