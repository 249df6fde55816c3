//! `tombolo node --name DOMAIN/NODE FILE`.

use std::path::PathBuf;

use clap::Args;

use super::again::{again, option};
use super::dashboard::Page;
use super::output::{refuse, show_fabrics};
use super::run::{follow, open};
use super::signals::Signals;
use super::{Common, Exit, Format, processes, report, runtime};
use tombolo::observe::Dashboard;
use tombolo::{FederationError, Running};
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
    #[command(flatten)]
    page: Page,
    /// Write what happened in each round, and when, to this file when the run is over: a Chrome trace, which Perfetto shows.
    #[arg(long, value_name = "OUT")]
    trace: Option<PathBuf>,
    /// Set by `run --processes`: the process that this one must not outlive and that wants every event.
    #[arg(long, hide = true, value_name = "PID")]
    child_of: Option<u32>,
}

impl Node {
    /// Runs the node until the run is over.
    pub fn run(&self, common: &Common) -> Exit {
        let machine =
            |error: std::io::Error| refuse(common, FederationError::Machine(error.to_string()));
        if let Some(parent) = self.child_of {
            match processes::die_with(parent) {
                Ok(true) => {}
                Ok(false) => return Exit::Failed,
                Err(error) => return machine(error),
            }
        }
        let federation = match open(common, &self.file, self.resume) {
            Ok(federation) => federation.emulate(self.child_of.is_some()),
            Err(error) => return refuse(common, error),
        };
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return machine(error),
        };
        if self.child_of.is_none() {
            // What cannot be had is refused below.
            show_fabrics(common, federation.plan());
        }
        let folder = federation.plan().checkpoint.folder.clone();
        let mut shown = None;
        let exit = runtime.block_on(async {
            let mut signals = match Signals::listen() {
                Ok(signals) => signals,
                Err(error) => return machine(error),
            };
            let page = match self.page.serve(common, federation.plan()).await {
                Ok(page) => page,
                Err(exit) => return exit,
            };
            shown = page.as_ref().map(Dashboard::url);
            let rounds = federation.plan().rounds;
            match federation.spawn_node(&self.name).await {
                Ok(running) => {
                    signals.on_hangup(running.look_again());
                    if self.child_of.is_none() && common.format == Format::Text {
                        tell_unaddressed(&running);
                    }
                    follow(
                        common,
                        running,
                        rounds,
                        signals,
                        self.child_of.is_some(),
                        page,
                    )
                    .await
                }
                Err(error) => refuse(common, error),
            }
        });
        drop(runtime);
        if exit == Exit::Amended && self.child_of.is_none() {
            let mut options = vec![option("--name", self.name.as_str())];
            options.extend(self.trace.iter().map(|out| option("--trace", out)));
            return again(common, "node", options, shown.as_deref(), &self.file);
        }
        report::write_trace_of(self.trace.as_deref(), folder, exit)
    }
}

/// Says which addresses the topology lacks if nodes run on several machines.
fn tell_unaddressed(running: &Running) {
    let nodes = running.unaddressed();
    let Some(first) = nodes.first() else { return };
    let names: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
    let state = &running.plan().checkpoint.folder;
    complain!(
        "note: the topology gives no address of {}
  they are found through {}, so on this machine only; on others each needs, in the place of `nodes`:

  [[domain.node]]
  name = \"{}\"
  listen = \"0.0.0.0:4600\"
  advertise = \"HOST:4600\"
",
        names.join(", "),
        state.display(),
        first.name(),
    );
}
