//! One attempt to reach a peer: all its addresses, each begun a moment after the one before it, and the first that answers is taken.
//!
//! As RFC 8305 has it for TCP: a name may stand for addresses of both families, and a network that swallows one of them must cost a moment, not the
//! whole attempt. Addresses are looked up anew at each attempt, and again while one lasts: who has moved is followed.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quinn::Endpoint;

use super::relay::{self, Tunnels};
use super::shaping::Shaper;
use super::{UNTRUSTED, attached, dialling, is_final};
use crate::env::Env;
use crate::identity::{Identity, Purpose};
use crate::link::{Attached, Trouble};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

/// How long one address may take: a fresh attempt gets through a healed path sooner than the back-off of an old one.
const DIAL_LIMIT: Duration = Duration::from_secs(4);
/// How much later the next address is begun, unless the one before it has failed: more than most round trips, less than anybody minds.
const STAGGER: Duration = Duration::from_millis(250);
/// The same from one way to the next: a relay is a detour.
const WAY_STAGGER: Duration = Duration::from_millis(500);
/// How often it is looked whether a peer that is dialled has moved to another address.
const LOOK: Duration = Duration::from_millis(250);
/// How often it is looked whether the tunnel stands that an attempt needs.
const TUNNEL_LOOK: Duration = Duration::from_millis(10);
/// How often one attempt follows a peer that keeps moving.
const MOVES_MAX: usize = 4;

/// What dials.
pub(super) struct Dialler {
    pub env: Arc<dyn Env>,
    pub endpoint: Endpoint,
    pub plan: Arc<Plan>,
    pub identity: Arc<dyn Identity>,
    pub shaper: Option<Arc<Shaper>>,
    pub tunnels: Option<Arc<Tunnels>>,
    pub peer: NodeId,
    pub purpose: Purpose,
}

/// An address that is tried: it answers, or says why not and whether that is final.
type Try<'a> = Pin<Box<dyn Future<Output = Result<Attached, (String, bool)>> + 'a>>;

/// How the addresses of a peer answered.
enum Outcome {
    Answered(Attached, SocketAddr),
    /// It is not at any of them any more.
    Moved,
    Failed,
}

impl Dialler {
    /// Tries until something answers, or nothing is left to try.
    pub async fn attempt(self) -> Result<Attached, Trouble> {
        let mut failed: Vec<(String, bool)> = Vec::new();
        // Whoever was restarted while it was dialled is dialled where it is now, within the same attempt.
        for _ in 0..MOVES_MAX {
            let addresses = match self.relayed() {
                Some(addresses) => addresses,
                None => {
                    let found = self.env.resolve(&self.peer).await;
                    let found = found.map_err(|error| Trouble::from(error.to_string()))?;
                    self.with_relays(in_turn(found))
                }
            };
            match self.race(&addresses, &mut failed).await {
                Outcome::Answered(attached, address) => {
                    let local = self.endpoint.local_addr().ok();
                    let address = self.shown(address);
                    tracing::debug!(
                        node = %self.identity.node(), peer = %self.peer, address, ?local, tried = addresses.len(),
                        "an address of the peer answers"
                    );
                    return Ok(attached);
                }
                Outcome::Moved => {}
                Outcome::Failed => break,
            }
        }
        // What one address says is not final if another may lead to the peer some day.
        let refused = !failed.is_empty() && failed.iter().all(|(_, is_final)| *is_final);
        let reasons: Vec<String> = failed.into_iter().map(|(reason, _)| reason).collect();
        let reason = match reasons.is_empty() {
            true => "no address is known yet".to_owned(),
            false => reasons.join("; "),
        };
        Err(Trouble { reason, refused })
    }

    /// The addresses of a peer that only a relay reaches; none if it can be dialled itself.
    fn relayed(&self) -> Option<Vec<SocketAddr>> {
        let needs_relay = self.plan.needs_relay(self.identity.node(), &self.peer);
        let tunnels = self.tunnels.as_ref().filter(|_| needs_relay)?;
        Some(tunnels.addresses(&self.peer))
    }

    /// All ways to a peer that can be dialled itself.
    fn with_relays(&self, direct: Vec<SocketAddr>) -> Vec<SocketAddr> {
        match &self.tunnels {
            Some(tunnels) if self.purpose == Purpose::Link => tunnels.in_order(&self.peer, direct),
            _ => direct,
        }
    }

    /// Waits until what is sent to an address goes somewhere, for as long as an attempt lasts.
    async fn is_ready(&self, address: SocketAddr) -> bool {
        let Some(tunnels) = &self.tunnels else {
            return true;
        };
        let until = self.env.now() + DIAL_LIMIT;
        while !tunnels.is_ready(address) {
            if self.env.now() >= until {
                return false;
            }
            self.env.sleep(TUNNEL_LOOK).await;
        }
        true
    }

    fn shown(&self, address: SocketAddr) -> String {
        match &self.tunnels {
            Some(tunnels) => tunnels.shown(address),
            None => address.to_string(),
        }
    }

    async fn race(&self, addresses: &[SocketAddr], failed: &mut Vec<(String, bool)>) -> Outcome {
        let mut waiting = addresses.iter().copied().peekable();
        let mut tries: Vec<(SocketAddr, Try<'_>)> = Vec::new();
        let mut moved = Box::pin(self.moved(addresses));
        let is_relayed = |address: &SocketAddr| relay::carries(*address).is_some();
        loop {
            match waiting.next() {
                Some(address) => tries.push((address, Box::pin(self.one(address)))),
                None if tries.is_empty() => return Outcome::Failed,
                None => {}
            }
            let is_another_way =
                |(last, _): &(SocketAddr, Try<'_>), next| is_relayed(last) || is_relayed(next);
            let pause = waiting.peek().map(|next| {
                match tries.last().is_some_and(|last| is_another_way(last, next)) {
                    true => WAY_STAGGER,
                    false => STAGGER,
                }
            });
            let stagger = async {
                match pause {
                    None => std::future::pending().await,
                    Some(pause) => self.env.sleep(pause).await,
                }
            };
            let answered = poll_fn(|cx| {
                for (index, (_, one)) in tries.iter_mut().enumerate() {
                    if let Poll::Ready(result) = one.as_mut().poll(cx) {
                        return Poll::Ready((index, result));
                    }
                }
                Poll::Pending
            });
            tokio::select! {
                biased;
                (index, result) = answered => {
                    let (address, _) = tries.remove(index);
                    match result {
                        Ok(attached) => return Outcome::Answered(attached, address),
                        Err((reason, is_final)) => {
                            failed.push((format!("{}: {reason}", self.shown(address)), is_final));
                        }
                    }
                }
                () = stagger => {}
                () = &mut moved => {
                    let gone = tries.iter().map(|(address, _)| {
                        (format!("{address}: {} is not there any more", self.peer), false)
                    });
                    failed.extend(gone);
                    return Outcome::Moved;
                }
            }
        }
    }

    /// Tries one address.
    async fn one(&self, address: SocketAddr) -> Result<Attached, (String, bool)> {
        let carries = relay::carries(address).unwrap_or_else(|| self.env.carries(address));
        if let Some(shaper) = &self.shaper {
            shaper.learn(&self.peer, address);
        }
        if !self.is_ready(address).await {
            return Err(("no tunnel stands".into(), false));
        }
        let own = self.identity.own();
        let (config, server_name) = dialling(
            &self.plan,
            self.identity.as_ref(),
            &self.peer,
            carries,
            self.purpose,
        );
        let connecting = self.endpoint.connect_with(config, address, &server_name);
        let connecting = connecting.map_err(|error| (error.to_string(), false))?;
        let connection = tokio::select! {
            biased;
            connection = connecting => connection.map_err(|error| (error.to_string(), is_final(&error)))?,
            () = self.env.sleep(DIAL_LIMIT) => return Err((format!("no handshake within {DIAL_LIMIT:?}"), false)),
        };
        attached(self.identity.as_ref(), &connection, own).map_err(|error| {
            let reason = error.to_string();
            connection.close(UNTRUSTED, reason.as_bytes());
            (reason, true)
        })
    }

    /// Ends once the peer is not to be found at any of these addresses any more: it was restarted, and nobody answers there.
    async fn moved(&self, addresses: &[SocketAddr]) {
        loop {
            self.env.sleep(LOOK).await;
            if self.relayed().is_some() {
                continue;
            }
            let found = self.env.resolve(&self.peer).await;
            let elsewhere = |found: &[SocketAddr]| {
                !found.is_empty() && !found.iter().any(|address| addresses.contains(address))
            };
            if found.is_ok_and(|found| elsewhere(&found)) {
                return;
            }
        }
    }
}

/// The addresses in the order in which they are tried: as they were found, but the families take turns, so that a family that leads nowhere holds up
/// only every other one.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let mut second = second.into_iter();
    let mut turns = Vec::new();
    for address in first {
        turns.push(address);
        turns.extend(second.next());
    }
    turns.extend(second);
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_families_of_addresses_take_turns() {
        let of = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let found = of(&[
            "[2001:db8::1]:1",
            "[2001:db8::2]:1",
            "[2001:db8::3]:1",
            "192.0.2.1:1",
        ]);
        let turns = of(&[
            "[2001:db8::1]:1",
            "192.0.2.1:1",
            "[2001:db8::2]:1",
            "[2001:db8::3]:1",
        ]);
        assert_eq!(in_turn(found), turns);
        let found = of(&["192.0.2.1:1", "[2001:db8::1]:1", "[2001:db8::2]:1"]);
        assert_eq!(in_turn(found.clone()), found);
        assert_eq!(in_turn(Vec::new()), []);
    }
}
