//! `tombolo run FILE`.

use std::path::PathBuf;

use clap::Args;

use super::output::{Display, judge, refuse};
use super::{Common, Exit, interrupted, runtime};
use tombolo::Federation;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The topology.
    file: PathBuf,
    /// Go on from the last committed round of the state folder.
    #[arg(long)]
    resume: bool,
    /// Run each node as an operating-system process of its own.
    #[arg(long)]
    processes: bool,
}

impl Run {
    /// Runs the federation to its end.
    pub fn run(&self, common: &Common) -> Exit {
        let federation =
            Federation::from_path(&self.file).map(|federation| federation.resume(self.resume));
        let federation = federation.map(|federation| match &common.state {
            Some(state) => federation.state(state),
            None => federation,
        });
        let federation = match federation {
            Ok(federation) => federation,
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
            let running = match federation.spawn().await {
                Ok(running) => running,
                Err(error) => return refuse(common, error),
            };
            follow(common, running, rounds).await
        })
    }
}

/// Shows a running federation until its end.
pub async fn follow(common: &Common, running: tombolo::Running, rounds: u64) -> Exit {
    let mut display = Display::new(common.format, rounds);
    let mut events = running.events();
    let run = running.run_until(interrupted());
    let mut run = std::pin::pin!(run);
    let result = loop {
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Ok(event) => display.on_event(&event),
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => break run.as_mut().await,
            },
            result = &mut run => break result,
        }
    };
    match result {
        Ok(report) => {
            while let Ok(event) = events.try_recv() {
                display.on_event(&event);
            }
            display.finish(&report.finished);
            judge(common, &report)
        }
        Err(error) => refuse(common, error),
    }
}
