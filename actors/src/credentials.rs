//! A node's certificates while it runs: looks now and then whether their files have changed, hears what other domains have revoked, and lets
//! links know.
//!
//! What is found counts for the next handshake at once. Connections that stand are replaced if this node has another certificate, and cut if
//! the peer's does not count any more. What a domain has revoked is told to every peer once, and to whoever is met later: it proves itself by
//! the signature of the domain's root, so it does not matter who passes it on. It is kept in the node's files: a file that is taken away brings
//! no certificate back.

mod aside;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::SetOnce;

use self::aside::Aside;
use crate::env::{OffloadPanicked, Work, work};
use crate::identity::{Change, Identity, Paper, Refreshed, Revocations, Unlisted};
use crate::link;
use crate::node::Company;
use crate::record;
use crate::shell::{Actor, Alarm, Cx, Handle, Stage, later, pause};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::text::clip;
use tombolo_core::view::Seen;
use tombolo_core::wire::{Control, LIST_BYTES_MAX, RevocationList};

/// The longest and the shortest time between two looks at the files; between them a heartbeat's period, so that what is revoked is cut within
/// a heartbeat from the moment on at which any node has the file.
const LOOK_MOST: Duration = Duration::from_secs(2);
const LOOK_LEAST: Duration = Duration::from_millis(100);

/// How often it is looked where there are no files: dates of certificates still pass.
const IDLE: Duration = Duration::from_secs(60);

/// Between two links that are to be replaced: not all peers dial at the same moment.
const APART: Duration = Duration::from_millis(20);

/// However many links there are, the last one waits no longer.
const APART_MOST: Duration = Duration::from_secs(10);

/// Where lists are kept.
const FOLDER: &str = "revoked";

/// Lists that are read from there: each domain may have some roots.
const LISTS_MAX: usize = 4096;

/// Lists of one peer that were none: checking signatures costs time, and whoever sends more of them is not listened to until it is met again.
const BAD_MAX: u32 = 8;

/// The same of lists that no root has signed that is pinned here: each domain of a large federation may be about to get a root.
const STRANGE_MAX: u32 = 256;

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// From a peer.
    Inbound(NodeId, Control),
    /// A link is up.
    Met(NodeId),
    /// Look at the files now.
    Look,
}

/// What it needs.
#[derive(Clone)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// Reads, holds and judges certificates.
    pub identity: Arc<dyn Identity>,
    /// Filled once they exist: the node's links.
    pub company: Arc<SetOnce<Company>>,
    /// The node's copy of the record: it tells of certificates.
    pub record: Handle<record::Message>,
    /// The view by which the node goes.
    pub seen: Arc<Mutex<Seen>>,
}

/// See the module.
pub struct Credentials {
    setup: Setup,
    alarm: Alarm,
    /// A look is under way.
    looks: bool,
    /// Why something was not taken, as told last.
    kept: Option<String>,
    /// The certificate of whose end was told.
    told: Option<String>,
    /// Why this node's own certificate does not count, as told last.
    lost: Option<String>,
    /// By peer: lists that were none.
    bad: BTreeMap<NodeId, u32>,
    /// By peer: lists of roots that are not pinned here.
    strange: BTreeMap<NodeId, u32>,
    aside: Aside,
}

impl Credentials {
    /// Knows nothing yet.
    pub fn new(setup: Setup) -> Self {
        Credentials {
            setup,
            alarm: Alarm::default(),
            looks: false,
            kept: None,
            told: None,
            lost: None,
            bad: BTreeMap::new(),
            strange: BTreeMap::new(),
            aside: Aside::default(),
        }
    }

    fn me(&self) -> &NodeId {
        &self.setup.stage.node
    }

    fn links(&self) -> impl Iterator<Item = (&NodeId, &Handle<link::Message>)> {
        let company = self.setup.company.get();
        company.into_iter().flat_map(|company| company.links.iter())
    }

    /// Looks at the files, then at the dates.
    fn look(&mut self, cx: &mut Cx<Self>) {
        if !self.setup.identity.is_watched() {
            return self.look_at_dates(cx);
        }
        if std::mem::replace(&mut self.looks, true) {
            return;
        }
        let identity = self.setup.identity.clone();
        let looked = work(self.setup.stage.env.as_ref(), Work::Bytes(0), move || {
            identity.refresh()
        });
        later(cx, looked, |credentials, looked, cx| {
            credentials.looks = false;
            credentials.on_looked(cx, looked.unwrap_or_default());
            credentials.look_at_dates(cx);
        });
    }

    fn on_looked(&mut self, cx: &mut Cx<Self>, looked: Refreshed) {
        if self.kept != looked.kept {
            if let Some(reason) = &looked.kept {
                let (node, reason) = (self.me().clone(), clip(reason.as_str()));
                tracing::warn!(%node, reason, "a certificate, key or list on disk is not taken; what was there before holds");
                self.setup
                    .stage
                    .report(Event::CertificateKept { node, reason });
            }
            self.kept = looked.kept;
        }
        let (mut is_new, mut others, mut rooted) = (false, false, false);
        for change in looked.changes {
            let node = self.me().clone();
            match change {
                Change::Rotated(paper) => {
                    is_new = true;
                    let Paper {
                        serial,
                        sha256,
                        not_after,
                        ..
                    } = paper;
                    self.setup.stage.report(Event::CertificateRotated {
                        node,
                        serial,
                        sha256,
                        not_after,
                    });
                }
                Change::RootAdded {
                    domain,
                    certificate,
                    sha256,
                } => {
                    let told = record::Message::Rooted(domain.clone(), certificate);
                    self.setup.record.deliver(told);
                    self.setup.stage.report(Event::RootAdded {
                        node,
                        domain,
                        sha256,
                    });
                    rooted = true;
                    // It may be back: what it has revoked is still known.
                    later(cx, self.read_kept(), |credentials, read, _| {
                        credentials.on_kept(read.unwrap_or_default());
                    });
                }
                Change::RootRetired {
                    domain,
                    certificate,
                    sha256,
                } => {
                    others = true;
                    let told = record::Message::Unrooted(domain.clone(), certificate);
                    self.setup.record.deliver(told);
                    self.setup.stage.report(Event::RootRetired {
                        node,
                        domain,
                        sha256,
                    });
                }
                Change::Revoked(revocations) => {
                    others = true;
                    self.spread(cx, None, revocations);
                }
            }
        }
        if others {
            self.judge();
        }
        if rooted {
            self.strange.clear();
            for (from, list) in self.aside.take() {
                self.on_list(cx, &from, &list);
            }
        }
        if is_new {
            self.lost = None;
            self.renew();
        }
    }

    /// Lets links replace their connections, one after another, and the record know under which certificate this node signs.
    fn renew(&self) {
        for (number, (_, link)) in self.links().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let after = APART.saturating_mul(number).min(APART_MOST);
            link.deliver(link::Message::Renew(after));
        }
        let seen = self.setup.seen.lock();
        let seen = seen.unwrap_or_else(PoisonError::into_inner);
        let (coordinator, is_gateway) = (seen.view().coordinator.clone(), seen.is_gateway());
        drop(seen);
        if is_gateway || coordinator == *self.me() {
            self.setup
                .record
                .deliver(record::Message::Greet(coordinator));
        }
    }

    /// Lets links look at everybody's certificates again.
    fn judge(&mut self) {
        for (_, link) in self.links() {
            link.deliver(link::Message::Judge(true));
        }
    }

    fn look_at_dates(&mut self, cx: &mut Cx<Self>) {
        let now = self.setup.stage.env.unix_time();
        let own = self.setup.identity.own();
        if own.is_due(now) && self.told.as_ref() != Some(&own.sha256) {
            self.told = Some(own.sha256.clone());
            self.setup.stage.report(Event::CertificateEnds {
                node: self.me().clone(),
                not_after: own.not_after,
                left_s: own.not_after.saturating_sub(now),
            });
        }
        let wires = self.setup.company.get().map(|company| &company.wires);
        let mut next = u64::MAX;
        for (peer, wire) in wires.into_iter().flatten() {
            match wire.until() {
                0 => {}
                until if until < now => {
                    let link = self.setup.company.get().and_then(|c| c.links.get(peer));
                    if let Some(link) = link {
                        link.deliver(link::Message::Judge(false));
                    }
                }
                until => next = next.min(until.saturating_add(1)),
            }
        }
        let every = match self.setup.identity.is_watched() {
            true => self
                .setup
                .stage
                .plan
                .heartbeat
                .every
                .clamp(LOOK_LEAST, LOOK_MOST),
            false => IDLE,
        };
        // The wall clock tells whole seconds.
        let wait = every.min(Duration::from_secs(next.saturating_sub(now)));
        let sleep = self.setup.stage.env.sleep(wait.max(LOOK_LEAST));
        self.alarm.set(cx, sleep, Self::look);
    }

    fn on_list(&mut self, cx: &mut Cx<Self>, from: &NodeId, list: &RevocationList) {
        let is_over = |counts: &BTreeMap<NodeId, u32>, most| {
            let count = counts.get(from);
            count.is_some_and(|count| *count >= most)
        };
        if is_over(&self.bad, BAD_MAX) || is_over(&self.strange, STRANGE_MAX) {
            return;
        }
        match self.setup.identity.revoke(list.bytes()) {
            Ok(Some(revocations)) => {
                self.spread(cx, Some(from), revocations);
                self.judge();
            }
            Ok(None) => {}
            Err(Unlisted::Unrooted) => {
                *self.strange.entry(from.clone()).or_default() += 1;
                self.aside.keep(from.clone(), list.clone());
                let node = self.me();
                tracing::info!(%node, %from, "a list of revoked certificates of a root that is not pinned here waits for it");
            }
            Err(Unlisted::Wrong(reason)) => {
                *self.bad.entry(from.clone()).or_default() += 1;
                let node = self.me();
                tracing::warn!(%node, %from, reason, "a list of revoked certificates is not taken");
            }
        }
    }

    /// Keeps a list that is new here, and tells everybody else once.
    fn spread(&mut self, cx: &mut Cx<Self>, from: Option<&NodeId>, revocations: Revocations) {
        let Revocations {
            domain,
            number,
            count,
            list,
        } = revocations;
        let node = self.me().clone();
        self.setup.stage.report(Event::CertificatesRevoked {
            node: node.clone(),
            domain: domain.clone(),
            number,
            count: count as u64,
        });
        if let Some(reason) = self.setup.identity.own_fault()
            && self.lost.as_ref() != Some(&reason)
        {
            self.lost = Some(reason.clone());
            self.setup
                .stage
                .report(Event::CertificateLost { node, reason });
        }
        if let Ok(list) = RevocationList::try_from(list.clone()) {
            for (peer, link) in self.links() {
                if Some(peer) != from {
                    link.deliver(link::Message::Send(Control::Revoked(list.clone())));
                }
            }
        }
        let told = record::Message::Revoked(domain.clone(), list.clone());
        self.setup.record.deliver(told);
        let env = self.setup.stage.env.clone();
        let (files, bytes) = (env.files(), Work::Bytes(list.len() as u64));
        let root = self.setup.identity.list_name(&list);
        let kept = work(env.as_ref(), bytes, move || {
            files.replace(&format!("{FOLDER}/{domain}.{root}"), &[&list])
        });
        later(cx, kept, |credentials, kept, _| {
            let error = match kept {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(panicked) => panicked.to_string(),
            };
            let node = credentials.me();
            tracing::error!(%node, error, "a list of revoked certificates cannot be kept: after a restart it must be heard again");
        });
    }

    /// Tells a peer what it may have missed.
    fn meet(&self, peer: &NodeId) {
        let company = self.setup.company.get();
        if let Some(link) = company.and_then(|company| company.links.get(peer)) {
            let lists = self.setup.identity.revocations().into_iter();
            for list in lists.filter_map(|list| RevocationList::try_from(list).ok()) {
                link.deliver(link::Message::Send(Control::Revoked(list)));
            }
        }
    }
}

impl Credentials {
    /// Takes the lists that were kept, of roots that are pinned now; says of which files not, and why.
    fn read_kept(
        &self,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, OffloadPanicked>> + use<> {
        let (env, identity) = (self.setup.stage.env.clone(), self.setup.identity.clone());
        let files = env.files();
        work(env.as_ref(), Work::Bytes(0), move || {
            let names = files.list(FOLDER).unwrap_or_default();
            let mut faults = BTreeMap::new();
            for name in names.into_iter().take(LISTS_MAX) {
                let path = format!("{FOLDER}/{name}");
                let taken = files
                    .read_small(&path, LIST_BYTES_MAX)
                    .map_err(|error| error.to_string())
                    .and_then(|list| {
                        let taken = identity.revoke(&list);
                        taken.map_err(|error| error.to_string())
                    });
                if let Err(reason) = taken {
                    faults.insert(files.locate(&path), reason);
                }
            }
            faults
        })
    }

    fn on_kept(&mut self, faults: BTreeMap<String, String>) {
        for (path, reason) in faults {
            let node = self.me();
            tracing::warn!(%node, path, reason, "a list of revoked certificates that was kept is not taken: its root may have been retired");
        }
        // Who was let in before they were read.
        self.judge();
    }
}

impl Actor for Credentials {
    type Message = Message;
    const NAME: &'static str = "Credentials";

    fn started(&mut self, cx: &mut Cx<Self>) {
        let read = self.read_kept();
        pause(cx, read, |credentials, read, cx| {
            credentials.on_kept(read.unwrap_or_default());
            credentials.look(cx);
        });
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Inbound(from, Control::Revoked(list)) => self.on_list(cx, &from, &list),
            Message::Inbound(..) => {}
            Message::Met(peer) => {
                self.bad.remove(&peer);
                self.strange.remove(&peer);
                self.meet(&peer);
                self.look_at_dates(cx);
            }
            Message::Look => self.look(cx),
        }
    }
}
