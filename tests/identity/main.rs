//! Who may speak for whom: real QUIC endpoints over loopback, honest ones and forgers.

mod disk;
mod handshake;
mod world;
