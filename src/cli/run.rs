//! `tombolo run FILE`.

use std::path::PathBuf;

use clap::Args;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::again::{again, option};
use super::dashboard::Page;
use super::notify::Notify;
use super::output::{Display, complain, judge, names, print_line, refuse, show_fabrics};
use super::signals::Signals;
use super::{Common, Exit, Format, processes, report, runtime};
use tombolo::federation::{DEPARTED, Interrupt, goes_on_by};
use tombolo::observe::Dashboard;
use tombolo::{Federation, FederationError, Running};
use tombolo_core::event::Event;

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
    #[command(flatten)]
    page: Page,
    /// Write what happened in each round, and when, to this file when the run is over: a Chrome trace, which Perfetto shows.
    #[arg(long, value_name = "OUT")]
    trace: Option<PathBuf>,
}

impl Run {
    /// Runs the federation to its end.
    pub fn run(&self, common: &Common) -> Exit {
        let federation = match open(common, &self.file, self.resume) {
            Ok(federation) => federation,
            Err(error) => return refuse(common, error),
        };
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return refuse(common, FederationError::Machine(error.to_string())),
        };
        // What cannot be had is refused below.
        show_fabrics(common, federation.plan());
        let folder = federation.plan().checkpoint.folder.clone();
        let mut shown = None;
        let exit = runtime.block_on(async {
            let page = match self.page.serve(common, federation.plan()).await {
                Ok(page) => page,
                Err(exit) => return exit,
            };
            shown = page.as_ref().map(Dashboard::url);
            if self.processes {
                return processes::run(common, &self.file, &federation, self.resume, page).await;
            }
            let signals = match Signals::listen() {
                Ok(signals) => signals,
                Err(error) => return refuse(common, FederationError::Machine(error.to_string())),
            };
            let rounds = federation.plan().rounds;
            match federation.spawn().await {
                Ok(running) => follow(common, running, rounds, signals, false, page).await,
                Err(error) => refuse(common, error),
            }
        });
        drop(runtime);
        if exit == Exit::Amended {
            let mut options: Vec<_> = self
                .processes
                .then(|| "--processes".into())
                .into_iter()
                .collect();
            options.extend(self.trace.iter().map(|out| option("--trace", out)));
            return again(common, "run", options, shown.as_deref(), &self.file);
        }
        report::write_trace_of(self.trace.as_deref(), folder, exit)
    }
}

/// The federation of a topology, with the settings that all ways to run it share.
pub fn open(
    common: &Common,
    file: &std::path::Path,
    resume: bool,
) -> Result<Federation, FederationError> {
    let federation = Federation::from_path(file)?.resume(resume);
    Ok(match &common.state {
        Some(state) => federation.state(state),
        None => federation,
    })
}

/// Shows a running federation until its end; with `everything`, each event on a line.
pub async fn follow(
    common: &Common,
    mut running: Running,
    rounds: u64,
    mut signals: Signals,
    everything: bool,
    mut page: Option<Dashboard>,
) -> Exit {
    let hosts_coordinator = running.hosts_coordinator();
    let may_coordinate = running.may_coordinate();
    // Of the rounds only the coordinator's process tells; what goes wrong everyone does.
    let mut display = Display::new(common.format, rounds)
        .everything(everything && may_coordinate)
        .member(!hosts_coordinator);
    // Also what was said before anybody followed, such as that the run is paused.
    let events = running.all_events();
    let (mut events, ledger) = (events.unwrap_or_else(|| running.events()), running.ledger());
    if let (Some(page), Some(events)) = (&mut page, running.all_events()) {
        page.follow(events, ledger.clone(), running.clock());
    }
    let nodes: Vec<_> = running.nodes().cloned().collect();
    let notify = Notify::of_environment();
    let mut watch = std::pin::pin!(notify.watch(running.pulse()));
    notify.ready(&names(&nodes));
    let result = {
        let stop = async {
            let why = signals.next().await;
            notify.stopping();
            why
        };
        let run = running.run_until(stop);
        let mut run = std::pin::pin!(run);
        loop {
            tokio::select! {
                biased;
                // Before events, of which there may always be one.
                never = &mut watch => match never {},
                event = events.recv() => match event {
                    Ok(Event::Round(_)) | Err(RecvError::Lagged(_)) => display.catch_up(&ledger),
                    Ok(event) => display.on_event(&event),
                    Err(RecvError::Closed) => break run.as_mut().await,
                },
                result = &mut run => break result,
            }
        }
    };
    display.catch_up(&ledger);
    loop {
        match events.try_recv() {
            Ok(Event::Round(_)) | Err(TryRecvError::Lagged(_)) => {}
            Ok(event) => display.on_event(&event),
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    if let Some(page) = page {
        page.close().await;
    }
    let (report, unwritten) = match result {
        Ok(report) => (report, None),
        Err(FederationError::Report { report, error }) => (*report, Some(error)),
        Err(error) if display.has_ended() => {
            complain(&error.to_string());
            return Exit::Failed;
        }
        Err(error) => return refuse(common, error),
    };
    if let Some(topology) = goes_on_by(&report.finished) {
        display.clear();
        match (common.format, everything) {
            // Whoever began this process begins it again.
            (_, true) => {}
            (Format::Json, false) => {
                print_line(&serde_json::json!({ "event": "amended", "topology": topology }));
            }
            (Format::Text, false) => say!("goes on by the amended topology {topology:?}"),
        }
        // Who told this process to end while it ended did not mean it to begin again.
        let told = tokio::select! {
            biased;
            why = signals.next() => Some(why),
            () = std::future::ready(()) => None,
        };
        return match told {
            None => Exit::Amended,
            Some(Interrupt::Interrupted) => Exit::Interrupted,
            Some(Interrupt::Terminated) => Exit::Terminated,
        };
    }
    // A standby that was promoted tells of the rounds as well.
    if !hosts_coordinator && report.finished.rounds == 0 {
        display.clear();
        let reason = &report.finished.reason;
        match (common.format, reason.as_str()) {
            (Format::Json, _) => print_line(&serde_json::json!({
                "event": "left",
                "nodes": nodes,
                "reason": reason,
            })),
            (Format::Text, "") => say!("the run is over"),
            (Format::Text, DEPARTED) => say!("left; the others go on"),
            (Format::Text, _) => {}
        }
    } else {
        display.finish(&report.finished);
    }
    let exit = judge(&report.finished);
    match unwritten {
        None => exit,
        Some(error) => {
            complain(&error.to_string());
            // How the run itself ended says more, unless it ended well.
            if exit == Exit::Done {
                Exit::Failed
            } else {
                exit
            }
        }
    }
}
