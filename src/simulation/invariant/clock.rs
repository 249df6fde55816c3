//! CLOCK-1: wall clocks that are stepped, or run wrong, change nothing.

use tombolo_core::event::Event;

use super::{Cx, Law};

pub(super) struct Clocks;

impl Law for Clocks {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        let emulated = cx.plan.links.iter().any(|link| link.emulate.loss > 0.0);
        if cx.state.troubles > 0 || emulated {
            return;
        }
        match event {
            Event::PeerSuspected { node, peer, .. } | Event::PeerLost { node, peer } => {
                let what = format!("{node} suspects {peer}, and nothing was wrong but wall clocks");
                cx.violated("CLOCK-1", what);
            }
            _ => {}
        }
    }
}
