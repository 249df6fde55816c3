//! RECORD-1: no node is ever shown two histories, and what is left on the gateways' disks is one record, signed by each.

use tombolo_core::event::Event;
use tombolo_core::record::audit::Report;

use super::{Cx, Law};
use crate::simulation::plan::Fault;

pub(super) struct Record;

/// Who takes away the disk of a node that coordinates takes back what it has signed.
fn is_excused(cx: &Cx<'_>) -> bool {
    let mut faults = cx.faults.faults.iter();
    faults.any(|timed| match &timed.fault {
        Fault::Restart {
            node,
            without_disk: true,
        } => node.parse().is_ok_and(|node| cx.plan.may_coordinate(&node)),
        _ => false,
    })
}

impl Law for Record {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        let what = match event {
            Event::RecordForked { node, by, reason } => {
                format!("{node} holds proof against {by}: {reason}")
            }
            // Its own copy may be on a disk that fails.
            Event::RecordRefused { node, by, reason } if node != by => {
                format!("{node} refuses {by}: {reason}")
            }
            _ => return,
        };
        if !is_excused(cx) {
            cx.violated("RECORD-1", what);
        }
    }

    fn on_copies(&mut self, cx: &mut Cx<'_>, audited: &Report) {
        if is_excused(cx) {
            return;
        }
        for found in &audited.findings {
            let what = format!("{}, {}: {}", found.copy, found.place, found.reason);
            cx.violated("RECORD-1", what);
        }
    }
}
