//! Peers that mean harm, over real sockets: what they send is refused by name, within memory that is known, and honest rounds go on.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod bombs;
mod floods;
mod ledger;
mod lies;
mod peer;
