//! Who may do what at which site: one pure function, which those who enforce it and those who explain it both ask.
//!
//! Two questions, and both must be answered with yes. *What does the file make of it?* The roles of the topology bound what anybody can be
//! asked for: nobody but the coordinator and the standbys coordinates, whatever a rule says. *What does the site grant?* A site without rules
//! of its own grants what roles imply. A site with at least one rule grants what its rules say, and nothing else: deny by default.
//!
//! Rules only ever grant, so their order means nothing, and one more rule takes nothing away from a site that has some.
//!
//! Each act concerns one node, and the slice of that node is the slice of the act: the node that is let in to, that trains, that is spoken for
//! or led, whose memory is read, whose health is told. [`of`] looks it up.

mod cohort;
mod roles;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{DomainId, NodeId, SliceId};
use crate::plan::Plan;
use crate::tensor::Hash;
use crate::text::Text;
use crate::time::Micros;
use crate::wire::Object;

pub use cohort::{Concern, concerns, left_out, may_speak, reaches};
pub use roles::{BUILT_IN, BuiltIn};

/// Most rules of a file: with the longest names all of them fit into one leaf of the record.
pub const RULES_MAX: usize = 256;

/// Most slices of a file.
pub const SLICES_MAX: usize = 64;

/// Most slices that one rule names.
pub const RULE_SLICES_MAX: usize = 16;

/// What somebody may do at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Have a connection with nodes of the site.
    Join,
    /// Have its updates counted.
    Train,
    /// Speak for its domain: lead its members, and hand in their sum.
    Aggregate,
    /// Open and close rounds, and fetch what was contributed to them.
    Coordinate,
    /// Have models sent, or read them in memory that is shared.
    ReadModel,
    /// Be told how nodes do.
    ReadMetrics,
}

impl Action {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Action; 6] = [
        Action::Join,
        Action::Train,
        Action::Aggregate,
        Action::Coordinate,
        Action::ReadModel,
        Action::ReadMetrics,
    ];

    /// As files write it.
    pub fn word(self) -> &'static str {
        match self {
            Action::Join => "join",
            Action::Train => "train",
            Action::Aggregate => "aggregate",
            Action::Coordinate => "coordinate",
            Action::ReadModel => "read-model",
            Action::ReadMetrics => "read-metrics",
        }
    }

    /// Behind "may" in a sentence.
    fn said(self) -> &'static str {
        match self {
            Action::ReadModel => "read the model",
            Action::ReadMetrics => "read metrics",
            other => other.word(),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl std::str::FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Action::ALL.into_iter();
        all.find(|action| action.word() == text).ok_or_else(|| {
            let words = Action::ALL.map(Action::word);
            format!("{text:?} is no action; there are {}", words.join(", "))
        })
    }
}

/// Whom a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Who {
    /// `*`: every node of the topology.
    Everyone,
    /// `plant/*`: every node of a domain.
    Domain(DomainId),
    /// `plant/c`.
    Node(NodeId),
}

impl Who {
    /// Whether it is about that node.
    pub fn includes(&self, node: &NodeId) -> bool {
        match self {
            Who::Everyone => true,
            Who::Domain(domain) => *domain == node.domain(),
            Who::Node(named) => named == node,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Everyone => f.write_str("*"),
            Who::Domain(domain) => write!(f, "{domain}/*"),
            Who::Node(node) => write!(f, "{node}"),
        }
    }
}

impl std::str::FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither domain/node nor domain/* nor *");
        match text.strip_suffix("/*") {
            _ if text == "*" => Ok(Who::Everyone),
            Some(domain) => domain.parse().map(Who::Domain).map_err(|_| wrong()),
            None => text.parse().map(Who::Node).map_err(|_| wrong()),
        }
    }
}

impl TryFrom<String> for Who {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Who> for String {
    fn from(who: Who) -> String {
        who.to_string()
    }
}

/// One `[[policy]]`: it grants, and takes nothing away.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Whose rule it is; none: every site's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<DomainId>,
    /// Whom it grants something.
    pub identity: Who,
    /// What.
    pub actions: BTreeSet<Action>,
    /// In which slices; none given: everywhere, also where there is no slice.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub slices: BTreeSet<SliceId>,
}

impl Rule {
    fn holds_at(&self, site: &DomainId) -> bool {
        self.site.as_ref().is_none_or(|of| of == site)
    }

    fn grants(
        &self,
        site: &DomainId,
        node: &NodeId,
        action: Action,
        slice: Option<&SliceId>,
    ) -> bool {
        let inside = self.slices.is_empty() || slice.is_some_and(|of| self.slices.contains(of));
        self.holds_at(site)
            && self.identity.includes(node)
            && self.actions.contains(&action)
            && inside
    }
}

/// `[[slice]]` and `[[policy]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyPlan {
    /// The slices of the file.
    pub slices: Vec<SliceId>,
    /// The rules, in file order.
    pub rules: Vec<Rule>,
}

impl PolicyPlan {
    /// Whether the file says nothing of policies.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty() && self.rules.is_empty()
    }

    /// Whether a site has rules of its own, so that it grants nothing else.
    pub fn rules_at(&self, site: &DomainId) -> bool {
        self.rules.iter().any(|rule| rule.holds_at(site))
    }

    /// The first rule of a site that grants this, counted from 1. It also judges who is in no topology yet.
    pub fn grant(
        &self,
        site: &DomainId,
        node: &NodeId,
        action: Action,
        slice: Option<&SliceId>,
    ) -> Option<usize> {
        let mut rules = self.rules.iter();
        let place = rules.position(|rule| rule.grants(site, node, action, slice));
        place.map(|place| place + 1)
    }
}

/// One number for who may do what: of the rules in any order, and of the slice of each node.
pub fn hash(plan: &Plan) -> Hash {
    let rules: BTreeSet<&Rule> = plan.policy.rules.iter().collect();
    let nodes = plan.nodes();
    let slices: BTreeMap<&NodeId, &SliceId> = nodes
        .filter_map(|node| Some((&node.id, node.slice.as_ref()?)))
        .collect();
    let text = serde_json::to_vec(&(rules, slices)).expect("plain data with text keys");
    Hash::of_bytes(&text)
}

/// The hash that two nodes compare before they talk: that of everything that decides the outcome of a run, and of who may do what.
///
/// A run may go on with other policies, which the record tells; but nodes that go by different ones do not talk to each other.
pub fn bind(configuration: Hash, plan: &Plan) -> Hash {
    match plan.policy.is_empty() {
        true => configuration,
        false => Hash::of_bytes(&[configuration.0, hash(plan).0].concat()),
    }
}

/// What a verdict goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum By {
    /// The file gives nobody of that name a role in which it would do this there.
    Role,
    /// The site has no rules: what roles imply is granted.
    BuiltIn,
    /// The rule of that place in the file, from 1, grants it.
    Rule(usize),
    /// The site has rules, and none of them grants it.
    NoRule,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Role => f.pad("no role"),
            By::BuiltIn => f.pad("built-in"),
            By::Rule(place) => f.pad(&format!("rule {place}")),
            By::NoRule => f.pad("no rule"),
        }
    }
}

impl TryFrom<String> for By {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let place = text.strip_prefix("rule ").map(str::parse);
        match (text.as_str(), place) {
            (_, Some(Ok(place))) => Ok(By::Rule(place)),
            ("no role", _) => Ok(By::Role),
            ("built-in", _) => Ok(By::BuiltIn),
            ("no rule", _) => Ok(By::NoRule),
            _ => Err(format!("{text:?} is nothing that a verdict goes by")),
        }
    }
}

impl From<By> for String {
    fn from(by: By) -> String {
        by.to_string()
    }
}

/// Whether somebody may do something at a site, by what, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Where.
    pub site: DomainId,
    /// Who.
    pub identity: NodeId,
    /// What.
    pub action: Action,
    /// The slice that it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<SliceId>,
    /// Whether it may.
    pub allowed: bool,
    /// By what.
    pub by: By,
    /// Why, in words.
    pub why: String,
}

impl Verdict {
    /// Itself, if it denies.
    pub fn denial(self) -> Option<Box<Verdict>> {
        (!self.allowed).then(|| Box::new(self))
    }

    /// For a peer that is refused.
    pub fn text(&self) -> Text {
        Text::from(self.to_string())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            site,
            identity,
            action,
            slice,
            allowed,
            why,
            ..
        } = self;
        let may = if *allowed { "may" } else { "may not" };
        write!(f, "{identity} {may} {} at {site}", action.said())?;
        if let Some(slice) = slice {
            write!(f, " in slice {slice}")?;
        }
        write!(f, ": {why}")
    }
}

/// Decides. Nobody else does: enforcement and `tombolo policy explain` both ask here.
pub fn decide(
    plan: &Plan,
    site: &DomainId,
    identity: &NodeId,
    action: Action,
    slice: Option<&SliceId>,
) -> Verdict {
    let verdict = |allowed, by, why| Verdict {
        site: site.clone(),
        identity: identity.clone(),
        action,
        slice: slice.cloned(),
        allowed,
        by,
        why,
    };
    if let Err(why) = roles::implies(plan, site, identity, action) {
        return verdict(false, By::Role, why);
    }
    let policy = &plan.policy;
    match policy.grant(site, identity, action, slice) {
        Some(place) => {
            let whom = &policy.rules[place - 1].identity;
            let why = format!("rule {place} of the file grants it to {whom}");
            verdict(true, By::Rule(place), why)
        }
        None if policy.rules_at(site) => {
            let why = format!("{site} has rules of its own, and none of them grants it");
            verdict(false, By::NoRule, why)
        }
        None => {
            let granted = roles::built_in(action).grants;
            let why = format!("{site} has no rules of its own, and by default {granted}");
            verdict(true, By::BuiltIn, why)
        }
    }
}

/// [`decide`], for an act that concerns `node`.
pub fn of(
    plan: &Plan,
    site: &DomainId,
    identity: &NodeId,
    action: Action,
    node: &NodeId,
) -> Verdict {
    decide(plan, site, identity, action, plan.slice(node))
}

/// Whether a node sends a peer an object that it asks for.
pub fn serves(plan: &Plan, node: &NodeId, peer: &NodeId, object: Object) -> Verdict {
    let action = match object {
        Object::Model(_) | Object::Outline(_) | Object::Chunk(..) => Action::ReadModel,
        // Only who closes rounds has any use for what one is made of.
        Object::Contribution(..) | Object::Rest(..) => Action::Coordinate,
    };
    of(plan, &node.domain(), peer, action, node)
}

/// Refusals that were told lately: who is refused may ask for ever, and may not fill the record.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<(NodeId, Action, Option<SliceId>), Micros>);

impl Refusals {
    /// How long the same refusal is not told again.
    const QUIET_S: u64 = 60;

    /// Different ones that are told. Each is of a node of the topology: a larger federation has more, and is told of some.
    const MOST: usize = 4_096;

    /// Whether to tell this one.
    pub fn is_news(&mut self, now: Micros, verdict: &Verdict) -> bool {
        let key = (
            verdict.identity.clone(),
            verdict.action,
            verdict.slice.clone(),
        );
        let told = self.0.get(&key).copied();
        let quiet = std::time::Duration::from_secs(Self::QUIET_S);
        if told.is_some_and(|told| now.since(told) < quiet)
            || told.is_none() && self.0.len() >= Self::MOST
        {
            return false;
        }
        self.0.insert(key, now);
        true
    }
}
