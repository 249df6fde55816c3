//! POLICY-1: what a site does not grant is not done there; who is refused is refused by that very decision.

use std::collections::BTreeMap;

use tombolo_core::event::Event;
use tombolo_core::ids::Epoch;
use tombolo_core::policy;
use tombolo_core::view::View;

use super::{Cx, Law};

/// Views that a round may have opened in: rounds keep theirs, and few follow each other within one.
const VIEWS_KEPT: usize = 16;

#[derive(Default)]
pub(super) struct Policies {
    views: BTreeMap<Epoch, View>,
}

impl Law for Policies {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            Event::EpochChanged { view } => {
                self.views.insert(view.epoch, view.clone());
                if self.views.len() > VIEWS_KEPT {
                    self.views.pop_first();
                }
            }
            Event::LinkUp { node, peer } => {
                if let Some(denied) = policy::reaches(cx.plan, node, peer) {
                    cx.violated("POLICY-1", format!("{node} and {peer} talk: {denied}"));
                }
            }
            Event::RoundOpened {
                round,
                epoch,
                cohort,
                ..
            } => {
                let first = View::first(cx.plan);
                let view = self.views.get(epoch).unwrap_or(&first);
                let mut asked = cohort.iter();
                let denied =
                    asked.find_map(|node| Some((node, policy::left_out(cx.plan, view, node)?)));
                if let Some((node, denied)) = denied {
                    cx.violated("POLICY-1", format!("round {round} asks {node}: {denied}"));
                }
            }
            Event::PolicyDenied { node, verdict } => {
                let asked = policy::decide(
                    cx.plan,
                    &verdict.site,
                    &verdict.identity,
                    verdict.action,
                    verdict.slice.as_ref(),
                );
                if asked != **verdict || asked.allowed {
                    let what = format!("{node} refuses by {verdict}, the file says {asked}");
                    cx.violated("POLICY-1", what);
                }
            }
            _ => {}
        }
    }
}
