//! A node's copy of the record: what [`Keeper`] and [`Scribe`] decide is read, written and sent here.
//!
//! The coordinator's node asks its store for the leaves of rounds that have ended, appends them to its own copy, and only then offers them to
//! the other gateways: what they sign is never more than what it holds. No round waits for any of this.

pub mod log;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::SetOnce;

use self::log::Log;
use crate::checkpoint;
use crate::coordinator;
use crate::env::{Work, work};
use crate::identity::Identity;
use crate::link;
use crate::node::Company;
use crate::shell::{ASKS_MAX, Actor, Cx, Handle, Reply, Stage, later, pause};
use tombolo_core::coordinator as machine;
use tombolo_core::event::Event;
use tombolo_core::ids::{DomainId, NodeId, Round};
use tombolo_core::mutants;
use tombolo_core::record::{
    APPEND_BYTES_MAX, CERTIFICATE_BYTES_MAX, Der, FORMAT, Keeper, Leaf, Next, Offered, Scribe,
    Tree, Trespass, Verifier, origin, signer_name,
};
use tombolo_core::tensor::Hash;
use tombolo_core::text::{Text, clip};
use tombolo_core::view::Seen;
use tombolo_core::wire::{Append, Contribution, Control, Recorded};

/// The certificates of nodes that have greeted this coordinator.
pub type Certificates = BTreeMap<NodeId, Vec<u8>>;

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// From a peer.
    Inbound(NodeId, Control),
    /// This node has sent a contribution of its domain.
    Sent(Box<Contribution>),
    /// This node was told that a round has made that model.
    Committed(Round, Hash),
    /// The coordinator, perhaps this node itself, can be reached; or this node has another certificate.
    Greet(NodeId),
    /// This node takes certificates of one more root of a domain.
    Rooted(DomainId, Vec<u8>),
    /// It does not take those of that root any more.
    Unrooted(DomainId, Vec<u8>),
    /// A domain has revoked certificates, by this list.
    Revoked(DomainId, Vec<u8>),
    /// The coordinator of this node begins, with so many rounds ended of that run: what does the record say, and who has greeted?
    Stand(
        Hash,
        Round,
        Reply<Result<(machine::Told, Certificates), String>>,
    ),
    /// A round has ended, and these act as gateways.
    Ended(Round, Vec<NodeId>),
}

/// What it needs.
#[derive(Clone)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// Signs, and checks signatures.
    pub identity: Arc<dyn Identity>,
    /// Hash of everything in the configuration that decides the outcome, in the topology by which the run goes on.
    pub topology: Hash,
    /// Filled once they exist: the node's links and coordinator.
    pub company: Arc<SetOnce<Company>>,
    /// Where the coordinator's records lie.
    pub checkpoint: Handle<checkpoint::Message>,
    /// The view by which the node goes.
    pub seen: Arc<Mutex<Seen>>,
}

/// See the module.
pub struct Record {
    setup: Setup,
    log: Log,
    keeper: Keeper,
    /// Why this node's copy cannot be used.
    damage: Option<String>,
    scribe: Scribe,
    certificates: Certificates,
    /// The run, once this node's coordinator has said it.
    run: Hash,
    /// The head before the newest one.
    size_before: u64,
    /// The last round whose end is known.
    wanted: Round,
    /// What is appended one by one, and the rounds at whose ends.
    queue: VecDeque<(Round, Vec<String>)>,
    gateways: Vec<NodeId>,
    /// Waits for the queue.
    standing: Option<Reply<Result<(machine::Told, Certificates), String>>>,
    /// What was said last of each node: once is enough.
    said: BTreeMap<NodeId, String>,
}

impl Record {
    /// A copy that is read first.
    pub fn new(setup: Setup) -> Self {
        Record {
            keeper: Keeper::new(setup.stage.node.clone()),
            log: Log::default(),
            damage: None,
            scribe: Scribe::default(),
            certificates: Certificates::new(),
            run: Hash::default(),
            size_before: 0,
            wanted: 0,
            queue: VecDeque::new(),
            gateways: Vec::new(),
            standing: None,
            said: BTreeMap::new(),
            setup,
        }
    }

    fn me(&self) -> &NodeId {
        &self.setup.stage.node
    }

    fn send(&self, peer: &NodeId, control: Control) {
        let company = self.setup.company.get();
        if let Some(link) = company.and_then(|company| company.links.get(peer)) {
            link.deliver(link::Message::Send(control));
        }
    }

    fn report(&mut self, found: Trespass) {
        let Trespass { by, forks, reason } = found;
        let (node, reason) = (self.me().clone(), clip(reason));
        if self.said.insert(by.clone(), reason.clone()).as_ref() == Some(&reason) {
            return;
        }
        self.setup.stage.report(match forks {
            true => Event::RecordForked { node, by, reason },
            false => Event::RecordRefused { node, by, reason },
        });
    }

    fn blame_own(&mut self, reason: String) {
        let (by, forks) = (self.me().clone(), false);
        self.report(Trespass { by, forks, reason });
    }

    // ---- as a domain's gateway ----

    fn greet(&mut self, coordinator: &NodeId) {
        let certificate = self.setup.identity.certificate();
        if coordinator == self.me() {
            return self.on_certificate(coordinator.clone(), certificate);
        }
        let recorded = Recorded {
            size: self.keeper.size(),
            certificate,
            ..Recorded::default()
        };
        self.send(coordinator, Control::Recorded(recorded));
    }

    fn on_append(&mut self, cx: &mut Cx<Self>, from: NodeId, append: &Append) {
        if let Some(damage) = &self.damage {
            let refused = damage.as_str().into();
            return self.answer(&from, String::new(), refused);
        }
        let time = self.setup.stage.env.unix_time();
        match self
            .keeper
            .offer(&from, append, self.setup.identity.as_ref(), time)
        {
            Offered::Taken(next) => {
                self.write(cx, *next, move |record, _, written| match written {
                    Ok(note) => record.answer(&from, note, Text::default()),
                    Err(reason) => {
                        let refused = reason.as_str().into();
                        record.answer(&from, String::new(), refused);
                        record.blame_own(reason);
                    }
                })
            }
            Offered::Known(note) => {
                let plan = &self.setup.stage.plan;
                let note = note.only(&signer_name(&plan.name, self.me()));
                self.answer(&from, note.text(), Text::default());
            }
            Offered::Elsewhere => self.answer(&from, String::new(), Text::default()),
            Offered::Refused(found) => {
                let refused = found.reason.as_str().into();
                self.report(found);
                self.answer(&from, String::new(), refused);
            }
        }
    }

    fn answer(&self, to: &NodeId, note: String, refused: Text) {
        let recorded = Recorded {
            size: self.keeper.size(),
            note,
            refused,
            certificate: Vec::new(),
        };
        self.send(to, Control::Recorded(recorded));
    }

    /// Writes what was taken; nothing else is looked at meanwhile.
    fn write(
        &mut self,
        cx: &mut Cx<Self>,
        next: Next,
        then: impl FnOnce(&mut Self, &mut Cx<Self>, Result<String, String>) + 'static,
    ) {
        for found in next.found.clone() {
            self.report(found);
        }
        for by in next.silent.iter().cloned() {
            let node = self.me().clone();
            self.setup.stage.report(Event::RecordMissing { node, by });
        }
        let writes = self.log.plan(self.keeper.tree(), &next);
        let env = self.setup.stage.env.clone();
        let files = env.files();
        let bytes = Work::Bytes(writes.bytes());
        let written = work(env.as_ref(), bytes, move || writes.write(files.as_ref()));
        pause(cx, written, move |record, written, cx| {
            let written = written.unwrap_or_else(|panicked| Err(panicked.to_string()));
            let written = written.map(|log| {
                let text = next.note.text();
                record.log = log;
                record.keeper.adopt(next);
                record.sign_as_told();
                text
            });
            let written = written
                .map_err(|reason| format!("its copy of the record cannot be written: {reason}"));
            then(record, cx, written);
        });
    }

    /// Signs under the certificate that the record tells: until it tells a new one, whoever reads it knows only the old one.
    fn sign_as_told(&self) {
        if let Some(certificate) = self.keeper.account().certificate(self.me()) {
            self.setup.identity.sign_as(certificate);
        }
    }

    // ---- as the coordinator ----

    /// A certificate that a node shows, perhaps this one. One that nobody could check who reads the record does not get into it: the node's
    /// signatures count under the one before, which it keeps for them.
    fn on_certificate(&mut self, from: NodeId, certificate: Vec<u8>) {
        let reason = match self.holder(&certificate) {
            Ok(holder) if holder == from => return self.certify(from, certificate),
            Ok(holder) => format!("it showed the certificate of {holder}"),
            Err(reason) if self.keeper.account().certificate(&from).is_some() => format!(
                "its certificate does not count in the record: {reason}; it signs on with its key before as long as it runs, so give it one with an \
                 Ed25519 key, signed by its domain's root itself, before it is started anew"
            ),
            Err(reason) => format!(
                "its certificate does not count in the record: {reason}; give it one with an Ed25519 key, signed by its domain's root itself"
            ),
        };
        self.report(Trespass {
            by: from,
            forks: false,
            reason,
        });
    }

    /// A node's certificate: it goes into the record, and its signatures count from then on.
    fn certify(&mut self, node: NodeId, certificate: Vec<u8>) {
        self.certificates.insert(node.clone(), certificate.clone());
        // A root that was added must be told before the first certificate of it.
        for (domain, root) in self.untold_roots() {
            self.tell_machine(machine::Message::Rooted(domain, root));
        }
        self.tell_machine(machine::Message::Certified(node, certificate));
    }

    /// Roots that are pinned here and that this copy of the record does not tell, or tells as retired.
    fn untold_roots(&self) -> Vec<(DomainId, Vec<u8>)> {
        let mut roots = self.setup.identity.roots();
        let account = self.keeper.account();
        roots.retain(|(domain, root)| !account.trusts(domain, root));
        roots
    }

    /// A domain has revoked certificates: the list follows the root that has signed it.
    fn on_revoked(&mut self, domain: DomainId, list: Vec<u8>) {
        let told = self.keeper.account().roots().get(&domain).cloned();
        let mut roots = told.unwrap_or_default();
        for (of, root) in self.untold_roots() {
            if of == domain {
                roots.push(root.clone());
                self.tell_machine(machine::Message::Rooted(of, root));
            }
        }
        match Verifier::list(self.setup.identity.as_ref(), &roots, &list) {
            Ok(()) => self.tell_machine(machine::Message::Revoked(domain, list)),
            Err(reason) => {
                self.blame_own(format!("a list of {domain} is not recorded: {reason}"));
            }
        }
    }

    fn tell_machine(&self, message: machine::Message) {
        let company = self.setup.company.get();
        if let Some(coordinator) = company.and_then(|company| company.coordinator.as_ref()) {
            coordinator.deliver(coordinator::Message::Machine(message));
        }
    }

    fn on_recorded(&mut self, cx: &mut Cx<Self>, from: NodeId, recorded: &Recorded) {
        if !recorded.certificate.is_empty() {
            self.on_certificate(from.clone(), recorded.certificate.clone());
        }
        if self.damage.is_some() {
            return;
        }
        let heard =
            self.scribe
                .on_recorded(&self.keeper, &from, recorded, self.setup.identity.as_ref());
        if let Some(found) = heard.found {
            self.report(found);
        }
        if let Some(lacks) = heard.lacks {
            self.catch_up(cx, from, lacks);
        } else if recorded.refused.is_empty() {
            self.tell_cosigned();
        }
    }

    /// Lets the coordinator know who has signed all that was told.
    fn tell_cosigned(&self) {
        let company = self.setup.company.get();
        let coordinator = company.and_then(|company| company.coordinator.as_ref());
        let account = self.keeper.account();
        if let Some(coordinator) = coordinator.filter(|_| account.since_round() == 0) {
            let by = self
                .scribe
                .holding(self.gateways.iter(), self.keeper.size());
            let cosigned = machine::Message::Cosigned(account.round(), by);
            coordinator.deliver(coordinator::Message::Machine(cosigned));
        }
    }

    fn holder(&self, certificate: &[u8]) -> Result<NodeId, String> {
        if certificate.len() > CERTIFICATE_BYTES_MAX {
            return Err(format!("it has {} bytes", certificate.len()));
        }
        let mut roots: BTreeMap<DomainId, Vec<Vec<u8>>> = BTreeMap::new();
        for (domain, root) in self.setup.identity.roots() {
            roots.entry(domain).or_default().push(root);
        }
        let name = &self.setup.stage.plan.name;
        let held = self.setup.identity.holder(name, &roots, certificate);
        held.map(|(node, _)| node)
    }

    /// Sends a gateway what it lacks, as much as travels at once; its answer asks for more.
    fn catch_up(&self, cx: &mut Cx<Self>, to: NodeId, from: u64) {
        let (env, log) = (self.setup.stage.env.clone(), self.log.clone());
        let files = env.files();
        let bytes = Work::Bytes(APPEND_BYTES_MAX as u64);
        let read = work(env.as_ref(), bytes, move || log.read(files.as_ref(), from));
        later(cx, read, move |record, read, _| {
            match read.unwrap_or_else(|panicked| Err(panicked.to_string())) {
                Ok((tree, lines)) if tree.size() == from && !lines.is_empty() => {
                    record.offer(&to, &tree, lines)
                }
                Ok(_) => {}
                Err(reason) => record.blame_own(reason),
            }
        });
    }

    fn offer(&mut self, to: &NodeId, tree: &Tree, lines: Vec<String>) {
        let (name, cosigned) = (self.keeper.account().origin(), self.cosigned());
        let keys = self.setup.identity.as_ref();
        match self.scribe.offer(&name, tree, lines, cosigned, keys) {
            Ok(append) => self.send(to, Control::Append(append)),
            Err(reason) => self.blame_own(reason),
        }
    }

    fn cosigned(&self) -> Vec<String> {
        self.scribe
            .cosigned(self.keeper.head(self.size_before), self.size_before)
    }

    /// What is said before anything else.
    fn first(&self) -> Vec<Leaf> {
        let plan = &self.setup.stage.plan;
        let mut coordinators = vec![plan.coordinator.clone()];
        coordinators.extend(
            plan.standby
                .iter()
                .filter(|node| **node != plan.coordinator)
                .cloned(),
        );
        let mut first = vec![Leaf::Begun {
            format: FORMAT,
            federation: plan.name.clone(),
            run: self.run,
            configuration: self.setup.topology,
            coordinators,
        }];
        let roots = self.setup.identity.roots().into_iter();
        first.extend(roots.map(|(domain, root)| Leaf::Root {
            domain,
            certificate: Der(root),
        }));
        first
    }

    /// What is said first of a topology that was amended: which one it is, and the roots of the domains that join by it.
    fn amended(&self) -> Vec<Leaf> {
        let (account, configuration) = (self.keeper.account(), self.setup.topology);
        if account.configuration() == configuration {
            return Vec::new();
        }
        let mut first = vec![Leaf::Amended { configuration }];
        let roots = self.setup.identity.roots().into_iter();
        let joining = roots.filter(|(domain, _)| !account.roots().contains_key(domain));
        first.extend(joining.map(|(domain, root)| Leaf::Root {
            domain,
            certificate: Der(root),
        }));
        first
    }

    fn told(&self) -> machine::Told {
        let account = self.keeper.account();
        let first = match self.keeper.size() {
            0 => self.first(),
            _ => self.amended(),
        };
        let mut roots = account.roots().clone();
        for leaf in &first {
            if let Leaf::Root {
                domain,
                certificate,
            } = leaf
            {
                let of_domain = roots.entry(domain.clone()).or_default();
                of_domain.push(certificate.0.clone());
            }
        }
        let nodes = self.setup.stage.plan.nodes().map(|node| &node.id);
        let known =
            nodes.filter_map(|node| Some((node.clone(), account.certificate(node)?.to_vec())));
        machine::Told {
            first,
            roots,
            retired: account.retired().clone(),
            lists: account.lists().clone(),
            policy: account.policy(),
            epoch: account.epoch(),
            coordinator: account.view().map(|view| view.coordinator.clone()),
            certificates: known.collect(),
        }
    }

    /// Takes the leaves of all rounds that have ended, up to that one at least, from the store that ended them.
    fn pull(&mut self, cx: &mut Cx<Self>, round: Round) {
        let queued = self.queue.back().map(|(round, _)| *round);
        let from = queued.unwrap_or(self.keeper.account().round()) + 1;
        if round < from || self.damage.is_some() {
            return self.next(cx);
        }
        let checkpoint = self.setup.checkpoint.clone();
        let read = async move {
            let question = |reply| checkpoint::Message::Leaves(from, round, reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        pause(cx, read, move |record, read, cx| match read {
            Ok(Ok(mut rounds)) if rounds.first().is_some_and(|(first, _)| *first == from) => {
                record.wanted = round;
                if record.queue.is_empty() {
                    // Of a round that was being appended when the node ended, what is there already.
                    let known = usize::try_from(record.keeper.account().since_round());
                    let lines = &mut rounds[0].1;
                    lines.drain(..known.unwrap_or(usize::MAX).min(lines.len()));
                }
                record.queue.extend(rounds);
                record.next(cx);
            }
            Ok(Ok(_)) => record.stop(format!("the store does not have round {from}")),
            Ok(Err(error)) => record.stop(error.to_string()),
            Err(error) => record.stop(format!("the checkpoint actor: {error}")),
        });
    }

    /// Nothing can be appended now. At the next round's end it is tried again.
    fn stop(&mut self, reason: String) {
        self.wanted = 0;
        self.queue.clear();
        if let Some(standing) = self.standing.take() {
            standing.send(Err(reason.clone()));
        }
        self.blame_own(reason);
    }

    /// Appends what is queued, one piece after another, each under a head of its own.
    fn next(&mut self, cx: &mut Cx<Self>) {
        let Some((round, mut lines)) = self.queue.pop_front() else {
            self.tell_cosigned();
            let wanted = self.wanted;
            if self.damage.is_none() && self.keeper.account().round() < wanted {
                return self.pull(cx, wanted);
            }
            if let Some(standing) = self.standing.take() {
                let told = self.told();
                standing.send(match &self.damage {
                    None => Ok((told, self.certificates.clone())),
                    Some(damage) => Err(damage.clone()),
                });
            }
            return;
        };
        if self.keeper.size() == 0
            && !lines
                .first()
                .is_some_and(|line| line.contains(r#""leaf":"begun""#))
        {
            let first = self.first();
            lines.splice(..0, first.iter().map(Leaf::line));
        }
        let mut bytes = 0;
        let fits = lines.iter().take_while(|line| {
            bytes += line.len();
            bytes <= APPEND_BYTES_MAX
        });
        let rest = lines.split_off(fits.count().max(1));
        let is_last = rest.is_empty();
        if !is_last {
            self.queue.push_front((round, rest));
        }
        let name = match lines.first().map(|line| Leaf::parse(line)) {
            Some(Ok(Leaf::Begun {
                federation, run, ..
            })) => origin(&federation, &run),
            _ => self.keeper.account().origin(),
        };
        let (cosigned, tree) = (self.cosigned(), self.keeper.tree().clone());
        let keys = self.setup.identity.as_ref();
        let append = match self.scribe.offer(&name, &tree, lines, cosigned, keys) {
            Ok(append) => append,
            Err(reason) => return self.stop(reason),
        };
        let (me, time) = (self.me().clone(), self.setup.stage.env.unix_time());
        match self.keeper.offer(&me, &append, keys, time) {
            Offered::Taken(next) => {
                self.write(cx, *next, move |record, cx, written| match written {
                    Ok(_) => {
                        record.tell(round, &tree, &append, is_last);
                        record.next(cx);
                    }
                    Err(reason) => record.stop(reason),
                })
            }
            Offered::Refused(found) => {
                let reason = format!(
                    "this coordinator's own leaves of round {round} do not follow: {}",
                    found.reason
                );
                self.stop(reason);
            }
            Offered::Known(_) | Offered::Elsewhere => {
                self.stop(format!("round {round} has no leaves"))
            }
        }
    }

    /// Offers new leaves to everybody who has those before them; the others are asked what they lack by the same message.
    fn tell(&mut self, round: Round, before: &Tree, append: &Append, ends: bool) {
        let me = self.me().clone();
        let others: Vec<NodeId> = self
            .gateways
            .iter()
            .filter(|node| **node != me)
            .cloned()
            .collect();
        if ends && append.from > 0 {
            let (by, behind) = self.scribe.standing(others.iter(), append.from);
            let (round, size) = (round, self.keeper.size());
            self.setup.stage.report(Event::RecordSigned {
                round,
                size,
                by,
                behind,
            });
        }
        self.size_before = self.keeper.size();
        let lied_to = others.last().filter(|_| mutants::is("two-histories"));
        for node in &others {
            let told = match lied_to == Some(node) {
                true => self.otherwise(before, append),
                false => append.clone(),
            };
            self.send(node, Control::Append(told));
        }
    }

    /// For a planted bug: the same, with another end.
    fn otherwise(&self, before: &Tree, append: &Append) -> Append {
        let mut leaves = append.leaves.clone();
        if let Some(last) = leaves.last_mut() {
            *last = last.replace("\"reason\":\"\"", "\"reason\":\"otherwise\"");
        }
        let (name, cosigned) = (self.keeper.account().origin(), append.cosigned.clone());
        let keys = self.setup.identity.as_ref();
        let lie = self.scribe.offer(&name, before, leaves, cosigned, keys);
        lie.unwrap_or_else(|_| append.clone())
    }
}

impl Actor for Record {
    type Message = Message;
    const NAME: &'static str = "Record";

    fn started(&mut self, cx: &mut Cx<Self>) {
        let (env, me) = (self.setup.stage.env.clone(), self.me().clone());
        let (files, identity) = (env.files(), self.setup.identity.clone());
        let load = move || Log::load(files.as_ref(), &me, identity.as_ref());
        let loaded = work(env.as_ref(), Work::Bytes(0), load);
        pause(cx, loaded, |record, loaded, _| {
            match loaded.unwrap_or_else(|panicked| Err(panicked.to_string())) {
                Ok((log, keeper)) => {
                    record.size_before = keeper.size();
                    (record.log, record.keeper) = (log, keeper);
                }
                Err(reason) => {
                    let reason = format!(
                        "its copy of the record cannot be used: {reason}; compare it with another domain's by `tombolo audit verify`, then move its \
                         folder `record` away: the leaves come again from the coordinator"
                    );
                    record.blame_own(reason.clone());
                    record.damage = Some(clip(reason));
                }
            }
        });
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Inbound(from, Control::Append(append)) => self.on_append(cx, from, &append),
            Message::Inbound(from, Control::Recorded(recorded)) => {
                self.on_recorded(cx, from, &recorded)
            }
            Message::Inbound(..) => {}
            Message::Sent(contribution) => self.keeper.sent(*contribution),
            Message::Committed(round, hash) => self.keeper.committed(round, hash),
            Message::Greet(coordinator) => self.greet(&coordinator),
            Message::Rooted(domain, root) => {
                self.tell_machine(machine::Message::Rooted(domain, root));
            }
            Message::Unrooted(domain, root) => {
                self.tell_machine(machine::Message::Unrooted(domain, root));
            }
            Message::Revoked(domain, list) => self.on_revoked(domain, list),
            Message::Stand(run, ended, reply) => {
                self.run = run;
                let seen = self
                    .setup
                    .seen
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                self.gateways = seen.view().gateways.values().cloned().collect();
                drop(seen);
                let known = origin(&self.setup.stage.plan.name, &run);
                if self.keeper.size() > 0 && self.keeper.account().origin() != known {
                    let reason = "its folder `record` is of another run; move it away".to_owned();
                    return reply.send(Err(reason));
                }
                self.standing = Some(reply);
                self.pull(cx, ended);
            }
            Message::Ended(round, gateways) => {
                self.gateways = gateways;
                self.pull(cx, round);
            }
        }
    }
}
