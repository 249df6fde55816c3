//! A plan of faults from a TOML file, or a [`Diagnosis`] with every mistake in it: the same reader and the same words as for the topology.

use std::path::Path;

use tombolo_core::plan::Plan;

use super::build::did_you_mean;
use super::diagnosis::{Mistake, Mistakes};
use super::keys::faults::{FAULTS, FaultKind, KINDS};
use super::reader::shown;
use super::value::{Entry, Item, Section, Value};
use super::{Diagnosis, read_as, tables};
use crate::simulation::plan::{FaultPlan, TimedFault, find_node, is_place};

/// Reads and checks a plan of faults for a federation of this topology.
///
/// # Errors
///
/// Every mistake of the file; or why it cannot be read, with its full path.
pub fn load_faults(path: &Path, topology: &Plan) -> Result<FaultPlan, Diagnosis> {
    let file = read_as(path, "plan of faults", "name an existing file, or `random`")?;
    parse_faults(&file.name, &file.text, topology)
}

/// Checks the text of a plan of faults; `name` is for messages.
///
/// # Errors
///
/// Every mistake of the text.
pub fn parse_faults(name: &str, text: &str, topology: &Plan) -> Result<FaultPlan, Diagnosis> {
    let tables = tables(name, text, &FAULTS, &[])?;
    let mut mistakes = tables.mistakes;
    let faults = tables.file.list("fault").iter().map(|item| Read {
        section: item.section(),
        topology,
    });
    for fault in faults.clone() {
        fault.check(&mut mistakes);
    }
    if !mistakes.is_empty() {
        return Err(Diagnosis::new(name, text, mistakes).unread(text, tables.cut));
    }
    // Every key and value was looked at above; what they make together is not written down twice.
    let plan: FaultPlan = toml::from_str(text).map_err(|error| {
        let mistake = Mistake::of_file(format!("it is no plan of faults: {}", error.message()));
        Diagnosis::new(name, text, mistake)
    })?;
    for (fault, timed) in faults.zip(&plan.faults) {
        fault.check_whole(timed, &mut mistakes);
    }
    match mistakes.is_empty() {
        true => Ok(plan),
        false => Err(Diagnosis::new(name, text, mistakes)),
    }
}

/// One `[[fault]]`.
#[derive(Clone, Copy)]
struct Read<'a> {
    section: &'a Section,
    topology: &'a Plan,
}

impl Read<'_> {
    /// Judges its keys and names.
    fn check(self, mistakes: &mut Mistakes) {
        let kind = self.section.find("kind").map(|entry| &entry.item.value);
        if let Some(Value::Word(word)) = kind {
            let kind = KINDS.iter().find(|kind| kind.name == word);
            self.keys(kind.expect("each word has its line"), mistakes);
        }
        self.names(mistakes);
    }

    /// Judges what its keys make together.
    fn check_whole(self, timed: &TimedFault, mistakes: &mut Mistakes) {
        if let Err(error) = timed.check(self.topology) {
            let place = ["actor", "until", "to", "from"].map(|key| self.section.find(key));
            let place = place.into_iter().flatten().next();
            let span = place.map_or(&self.section.span, |entry| &entry.item.span);
            mistakes.push(Mistake::at(span, error.to_string()));
        }
    }

    /// Says which keys the kind lacks, and which it does not have.
    fn keys(self, kind: &FaultKind, mistakes: &mut Mistakes) {
        let name = kind.name;
        for key in kind.needs {
            if self.section.find(key).is_none() && !self.section.is_wrong(key) {
                mistakes.push(
                    Mistake::at(&self.section.span, format!("a {name} needs `{key}`"))
                        .label(format!("needs `{key}`")),
                );
            }
        }
        let known = |key: &str| {
            matches!(key, "kind" | "at") || kind.needs.contains(&key) || kind.takes.contains(&key)
        };
        let foreign = self.section.entries.iter().filter(|(key, _)| !known(key));
        for (key, Entry { key: span, .. }) in foreign {
            let help = match *key {
                "until" => "it happens at an instant: remove the key".into(),
                _ => {
                    let keys = kind.needs.iter().chain(kind.takes).copied();
                    format!("its keys are at, {}", keys.collect::<Vec<_>>().join(", "))
                }
            };
            mistakes.push(
                Mistake::at(span, format!("a {name} has no `{key}`"))
                    .label("not of this kind")
                    .help(help),
            );
        }
    }

    /// Says which names the topology does not have.
    fn names(self, mistakes: &mut Mistakes) {
        let nodes = || self.topology.nodes().map(|node| node.id.as_str());
        let domains = || {
            self.topology
                .domains
                .iter()
                .map(|domain| domain.id.as_str())
        };
        let mut unknown = |item: &Item, what: &str, near: Vec<&str>| {
            let name = item.text();
            let message = format!("there is no {what} {:?} in the topology", shown(name));
            let help = did_you_mean(mistakes, name, near, "name one that is there");
            mistakes.push(Mistake::at(&item.span, message).label("unknown").help(help));
        };
        if let Some(entry) = self.section.find("node")
            && entry.item.text().contains('/')
            && find_node(self.topology, entry.item.text()).is_none()
        {
            unknown(&entry.item, "node", nodes().collect());
        }
        for item in self
            .section
            .list("from")
            .iter()
            .chain(self.section.list("to"))
        {
            if !is_place(self.topology, item.text()) {
                let near = nodes().chain(domains()).collect();
                unknown(item, "node or domain", near);
            }
        }
    }
}
