//! Whether this node has the topology at hand by which the run is to go on: the file on its own machine says so, and nobody else.

use std::sync::Arc;

use super::{Node, Work, later, work};
use crate::shell::Cx;
use tombolo_core::coordinator::{Amendment, objection};
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Hash;
use tombolo_core::text::clip;
use tombolo_core::wire::Control;

/// Reads the topology's file anew and gives its hashes, or says why this run cannot go on by it. Blocks.
pub type Ahead = Arc<dyn Fn() -> Result<Amendment, String> + Send + Sync>;

/// What makes a node disagree that was not started from a file.
const NO_FILE: &str = "it was not started from a file that could be amended; start it with the file instead of a pipe or a text";

impl Node {
    /// A gateway asks its domain.
    pub(super) fn pass_on(&self, topology: Hash) {
        let plan = &self.setup.stage.plan;
        let domain = plan.domain(&self.me().domain());
        let nodes = domain.map_or(&[][..], |domain| &domain.nodes);
        for node in nodes {
            self.send_now(&node.id, Control::Consider(topology));
        }
    }

    /// Looks at the file, off the arbiter, and tells who asks.
    pub(super) fn consider(&self, cx: &mut Cx<Self>, from: NodeId, topology: Hash) {
        let (ahead, env) = (self.setup.ahead.clone(), self.setup.stage.env.clone());
        let own = self.setup.topology;
        let looked = work(env.as_ref(), Work::Bytes(0), move || {
            let found = ahead.ok_or(NO_FILE).map_err(str::to_owned)?()?;
            match objection(&topology, &found.topology, &own) {
                Some(reason) => Err(reason),
                None => Ok(()),
            }
        });
        later(cx, looked, move |node, looked, _| {
            let looked = looked.unwrap_or_else(|panicked| Err(panicked.to_string()));
            let objection = looked.err().map(|reason| clip(reason).into());
            let agreed = Control::Agreed {
                topology,
                objection,
            };
            node.send_now(&from, agreed);
        });
    }
}
