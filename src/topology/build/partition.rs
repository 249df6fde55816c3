//! Who holds which training rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Partition;

use super::domains::Domains;
use crate::bounded::{self, ReadError};
use crate::topology::FILE_BYTES_MAX;
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::{nearest, shown};
use crate::topology::value::{Section, Span};

mod clients;

/// Rows of the built-in data, training and test together.
const ROWS: usize = 1797;

/// Every fifth row is for testing.
fn is_test_row(row: usize) -> bool {
    row % 5 == 4
}

/// How many rows there are to train on.
fn training_rows() -> usize {
    (0..ROWS).filter(|&row| !is_test_row(row)).count()
}

/// `partition`, with its file read if it has one.
pub(super) fn plan(
    section: &Section,
    folder: &Path,
    domains: &Domains<'_>,
    mistakes: &mut Mistakes,
) -> Option<Partition> {
    let kind = section.word("kind");
    let homes: [(&str, &[&str]); 3] = [
        ("alpha", &["dirichlet"]),
        ("file", &["rows", "clients"]),
        ("column", &["clients"]),
    ];
    for (key, homes) in homes {
        if section.gives(key) && !homes.contains(&kind) && !section.is_wrong("kind") {
            let homes: Vec<String> = homes.iter().map(|home| format!("{home:?}")).collect();
            let homes = homes.join(" or ");
            mistakes.push(
                Mistake::at(
                    &section.place(key),
                    format!("`{key}` has no meaning for the partition {kind:?}"),
                )
                .label(format!("belongs to {homes}"))
                .help(format!("remove it, or write kind = {homes}")),
            );
        }
    }
    let nodes = domains.count;
    match kind {
        "iid" => Some(Partition::Iid),
        "shards" => {
            if 2 * nodes > training_rows() {
                let message = format!(
                    "two shards for each of {nodes} nodes need {} training rows, the data has {}",
                    2 * nodes,
                    training_rows()
                );
                mistakes.push(
                    Mistake::at(&section.place("kind"), message)
                        .label("too many nodes for shards")
                        .help("write kind = \"iid\", or declare fewer nodes"),
                );
            }
            Some(Partition::Shards)
        }
        "rows" => rows(section, folder, domains, mistakes).map(Partition::Rows),
        "clients" => clients::clients(section, folder, domains, mistakes).map(Partition::Clients),
        _ => Some(Partition::Dirichlet {
            alpha: match section.gives("alpha") {
                true => section.number("alpha"),
                false => 0.5,
            },
        }),
    }
}

/// Reads and judges the file of rows.
fn rows(
    section: &Section,
    folder: &Path,
    domains: &Domains<'_>,
    mistakes: &mut Mistakes,
) -> Option<BTreeMap<NodeId, Vec<usize>>> {
    let place = section.place("file");
    let Some(name) = section.text("file") else {
        if !section.is_wrong("file") {
            mistakes.push(
                Mistake::at(&section.span, "the partition \"rows\" has no `file`")
                    .label("needs `file`")
                    .help("add file = \"rows.json\", holding {\"hq/a\": [0, 1, 2], ...}"),
            );
        }
        return None;
    };
    let path = super::resolved(folder, name);
    let listed = match read(&path) {
        Ok(listed) => listed,
        Err((why, help)) => {
            let message = format!("the file of rows {} {why}", path.display());
            mistakes.push(Mistake::at(&place, message).label("this file").help(help));
            return None;
        }
    };
    judge(listed, &domains.nodes, &shown(name), &place, mistakes)
}

fn read(path: &Path) -> Result<Listed, (String, &'static str)> {
    let text = bounded::read(path, FILE_BYTES_MAX).map_err(|error| {
        let help = match error {
            ReadError::TooLarge(_) => "each of 1797 rows is listed at most once",
            _ => "relative paths start at the topology's folder",
        };
        (error.to_string(), help)
    })?;
    serde_json::from_slice(&text).map_err(|error| {
        let what = if error.is_data() {
            "does not map nodes to lists of row numbers"
        } else {
            "is not JSON"
        };
        let place = format!("{what} (line {}, column {})", error.line(), error.column());
        (place, "write {\"hq/a\": [0, 1, 2], \"hq/b\": [3, 5]}")
    })
}

/// Judges what the file of rows lists.
fn judge(
    listed: Listed,
    nodes: &BTreeSet<String>,
    file: &str,
    place: &Span,
    mistakes: &mut Mistakes,
) -> Option<BTreeMap<NodeId, Vec<usize>>> {
    let before = mistakes.len();
    let mut refuse = |message: String, help: &str| {
        mistakes.push(Mistake::at(place, message).label("in this file").help(help));
    };
    let mut owners: BTreeMap<usize, &str> = BTreeMap::new();
    let mut held: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    for (name, rows) in &listed.0 {
        let shown_name = shown(name);
        let Some(id) = name
            .parse::<NodeId>()
            .ok()
            .filter(|id| nodes.contains(id.as_str()))
        else {
            let help = match nearest(name, nodes.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "list the nodes of the topology".into(),
            };
            refuse(
                format!("{file} gives rows to {shown_name:?}, which is no node"),
                &help,
            );
            continue;
        };
        if rows.is_empty() {
            refuse(
                format!("{file} gives {name} no row"),
                "a node without rows cannot train: remove the node or give it rows",
            );
        }
        // One mistake of each sort is enough for a node: a shifted list would give hundreds.
        if let Some(row) = rows.iter().find(|&&row| row >= ROWS as u64) {
            refuse(
                format!(
                    "{file} gives {name} the row {row}, the last one is {}",
                    ROWS - 1
                ),
                "rows are numbers of the whole file, from 0",
            );
        }
        if let Some(row) = rows
            .iter()
            .find(|&&row| row < ROWS as u64 && is_test_row(row as usize))
        {
            refuse(
                format!("{file} gives {name} the row {row}, which is a test row"),
                "rows 4, 9, 14, ... are for testing only",
            );
        }
        let own: Vec<usize> = rows
            .iter()
            .filter(|&&row| row < ROWS as u64)
            .map(|&row| row as usize)
            .collect();
        let taken = own
            .iter()
            .find_map(|&row| owners.insert(row, name).map(|owner| (row, owner)));
        if let Some((row, owner)) = taken {
            refuse(
                format!("{file} gives the row {row} to {owner} and to {name}"),
                "give each row to one node, once",
            );
        }
        if held.insert(id, own).is_some() {
            refuse(
                format!("{file} lists {name} twice"),
                "put all its rows into one list",
            );
        }
    }
    let missing: Vec<&str> = nodes
        .iter()
        .map(String::as_str)
        .filter(|node| !listed.0.iter().any(|(name, _)| name == node))
        .collect();
    if let Some(first) = missing.first() {
        let more = match missing.len() {
            1 => String::new(),
            count => format!(" and {} more nodes", count - 1),
        };
        refuse(
            format!("{file} gives no rows to {first}{more}"),
            "list every node of the topology",
        );
    }
    (mistakes.len() == before).then_some(held)
}

/// The file of rows as written: a repeated node is still there twice.
struct Listed(Vec<(String, Vec<u64>)>);

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Listed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("nodes with lists of rows")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Listed(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
