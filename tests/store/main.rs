//! The coordinator's records in an object store that refuses, loses, hangs, lies and rots.
#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod faulty;
mod objects;
mod promotion;
mod records;
mod runs;
