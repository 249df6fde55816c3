//! Who may speak for whom: real QUIC endpoints over loopback, honest ones and forgers.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod disk;
mod handshake;
mod life;
mod record;
mod world;
