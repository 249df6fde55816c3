//! CLOCK-1: wall clocks that are stepped, or run wrong, change nothing. CLOCK-2: a node is never more wrong about a peer's clock than it
//! says.

use tombolo_core::event::Event;

use super::{Cx, Law, Look};

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

    fn on_look(&mut self, cx: &mut Cx<'_>, look: &Look) {
        for ((node, peer), (error, bound)) in &look.clocks {
            if error > bound {
                let what = format!(
                    "{node} is {error} us wrong about the clock of {peer}, and says {bound} us at most"
                );
                cx.violated("CLOCK-2", what);
            }
        }
    }
}
