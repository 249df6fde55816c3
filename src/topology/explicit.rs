//! What a plan means, with every default spelled out: the answer of `tombolo check`.

use std::collections::BTreeSet;
use std::fmt;

use comfy_table::{Table, presets};
use serde_json::{Value, json};
use tombolo_core::aggregate::{self, Needs};
use tombolo_core::compress::{Codec, Coding, MILLION};
use tombolo_core::congestion::Law;
use tombolo_core::congestion::delay_gradient::Settings;
use tombolo_core::plan::{
    Deadline, DomainPlan, Emulate, Fabric, HeartbeatPlan, InnerKind, LinkPlan, OuterKind,
    Partition, Plan, Quorum, SyncEvery,
};
use tombolo_core::policy::{self, Concern};
use tombolo_core::shaping::{Cap, Overload};
use tombolo_core::staleness::{AsyncPlan, Discount};

use super::build::is_emulated;
use super::units::{show_duration, show_rate};

/// A plan for people, and what they should think about.
#[derive(Debug, Clone, PartialEq)]
pub struct Explicit {
    /// Name and value, in the order to show them.
    pub facts: Vec<(&'static str, String)>,
    /// One row a domain: name, fabric, nodes, gateways.
    pub domains: Vec<[String; 4]>,
    /// What works, but perhaps not as meant.
    pub warnings: Vec<String>,
}

/// Spells a plan out.
pub fn explicit(plan: &Plan) -> Explicit {
    Explicit {
        facts: facts(plan),
        domains: plan.domains.iter().map(domain_row).collect(),
        warnings: warnings(plan),
    }
}

impl Explicit {
    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let facts: serde_json::Map<String, Value> = self
            .facts
            .iter()
            .map(|(name, value)| ((*name).replace(' ', "_"), value.as_str().into()))
            .collect();
        let domains: Vec<Value> = self
            .domains
            .iter()
            .map(|[name, fabric, nodes, gateways]| {
                json!({ "name": name, "fabric": fabric, "nodes": nodes, "gateways": gateways })
            })
            .collect();
        json!({ "event": "checked", "facts": facts, "domains": domains, "warnings": self.warnings })
    }
}

impl fmt::Display for Explicit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for (name, value) in &self.facts {
            table.add_row([*name, value]);
        }
        writeln!(f, "{}\n", trimmed(&table))?;
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["domain", "fabric", "nodes", "gateways"]);
        for row in &self.domains {
            table.add_row(row);
        }
        write!(f, "{}", trimmed(&table))?;
        for warning in &self.warnings {
            write!(f, "\n\nwarning: {warning}")?;
        }
        Ok(())
    }
}

/// Without the spaces that fill the last column.
fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}

fn facts(plan: &Plan) -> Vec<(&'static str, String)> {
    let nodes = plan.nodes().count();
    let domains = plan.domains.len();
    let steps = match plan.sync_every {
        SyncEvery::Steps(steps) if plan.balance_steps => {
            format!("{steps} steps in the mean, more on faster nodes")
        }
        SyncEvery::Steps(steps) => format!("{steps} steps"),
        SyncEvery::Epochs(1) => "1 epoch".into(),
        SyncEvery::Epochs(epochs) => format!("{epochs} epochs"),
    };
    let quorum = match plan.round.quorum {
        Quorum::All => "all (less those that are absent)".into(),
        Quorum::AtLeast {
            nodes: least,
            domains: homes,
        } => format!("{least} of {nodes} nodes, in {homes} of {domains} domains"),
    };
    let deadline = match plan.round.deadline {
        Deadline::Adaptive => "adaptive (first round 30min, then from arrivals)".into(),
        Deadline::Fixed(span) => show_duration(span),
    };
    let links = match plan.links.as_slice() {
        [] => "through the coordinator's domain, not emulated".into(),
        links => links.iter().map(show_link).collect::<Vec<_>>().join("; "),
    };
    let mut facts = vec![
        ("federation", plan.name.clone()),
        ("rounds", format!("{}, {steps} each", plan.rounds)),
        ("coordinator", plan.coordinator.to_string()),
        ("quorum", quorum),
        ("deadline", deadline),
        ("grace", show_duration(plan.round.grace)),
        ("close limit", show_duration(plan.round.close_limit)),
        ("heartbeat", heartbeat(&plan.heartbeat)),
        ("aggregator", rule(plan)),
        ("links", links),
        ("state", plan.checkpoint.folder.display().to_string()),
    ];
    if let Some(mode) = &plan.round.asynchronous {
        facts.insert(2, ("mode", asynchronous(mode)));
    }
    if !plan.standby.is_empty() {
        let names: Vec<&str> = plan.standby.iter().map(|node| node.as_str()).collect();
        facts.push(("standby", names.join(" ")));
    }
    if let Some(url) = &plan.checkpoint.store {
        facts.push(("store", url.clone()));
    }
    if !plan.round.absent.is_empty() {
        let absent = plan.round.absent.iter().map(|(round, nodes)| {
            let names: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
            format!("round {round}: {}", names.join(" "))
        });
        facts.push(("absent", absent.collect::<Vec<_>>().join("; ")));
    }
    if !plan.policy.is_empty() {
        facts.push(("policies", policies(plan)));
    }
    facts
}

/// How many rules there are, and at which sites.
fn policies(plan: &Plan) -> String {
    let at = plan.domains.iter().map(|domain| &domain.id);
    let at = at.filter(|site| plan.policy.rules_at(site));
    let at: Vec<&str> = at.map(|site| site.as_str()).collect();
    let rules = match (plan.policy.rules.len(), at.len()) {
        (0, _) => "no rules".to_owned(),
        (rules, sites) if sites == plan.domains.len() => {
            format!("{rules} rules; every site grants only what they say")
        }
        (rules, _) => format!("{rules} rules; {} grant only what they say", at.join(", ")),
    };
    match plan.policy.slices.len() {
        0 => rules,
        slices => format!("{rules}; {slices} slices"),
    }
}

/// What policies come to, as far as it may not be what was meant.
fn policy_warnings(plan: &Plan) -> Vec<String> {
    let concerns = policy::concerns(plan).into_iter();
    let mut told: Vec<String> = concerns
        .filter_map(|concern| match concern {
            Concern::Warning(warning) => Some(warning),
            Concern::Impossible(_) => None,
        })
        .collect();
    let more = told.len().saturating_sub(POLICY_WARNINGS_MAX);
    if more > 0 {
        told.truncate(POLICY_WARNINGS_MAX);
        told.push(format!(
            "{more} more of these: `tombolo policy explain FILE` shows all of it"
        ));
    }
    told
}

/// Nobody reads more of a kind.
const POLICY_WARNINGS_MAX: usize = 20;

/// When a version closes, and what older updates count for.
fn asynchronous(mode: &AsyncPlan) -> String {
    let AsyncPlan { buffer, staleness } = mode;
    let weight = match staleness.weight {
        Discount::Constant => "in full".to_owned(),
        Discount::Polynomial { exponent } => format!("times (1 + versions)^-{exponent}"),
    };
    format!(
        "asynchronous: {buffer} updates make a version; older ones count {weight}, up to {} versions",
        staleness.limit
    )
}

/// The rule, and what it costs if it is not the usual sum.
fn rule(plan: &Plan) -> String {
    let kind = &plan.aggregator.kind;
    let nodes = plan.nodes().count();
    match plan.aggregator.needs {
        Needs::Sum if plan.aggregator.feedback.is_some() => {
            format!("{kind}, with feedback: who drifts over rounds loses weight")
        }
        Needs::Sum => kind.clone(),
        Needs::Each => format!("{kind}, sees each of {nodes} updates"),
        Needs::EachTwice => {
            format!(
                "{kind}, sees each of {nodes} updates twice: they are written down on their way"
            )
        }
    }
}

fn heartbeat(plan: &HeartbeatPlan) -> String {
    let retry: Vec<String> = plan.retry.iter().copied().map(show_duration).collect();
    format!(
        "every {}, suspect at phi {}, retry {}, restore within {}, cool-down {} to {}",
        show_duration(plan.every),
        plan.phi,
        retry.join(" "),
        show_duration(plan.restore_limit),
        show_duration(plan.cooldown.first),
        show_duration(plan.cooldown.cap),
    )
}

fn show_link(link: &LinkPlan) -> String {
    let (a, b) = &link.between;
    let codec = match link.codec.codec {
        _ if link.codec == Coding::PLAIN => String::new(),
        Codec::TopK { share, .. } => {
            let percent = f64::from(share) * 100.0 / f64::from(MILLION);
            format!(" {} {percent}%", link.codec)
        }
        _ => format!(" {}", link.codec),
    };
    let congestion = match link.congestion {
        Law::Cubic => String::new(),
        Law::Bbr => " bbr".to_owned(),
        law @ Law::DelayGradient(Settings { factor, additive }) => {
            format!(" {law} (factor {factor}, additive {additive})")
        }
    };
    let down = match link.lossless_down {
        None => String::new(),
        Some(lossless) => format!(" (models: {lossless})"),
    };
    let path = show_path(&link.emulate);
    let caps = show_caps(link);
    format!("{a} - {b}{codec}{down}{congestion}{caps} {path}")
}

fn show_caps(link: &LinkPlan) -> String {
    let gives_way = |cap: &Cap| match cap.overload {
        Overload::Delay => "",
        Overload::Drop => ", drops",
        Overload::Adapt => ", adapts",
    };
    let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
    let show = |cap: &Cap| {
        let hours = cap.hours.iter().map(|hours| {
            let (from, to) = (clock(hours.from), clock(hours.to));
            format!(", {from}-{to} UTC {}", show_rate(hours.rate))
        });
        let hours: String = hours.collect();
        format!("{}{hours}{}", show_rate(cap.rate), gives_way(cap))
    };
    match (&link.cap, &link.cap_back) {
        (None, None) => String::new(),
        (Some(forth), Some(back)) if forth == back => format!(" at most {}", show(forth)),
        (forth, back) => {
            let (a, b) = &link.between;
            let ways = [(a, b, forth), (b, a, back)];
            let ways = ways.iter().filter_map(|(from, to, cap)| {
                Some(format!(" {from} to {to} at most {}", show(cap.as_ref()?)))
            });
            ways.collect::<Vec<_>>().join(",")
        }
    }
}

fn show_path(path: &Emulate) -> String {
    if !is_emulated(path) {
        return "(not emulated)".into();
    }
    let mut said = vec![format!("delay {}", show_duration(path.delay))];
    if !path.jitter.is_zero() {
        said.push(format!("jitter {}", show_duration(path.jitter)));
    }
    if path.loss > 0.0 {
        said.push(format!("loss {}%", (path.loss * 1e8).round() / 1e6));
    }
    if let Some(rate) = path.rate {
        said.push(show_rate(rate));
    }
    format!("({})", said.join(", "))
}

fn domain_row(domain: &DomainPlan) -> [String; 4] {
    // Where the file alone decides, it is said here; else it takes a look at the machine.
    let fabric = match domain.fabric {
        Fabric::Auto if domain.hosts() == 1 => "auto: shm".to_owned(),
        fabric => fabric.name().to_owned(),
    };
    let names = |ids: &mut dyn Iterator<Item = &str>| ids.collect::<Vec<_>>().join(" ");
    [
        domain.id.to_string(),
        fabric,
        names(&mut domain.nodes.iter().map(|node| node.id.name())),
        names(&mut domain.gateways.iter().map(|gateway| gateway.name())),
    ]
}

fn warnings(plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    let nodes = plan.nodes().count();
    match plan.round.quorum {
        Quorum::All => {
            if plan.round.deadline == Deadline::Adaptive {
                warnings.push("with quorum = \"all\" one slow node fails a round at the adaptive deadline: a fixed one is safer".into());
            }
        }
        Quorum::AtLeast { nodes: least, .. }
            if 2 * least <= nodes && plan.round.asynchronous.is_none() =>
        {
            warnings.push(format!("a quorum of {least} of {nodes} nodes is less than a majority: few updates decide a round"));
        }
        Quorum::AtLeast { .. } => {}
    }
    if plan
        .round
        .asynchronous
        .is_some_and(|mode| mode.buffer == nodes)
    {
        warnings.push(format!(
            "a buffer of all {nodes} nodes waits for the slowest of them: fewer updates a version do not"
        ));
    }
    if let Deadline::Fixed(deadline) = plan.round.deadline
        && plan.round.grace >= deadline
    {
        warnings.push(format!(
            "the grace of {} is cut off by the deadline of {}",
            show_duration(plan.round.grace),
            show_duration(deadline)
        ));
    }
    for domain in &plan.domains {
        if domain.gateways.len() == 1 && domain.nodes.len() > 1 && plan.domains.len() > 1 {
            warnings.push(format!(
                "domain {} has one gateway: if it is lost, the domain waits",
                domain.id
            ));
        }
    }
    warnings.extend(rule_warnings(plan));
    warnings.extend(policy_warnings(plan));
    let joined: BTreeSet<_> = plan.links.iter().map(|link| &link.between).collect();
    let home = plan.coordinator.domain();
    for (a, b) in joined {
        if *a != home && *b != home {
            warnings.push(format!(
                "the link {a} - {b} carries nothing: contributions go through {home}"
            ));
        }
    }
    warnings
}

/// A Dirichlet concentration below this leaves most nodes with two or three kinds of rows.
const SKEWED_BELOW: f64 = 0.3;

/// A learning rate of AdamW at which weights of the usual size are moved by a good part of themselves in each step.
const ADAMW_FAST: f64 = 0.05;

/// What is known of rules and optimizers.
fn rule_warnings(plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    let kind = &plan.aggregator.kind;
    if plan.aggregator.needs != Needs::Sum {
        let home = plan.coordinator.domain();
        let away = plan.domains.iter().filter(|domain| domain.id != home);
        let (sums, updates) = away.fold((0, 0), |(sums, updates), domain| {
            (sums + 1, updates + domain.nodes.len())
        });
        if updates > sums {
            warnings.push(format!(
                "{kind} must see each update: {updates} a round cross the WAN to {home}, where a rule for sums sends {sums}"
            ));
        }
        let skewed = match plan.model.partition {
            Partition::Dirichlet { alpha } => alpha < SKEWED_BELOW,
            Partition::Shards => true,
            Partition::Iid | Partition::Clients(_) | Partition::Rows(_) => false,
        };
        if skewed && kind != "centred-clipping" {
            warnings.push(format!(
                "on data as skewed as this partition, {kind} loses 11 to 16 points of accuracy though nobody is bad: what only few nodes know looks wrong to it; dynamic-weighted with clip = \"median\" keeps it"
            ));
        }
    }
    if let Some(rule) = aggregate::build(&plan.aggregator)
        && let Quorum::AtLeast { nodes: quorum, .. } = plan.round.quorum
        && quorum < rule.least()
    {
        let least = rule.least();
        warnings.push(format!(
            "a round may close with {quorum} updates, and {kind} needs {least}: it is then aborted; a quorum of {least} nodes waits for them"
        ));
    }
    if kind == "trimmed-mean" && plan.aggregator.faulty == 0 {
        warnings.push(
            "trimmed-mean with faulty = 0 trims nothing: it is the plain mean of every node".into(),
        );
    }
    let pull = plan.model.learning_rate * plan.model.proximal;
    if pull >= 1.0 {
        warnings.push(format!(
            "learning_rate times proximal is {pull}: each local step is pulled back beyond the model that the round began with; below 1 it is a pull"
        ));
    }
    if plan.model.inner.optimizer == InnerKind::AdamW && plan.model.learning_rate >= ADAMW_FAST {
        warnings.push(format!(
            "a learning rate of {} moves every weight by about as much in each local step, however small the gradient, with adamw: 0.001 to 0.01 is usual",
            plan.model.learning_rate
        ));
    }
    let adaptive = matches!(
        plan.outer.optimizer,
        OuterKind::Adam | OuterKind::Yogi | OuterKind::Adagrad
    );
    if adaptive && plan.outer.learning_rate >= 1.0 {
        warnings.push(format!(
            "an outer learning rate of {} moves every weight by about as much in each round, however small the updates are, with an adaptive optimizer: 0.01 to 0.1 is usual",
            plan.outer.learning_rate
        ));
    }
    warnings
}
