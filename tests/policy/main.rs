//! Who may do what at which site: tried live, in virtual time over the real QUIC and TLS, and compared with what `policy explain` says.

#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod matrix;
mod rounds;
mod stand;
