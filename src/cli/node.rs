//! `tombolo node --name DOMAIN/NODE FILE`.

use std::path::PathBuf;

use clap::Args;

use super::output::refuse;
use super::run::follow;
use super::{Common, Exit, runtime};
use tombolo::Federation;
use tombolo_core::ids::NodeId;

/// Arguments of `node`.
#[derive(Debug, Args)]
pub struct Node {
    /// The topology.
    file: PathBuf,
    /// Which node this is, as `domain/name`.
    #[arg(long)]
    name: NodeId,
    /// Go on from the last committed round of the state folder.
    #[arg(long)]
    resume: bool,
}

impl Node {
    /// Runs the node until the run is over.
    pub fn run(&self, common: &Common) -> Exit {
        let federation =
            Federation::from_path(&self.file).map(|federation| federation.resume(self.resume));
        let federation = match federation {
            Ok(federation) => match &common.state {
                Some(state) => federation.state(state),
                None => federation,
            },
            Err(error) => return refuse(common, error),
        };
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => {
                return refuse(common, tombolo::FederationError::Machine(error.to_string()));
            }
        };
        runtime.block_on(async {
            let rounds = federation.plan().rounds;
            match federation.spawn_node(&self.name).await {
                Ok(running) => follow(common, running, rounds).await,
                Err(error) => refuse(common, error),
            }
        })
    }
}
