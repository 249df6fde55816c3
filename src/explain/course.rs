//! What a round spent its time on: the chain of what had to end before the next thing could begin, from its opening to its outcome.
//!
//! The chain goes along the last of each: of the nodes that count the one that reported last, of the domains the one whose sum came last. So
//! its pieces add up to the round. Each says what held it up, as far as the record tells.

use std::collections::BTreeMap;

use serde::Serialize;
use tombolo_core::event::{Cargo, Event, Measured, RoundRecord, Transfer};
use tombolo_core::ids::{DomainId, NodeId, Round};

/// Nodes of a round, or links, that are remembered; names come from a file, which may hold anything.
const KEPT_MAX: usize = 4_096;

/// Who trains for so much longer than the others is a straggler.
const STRAGGLES: f64 = 1.5;

/// A link that carries this share of its rate is full: headers and acknowledgements take the rest.
const FULL: f64 = 0.7;

/// A transfer that takes no longer than so many round trips has no time to fill a link.
const ROUND_TRIPS: f64 = 4.0;

/// A round trip that takes so many times the shortest one waits in a queue.
const QUEUED: f64 = 2.0;

/// From this share of lost heartbeats on, losses hold a transfer up.
const LOSSY: f64 = 0.01;

/// What a round spends time on, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The model on its way to the domain of the last node that counts.
    Download,
    /// From there, or from the opening, until that node begins to train.
    HandOut,
    /// Until its update is ready.
    Compute,
    /// Until its peers have measured it.
    Measure,
    /// Until the coordinator has its report.
    Report,
    /// All of these, of a node whose process's record is not here: only the whole is known.
    HandOutToReport,
    /// From the last report until the weights are fixed: for others who might still come, and for a note on the disk.
    Waiting,
    /// The word of the weights on its way to the domain whose sum comes last.
    Word,
    /// Until its sum is made.
    Fold,
    /// Until the coordinator has that.
    Upload,
    /// All of these, of a domain whose gateway's record is not here.
    Contribution,
    /// From the last sum until they are one.
    Sum,
    /// Until the round's record is on the disk: outer step, evaluation, checkpoint.
    Closing,
}

/// What holds a step up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The training itself, which takes the others as long.
    Compute,
    /// One node that takes longer than the others.
    Straggler,
    /// The memory that a domain shares.
    Fabric,
    /// The link's rate.
    Link,
    /// What the link loses.
    Loss,
    /// The link's length: there is not enough to send to fill it.
    Latency,
    /// The sender, or how much may be on the way: the link has room.
    Window,
    /// Whoever might still come.
    Waiting,
    /// The coordinator's own work.
    Coordinator,
    /// The record does not tell.
    Unknown,
}

/// A piece of a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// What it was spent on.
    pub step: Step,
    /// For whom the round waited; empty if for nobody in particular.
    pub whom: String,
    /// When it began, in seconds since the opening.
    pub at: f64,
    /// How long it took.
    pub seconds: f64,
    /// What held it up.
    pub cause: Cause,
    /// How that is known, in words; may be empty.
    pub why: String,
}

/// What a domain did in a round, as far as the record tells; in seconds since the opening.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SumSpan {
    /// When its gateway had the model that the round before committed, unless that was before.
    pub obtained: Option<f64>,
    /// When it began to fold.
    pub began: Option<f64>,
    /// When its sum was made and announced.
    pub made: Option<f64>,
    /// When the coordinator had that.
    pub arrived: Option<f64>,
    /// When the coordinator had noted it.
    pub acknowledged: Option<f64>,
}

/// How the links between sites were.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lines(BTreeMap<(DomainId, DomainId), Line>);

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Line {
    /// The shortest round trip and the last one: what is more waits in a queue.
    round_trips: Option<(f64, f64)>,
    loss: f64,
}

impl Lines {
    pub fn take(&mut self, measured: &Measured) {
        let key = pair(&measured.node.domain(), &measured.peer.domain());
        if self.0.len() == KEPT_MAX && !self.0.contains_key(&key) {
            return;
        }
        let line = self.0.entry(key).or_default();
        line.loss = measured.heartbeat_loss;
        if let Some(last) = measured.round_trip_ms.map(|round_trip| round_trip / 1e3) {
            let shortest = line
                .round_trips
                .map_or(last, |(shortest, _)| shortest.min(last));
            line.round_trips = Some((shortest, last));
        }
    }

    fn line(&self, one: &DomainId, other: &DomainId) -> Line {
        self.0.get(&pair(one, other)).copied().unwrap_or_default()
    }
}

fn pair(one: &DomainId, other: &DomainId) -> (DomainId, DomainId) {
    let (one, other) = (one.clone(), other.clone());
    if one < other {
        (one, other)
    } else {
        (other, one)
    }
}

/// What happened in a round, in seconds since its opening.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Course {
    began: BTreeMap<NodeId, f64>,
    trained: BTreeMap<NodeId, f64>,
    measured: BTreeMap<NodeId, f64>,
    reported: BTreeMap<NodeId, f64>,
    obtained: BTreeMap<DomainId, f64>,
    fold_started: BTreeMap<DomainId, f64>,
    contributed: BTreeMap<DomainId, f64>,
    acknowledged: BTreeMap<DomainId, f64>,
    /// By who sent it.
    sums: BTreeMap<DomainId, (f64, Transfer)>,
    /// By who got it.
    models: BTreeMap<DomainId, Transfer>,
    weighed: Option<f64>,
    folded: Option<f64>,
}

impl Course {
    /// Takes what happened so long after the opening of that round.
    pub fn take(&mut self, number: Round, since: f64, event: &Event) {
        let first = |map: &mut BTreeMap<NodeId, f64>, node: &NodeId| {
            if map.len() < KEPT_MAX {
                map.entry(node.clone()).or_insert(since);
            }
        };
        let last = |map: &mut BTreeMap<DomainId, f64>, domain: &DomainId| {
            if map.len() < KEPT_MAX {
                map.insert(domain.clone(), since);
            }
        };
        // A record may hold any number.
        let before = number.checked_sub(1);
        match event {
            // The model of the round before may still be on its way.
            Event::ModelObtained { round, domain } if Some(*round) == before => {
                last(&mut self.obtained, domain);
            }
            Event::Transferred(transfer) => match transfer.cargo {
                Cargo::Model if Some(transfer.round) != before || self.models.len() >= KEPT_MAX => {
                }
                Cargo::Model => {
                    self.models.insert(transfer.to.clone(), transfer.clone());
                }
                _ if transfer.round != number || self.sums.len() >= KEPT_MAX => {}
                _ => {
                    let sum = (since, transfer.clone());
                    self.sums.insert(transfer.from.clone(), sum);
                }
            },
            Event::TrainingStarted { round, node } if *round == number => {
                first(&mut self.began, node);
            }
            Event::UpdateExported { round, node, .. } | Event::UpdateRestored { round, node }
                if *round == number =>
            {
                first(&mut self.trained, node);
            }
            Event::UpdateMeasured { round, node } if *round == number => {
                first(&mut self.measured, node);
            }
            Event::Reported { round, node, .. } if *round == number => {
                first(&mut self.reported, node);
            }
            Event::Weighed { round, .. } if *round == number => self.weighed = Some(since),
            Event::FoldStarted { round, domain, .. } if *round == number => {
                last(&mut self.fold_started, domain);
            }
            Event::Contributed { round, domain, .. } if *round == number => {
                last(&mut self.contributed, domain);
            }
            Event::Acknowledged { round, domain, .. } if *round == number => {
                last(&mut self.acknowledged, domain);
            }
            Event::ContributionsFolded { round } if *round == number => self.folded = Some(since),
            _ => {}
        }
    }

    /// When a node began, had trained, and had reported.
    pub fn times(&self, node: &NodeId) -> [Option<f64>; 3] {
        [&self.began, &self.trained, &self.reported].map(|map| map.get(node).copied())
    }

    /// When a domain's last sum was acknowledged.
    pub fn acknowledged(&self, domain: &DomainId) -> Option<f64> {
        self.acknowledged.get(domain).copied()
    }

    /// What each domain did.
    pub fn sums(&self) -> BTreeMap<DomainId, SumSpan> {
        let mut sums: BTreeMap<DomainId, SumSpan> = BTreeMap::new();
        let mut note = |map: &BTreeMap<DomainId, f64>, set: fn(&mut SumSpan, f64)| {
            for (domain, at) in map {
                set(sums.entry(domain.clone()).or_default(), *at);
            }
        };
        note(&self.obtained, |sum, at| sum.obtained = Some(at));
        note(&self.fold_started, |sum, at| sum.began = Some(at));
        note(&self.contributed, |sum, at| sum.made = Some(at));
        note(&self.acknowledged, |sum, at| sum.acknowledged = Some(at));
        for (domain, (at, _)) in &self.sums {
            sums.entry(domain.clone()).or_default().arrived = Some(*at);
        }
        sums
    }

    /// How long the others trained, in the middle; none if nobody else did to the end.
    pub fn others_trained(&self, node: &NodeId) -> Option<f64> {
        let others = self.trained.iter().filter(|(other, _)| *other != node);
        let spans = others.filter_map(|(other, end)| Some(end - self.began.get(other)?));
        let mut spans: Vec<f64> = spans.collect();
        spans.sort_by(f64::total_cmp);
        spans.get(spans.len() / 2).copied()
    }

    /// The pieces of the round that ended with this record so long after its opening.
    pub fn path(&self, record: &RoundRecord, end: f64, lines: &Lines) -> Vec<Share> {
        let mut chain = Chain::default();
        self.to_the_last_report(record, lines, &mut chain);
        let late: Vec<&str> = record.late.iter().map(NodeId::as_str).collect();
        let waits = |chain: &mut Chain, end| {
            let (cause, why) = self.waiting(&record.late, chain.at);
            chain.until(end, Step::Waiting, &late.join(", "), (cause, why));
        };
        if !record.is_committed() {
            waits(&mut chain, Some(end));
            return chain.pieces;
        }
        waits(&mut chain, self.weighed);
        self.to_the_last_sum(lines, &mut chain);
        let own = (Cause::Coordinator, String::new());
        chain.until(self.folded, Step::Sum, "", own.clone());
        chain.until(Some(end), Step::Closing, "", own);
        chain.pieces
    }

    fn to_the_last_report(&self, record: &RoundRecord, lines: &Lines, chain: &mut Chain) {
        let counts = record.counted.iter();
        let reports = counts.filter_map(|node| Some((node, self.reported.get(node)?)));
        let Some((node, reported)) = reports.max_by(|a, b| a.1.total_cmp(b.1)) else {
            return;
        };
        let (name, domain) = (node.as_str(), node.domain());
        let [Some(began), Some(trained), _] = self.times(node) else {
            let unknown = (Cause::Unknown, String::new());
            return chain.until(Some(*reported), Step::HandOutToReport, name, unknown);
        };
        let fabric = || (Cause::Fabric, String::new());
        if let (Some(obtained), Some(model)) =
            (self.obtained.get(&domain), self.models.get(&domain))
        {
            let way = format!("{} -> {}", model.from, model.to);
            let held = verdict(model, obtained.min(began).max(0.0), lines);
            chain.until(Some(obtained.min(began)), Step::Download, &way, held);
        }
        chain.until(Some(began), Step::HandOut, name, fabric());
        chain.until(Some(trained), Step::Compute, name, self.training(node));
        chain.until(
            self.measured.get(node).copied(),
            Step::Measure,
            name,
            fabric(),
        );
        let held = (Cause::Latency, String::new());
        chain.until(Some(*reported), Step::Report, name, held);
    }

    fn training(&self, node: &NodeId) -> (Cause, String) {
        let [Some(began), Some(trained), _] = self.times(node) else {
            return (Cause::Unknown, String::new());
        };
        let times = |others: f64| (trained - began) / others;
        match self.others_trained(node).filter(|others| *others > 0.0) {
            Some(others) if times(others) >= STRAGGLES => {
                let times = times(others);
                let why = format!("it trained {times:.1} times as long as the others");
                (Cause::Straggler, why)
            }
            _ => (Cause::Compute, String::new()),
        }
    }

    /// Why the round waited for those who are late.
    fn waiting(&self, late: &[NodeId], since: f64) -> (Cause, String) {
        let trains = |node: &&NodeId| {
            let [began, trained, _] = self.times(node);
            began.is_some() && trained.is_none_or(|trained| trained > since)
        };
        let training: Vec<&str> = late.iter().filter(trains).map(NodeId::as_str).collect();
        match training.is_empty() {
            true => (Cause::Waiting, String::new()),
            false => {
                let why = format!("still training: {}", training.join(", "));
                (Cause::Straggler, why)
            }
        }
    }

    fn to_the_last_sum(&self, lines: &Lines, chain: &mut Chain) {
        let later = |a: &(&DomainId, f64), b: &(&DomainId, f64)| a.1.total_cmp(&b.1);
        let acknowledged = self.acknowledged.iter().map(|(domain, at)| (domain, *at));
        let Some((last, gate)) = acknowledged.max_by(later) else {
            return;
        };
        // With a journal the bytes were there before the word that they are noted; without, they come when all words are there.
        let awaited = self.sums.iter().filter(|(_, (at, _))| *at > gate);
        let awaited = awaited.max_by_key(|(_, (_, sum))| sum.waited_us);
        let after = self.folded.map_or(0.0, |folded| folded - gate);
        let held_up = |sum: &Transfer| sum.waited_us as f64 / 1e6 >= after / 2.0;
        let (domain, end) = match awaited.filter(|(_, (_, sum))| held_up(sum)) {
            Some((domain, (at, _))) => (domain, *at),
            None => (last, gate),
        };
        let sum = self.sums.get(domain).filter(|(at, _)| *at <= end);
        let name = domain.as_str();
        let (word, made) = (self.fold_started.get(domain), self.contributed.get(domain));
        let (Some(word), Some(made)) = (word, made) else {
            let held = match sum {
                Some((_, sum)) => verdict(sum, sum.waited_us as f64 / 1e6, lines),
                None => (Cause::Unknown, String::new()),
            };
            return chain.until(Some(end), Step::Contribution, name, held);
        };
        let latency = (Cause::Latency, String::new());
        chain.until(Some(*word), Step::Word, name, latency);
        let fabric = (Cause::Fabric, String::new());
        chain.until(Some(*made), Step::Fold, name, fabric);
        match sum {
            Some((at, sum)) => {
                let way = format!("{} -> {}", sum.from, sum.to);
                let held = verdict(sum, at - made, lines);
                chain.until(Some(*at), Step::Upload, &way, held);
                let disk = (Cause::Coordinator, String::new());
                chain.until(Some(end), Step::Sum, "", disk);
            }
            None => {
                let own = (Cause::Coordinator, String::new());
                chain.until(Some(end), Step::Sum, "", own);
            }
        }
    }
}

/// Pieces one behind the other.
#[derive(Default)]
struct Chain {
    at: f64,
    pieces: Vec<Share>,
}

impl Chain {
    /// The next piece, if it is known when it ended; what is told too late to have taken time took none.
    fn until(&mut self, end: Option<f64>, step: Step, whom: &str, (cause, why): (Cause, String)) {
        let Some(end) = end.filter(|end| *end > self.at) else {
            return;
        };
        match self.pieces.last_mut() {
            Some(last) if last.step == step && last.whom == whom => last.seconds += end - self.at,
            _ => self.pieces.push(Share {
                step,
                whom: whom.to_owned(),
                at: self.at,
                seconds: end - self.at,
                cause,
                why,
            }),
        }
        self.at = end;
    }
}

/// What held a transfer up that took so long.
pub(crate) fn verdict(transfer: &Transfer, seconds: f64, lines: &Lines) -> (Cause, String) {
    let line = lines.line(&transfer.from, &transfer.to);
    let bits = transfer.bytes as f64 * 8.0 / seconds.max(1e-6);
    let size = match transfer.bytes {
        small @ ..100_000 => format!("{:.1} kB", small as f64 / 1e3),
        large => format!("{:.1} MB", large as f64 / 1e6),
    };
    let span = match seconds < 0.1 {
        true => format!("{:.1} ms", seconds * 1e3),
        false => format!("{seconds:.1} s"),
    };
    let mut why = format!("{size} in {span}, {:.1} Mbit/s", bits / 1e6);
    let full = transfer.rate.map(|rate| bits / rate.max(1) as f64);
    if let Some(rate) = transfer.rate {
        why += &format!(" of the link's {:.1}", rate as f64 / 1e6);
    }
    match transfer.cuts {
        0 => {}
        1 => why += "; its connection broke once",
        cuts => why += &format!("; its connection broke {cuts} times"),
    }
    if full.is_some_and(|full| full >= FULL) {
        return (Cause::Link, why);
    }
    if let Some((round_trip, last)) = line.round_trips {
        if seconds <= ROUND_TRIPS * round_trip {
            why += &format!("; a round trip takes {:.0} ms", round_trip * 1e3);
            return (Cause::Latency, why);
        }
        if last >= QUEUED * round_trip && full.is_none() {
            // Who waits in the queue of a full link gets lost there, too.
            return (Cause::Link, why);
        }
    }
    if line.loss >= LOSSY {
        why += &format!("; {:.0} % of heartbeats get lost", line.loss * 100.0);
        return (Cause::Loss, why);
    }
    match full {
        Some(_) => (Cause::Window, why),
        None => (Cause::Link, why),
    }
}

impl Cause {
    /// In a word or two; empty if it is not known.
    pub fn words(self) -> &'static str {
        match self {
            Cause::Compute => "compute-limited",
            Cause::Straggler => "waiting for a straggler",
            Cause::Fabric => "fabric-limited",
            Cause::Link => "link-limited",
            Cause::Loss => "loss-limited",
            Cause::Latency => "latency-limited",
            Cause::Window => "below what the link carries",
            Cause::Waiting => "waiting",
            Cause::Coordinator => "the coordinator's own work",
            Cause::Unknown => "",
        }
    }
}

impl Share {
    /// What it was, in words that follow "it was".
    pub fn words(&self) -> String {
        let whom = self.whom.as_str();
        match self.step {
            Step::Download => format!("{whom} download"),
            Step::HandOut => format!("handing the model out to {whom}"),
            Step::Compute => format!("training on {whom}"),
            Step::Measure => format!("measuring the update of {whom}"),
            Step::Report => format!("the report of {whom} on its way"),
            Step::HandOutToReport => format!("{whom}, from the model on its way to its report"),
            Step::Waiting if whom.is_empty() => "waiting until the weights were fixed".to_owned(),
            Step::Waiting => format!("waiting for {whom}"),
            Step::Word => format!("the word of the weights on its way to {whom}"),
            Step::Fold => format!("the sum of {whom} within it"),
            Step::Upload => format!("{whom} upload"),
            Step::Contribution => {
                format!("the sum of {whom}: its fold, and its way to the coordinator")
            }
            Step::Sum => "the coordinator's sum of all domains".to_owned(),
            Step::Closing => "closing: aggregation, evaluation, checkpoint".to_owned(),
        }
    }

    /// The one thing that would make it shorter first of all.
    pub fn advice(&self) -> &'static str {
        match (self.step, self.cause) {
            (Step::Upload | Step::Contribution, Cause::Link) => {
                "a codec on that link sends fewer bytes: codec = \"int8\", or \"topk+fp16\" for fewer still"
            }
            (Step::Download, Cause::Link) => {
                "a lossless stage on that link sends fewer bytes: lossless_down = \"zstd\""
            }
            (Step::Upload | Step::Download | Step::Contribution, Cause::Loss) => {
                "a law that does not take loss for a full path keeps it full: congestion = \"bbr\" or \"delay-gradient\" on that link"
            }
            (Step::Upload | Step::Download | Step::Contribution, Cause::Window) => {
                "something else uses that link, or its path is longer than its window: congestion = \"bbr\" or \"delay-gradient\""
            }
            (Step::Compute, Cause::Straggler) => {
                "a quorum that does without that node, or mode = \"async\", which waits for nobody"
            }
            (Step::Waiting, Cause::Straggler) => {
                "a shorter grace closes without them; mode = \"async\" takes their updates in a later round"
            }
            (Step::Waiting, _) => "a shorter grace, or a smaller quorum, closes sooner",
            (Step::Compute | Step::HandOutToReport, _) => {
                "fewer local steps (sync_every), or a quorum that does without that node"
            }
            (Step::HandOut | Step::Measure | Step::Fold, _) => {
                "that domain's nodes share memory and processors: fewer of them on one machine"
            }
            (Step::Sum | Step::Closing, _) => {
                "the coordinator's processor and disk: a larger [checkpoint] every writes less often"
            }
            (Step::Report | Step::Word | Step::Upload | Step::Download | Step::Contribution, _) => {
                "the path is long: a larger sync_every crosses it less often; see `tombolo explain link`"
            }
        }
    }
}

/// The longest of a round's pieces.
pub(crate) fn longest(path: &[Share]) -> Option<&Share> {
    path.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

/// What limited a round, in a sentence: its longest piece.
pub fn limit(round: Round, path: &[Share]) -> Option<String> {
    let total: f64 = path.iter().map(|share| share.seconds).sum();
    let longest = longest(path).filter(|_| total > 0.0)?;
    let share = 100.0 * longest.seconds / total;
    let mut text = format!("{share:.0} % of round {round} was {}", longest.words());
    let limited = longest.cause.words();
    // A round that waits for somebody is said to do so already.
    if !limited.is_empty() && longest.step != Step::Waiting {
        text += &format!(", {limited}");
    }
    if !longest.why.is_empty() {
        text += &format!(": {}", longest.why);
    }
    Some(text)
}

#[cfg(test)]
mod tests;
