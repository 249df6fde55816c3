//! A partition to look at: how many rows of each kind of digit a node has, as a table and as a picture.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

use super::{PartitionError, partition};
use crate::learn::digits::{CLASSES, Digits};

/// From nothing to all of a kind's rows, a quarter each. Also without colours and for a screen reader's digits beside it.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];

/// What each node holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Dealt {
    /// Rows of each kind, by node.
    pub nodes: Vec<(NodeId, [usize; CLASSES])>,
}

/// Deals the rows of a plan out and counts them.
///
/// # Errors
/// As [`partition`].
pub fn dealt(plan: &Plan) -> Result<Dealt, PartitionError> {
    let digits = Digits::load()?;
    let parts = partition(plan)?;
    let nodes = parts.into_iter().map(|(node, rows)| {
        let mut kinds = [0; CLASSES];
        for row in rows {
            kinds[usize::from(digits.label(row))] += 1;
        }
        (node, kinds)
    });
    Ok(Dealt {
        nodes: nodes.collect(),
    })
}

impl Dealt {
    /// How far a node's mix of kinds lies from that of all rows: the share of its rows that would have to be of another kind. The mean over nodes, weighted by rows:
    /// 0 if all mixes are alike, up to 0.9 if every node has one kind.
    pub fn skew(&self) -> f64 {
        let all = self.of_kinds();
        let rows: usize = all.iter().sum();
        let away = |(_, kinds): &(NodeId, [usize; CLASSES])| {
            let own: usize = kinds.iter().sum();
            let apart = kinds
                .iter()
                .zip(all)
                .map(|(kind, all)| (*kind as f64 - own as f64 * all as f64 / rows as f64).abs());
            apart.sum::<f64>() / 2.0
        };
        self.nodes.iter().map(away).sum::<f64>() / rows.max(1) as f64
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|(node, kinds)| {
                json!({ "node": node.as_str(), "rows": kinds.iter().sum::<usize>(), "kinds": kinds })
            })
            .collect();
        json!({ "event": "partition", "skew": self.skew(), "nodes": nodes })
    }

    fn of_kinds(&self) -> [usize; CLASSES] {
        let mut sums = [0; CLASSES];
        for (_, kinds) in &self.nodes {
            sums.iter_mut()
                .zip(kinds)
                .for_each(|(sum, kind)| *sum += kind);
        }
        sums
    }
}

impl fmt::Display for Dealt {
    /// One line a node: rows, rows of each kind, and a cell a kind, the darker the more of that kind's rows the node has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.of_kinds();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let kinds = (0..CLASSES).map(|kind| kind.to_string());
        let head = ["node".to_owned(), "rows".to_owned()]
            .into_iter()
            .chain(kinds);
        table.set_header(head.chain(["0123456789".to_owned()]));
        for (node, kinds) in &self.nodes {
            let picture: String = kinds
                .iter()
                .zip(all)
                .map(|(own, all)| shade(*own, all))
                .collect();
            let rows: usize = kinds.iter().sum();
            let numbers = kinds.iter().map(usize::to_string);
            let row = [node.to_string(), rows.to_string()]
                .into_iter()
                .chain(numbers);
            table.add_row(row.chain([picture]));
        }
        for column in table.column_iter_mut().skip(1).take(CLASSES + 1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for line in table.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        write!(
            f,
            "\n a cell is the darker the more of a digit's rows the node has; skew {:.2}",
            self.skew()
        )
    }
}

fn shade(own: usize, all: usize) -> char {
    let step = (own * (SHADES.len() - 1)).div_ceil(all.max(1));
    SHADES[step.min(SHADES.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(kinds: &[[usize; CLASSES]]) -> Dealt {
        let named = kinds
            .iter()
            .enumerate()
            .map(|(index, kinds)| (format!("hq/n{index}").parse().unwrap(), *kinds));
        Dealt {
            nodes: named.collect(),
        }
    }

    #[test]
    fn equal_mixes_have_no_skew_and_one_kind_each_has_the_most() {
        assert_eq!(nodes(&[[3; CLASSES], [30; CLASSES]]).skew(), 0.0);
        let mut alone = [[0; CLASSES]; CLASSES];
        (0..CLASSES).for_each(|kind| alone[kind][kind] = 7);
        assert!((nodes(&alone).skew() - 0.9).abs() < 1e-12);
        assert_eq!(nodes(&[]).skew(), 0.0);
    }

    #[test]
    fn a_cell_is_blank_for_nothing_and_full_for_all() {
        let cells: String = [0, 1, 25, 26, 75, 76, 100]
            .map(|own| shade(own, 100))
            .into_iter()
            .collect();
        assert_eq!(cells, "·░░▒▓██");
        assert_eq!(shade(0, 0), '·');
    }

    #[test]
    fn a_partition_is_shown_with_its_counts_and_its_picture() {
        let shown = nodes(&[
            [1, 2, 0, 0, 0, 0, 0, 0, 0, 120],
            [0, 2, 9, 0, 0, 0, 0, 0, 0, 40],
        ])
        .to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].ends_with("0123456789"), "{shown}");
        assert!(
            lines[1].contains("hq/n0") && lines[1].ends_with("█▒·······▓"),
            "{shown}"
        );
        assert!(
            lines[2].contains("51") && lines[2].ends_with("·▒█······░"),
            "{shown}"
        );
    }
}
