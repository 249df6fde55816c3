//! `tombolo run --processes FILE`: one operating-system process a node.
//!
//! The parent prepares, starts this same program once for each node, shows what the coordinator's process reports, and hands signals on. No
//! process outlives it: the kernel kills the children when the parent dies, and it reaps every one of them before it ends. A node's process
//! that dies is named and not restarted; the rounds go on without it.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

use super::again::option;
use super::output::{Display, complain, fail, print_line, refuse};
use super::signals::Signals;
use super::{Common, Exit, Format};
use tombolo::explain::{Past, trouble};
use tombolo::federation::Interrupt;
use tombolo::observe::{Dashboard, Feed};
use tombolo::{Federation, FederationError};
use tombolo_core::event::{Event, Finished};
use tombolo_core::ids::NodeId;

/// How long nodes may take to leave once the coordinator's process has ended, before they are told to; and again, before they are killed.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// How long the coordinator's process may take, once it was told to end, beyond what closing a round may take: it has limits of its own,
/// which end first.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// Lines of children that may wait to be shown; beyond them a child waits.
const LINES_MAX: usize = 1024;

/// Signals that may wait for the task that owns a process: more than are ever sent to one.
const SIGNALS_MAX: usize = 16;

/// Runs a federation as processes to its end.
pub async fn run(
    common: &Common,
    file: &Path,
    federation: &Federation,
    resume: bool,
    page: Option<Dashboard>,
) -> Exit {
    if let Err(error) = federation.prepare() {
        return refuse(common, error);
    }
    let machine = |error: io::Error| FederationError::Machine(error.to_string());
    let started = Signals::listen()
        .and_then(|signals| Ok((signals, Family::start(common, file, federation, resume)?)));
    let (signals, family) = match started {
        Ok(started) => started,
        Err(error) => return refuse(common, machine(error)),
    };
    let feed = page.as_ref().map(Dashboard::feed);
    let exit = Family { feed, ..family }.follow(signals).await;
    if let Some(page) = page {
        page.close().await;
    }
    exit
}

struct Family<'a> {
    common: &'a Common,
    /// Whose exit is the run's.
    coordinator: NodeId,
    standby: Vec<NodeId>,
    display: Display,
    /// Shows what the children say to whoever looks at the page, and when they said it.
    feed: Option<Feed>,
    began: Instant,
    finished: Option<Finished>,
    /// By node: hands signals to the task that owns the process.
    children: Vec<(NodeId, mpsc::Sender<Signal>)>,
    exits: JoinSet<(NodeId, io::Result<ExitStatus>)>,
    /// Hand the topology to the children and take what they say; end with them.
    pipes: JoinSet<()>,
    lines: mpsc::Receiver<Line>,
    /// How long the coordinator may take to end.
    stop_limit: Duration,
}

/// A line of a child: whether it is the coordinator's, and what it says.
type Line = (bool, String);

/// Why the loop goes on.
enum Next {
    Line(Option<Line>),
    Exit(NodeId, io::Result<ExitStatus>),
    Stop(Interrupt),
    Impatient,
}

impl<'a> Family<'a> {
    fn start(
        common: &'a Common,
        file: &Path,
        federation: &Federation,
        resume: bool,
    ) -> io::Result<Self> {
        let plan = federation.plan();
        let program = std::env::current_exe()?;
        // What came through a pipe is gone: the children get it through pipes of their own.
        let piped: Option<Arc<str>> = federation.piped().map(Arc::from);
        let (file, stdin): (_, fn() -> Stdio) = match piped {
            Some(_) => (Path::new("/dev/stdin"), Stdio::piped),
            None => (file, Stdio::null),
        };
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let mut family = Family {
            common,
            coordinator: plan.coordinator.clone(),
            standby: plan.standby.clone(),
            display: Display::new(common.format, plan.rounds),
            feed: None,
            began: Instant::now(),
            finished: None,
            children: Vec::new(),
            exits: JoinSet::new(),
            pipes: JoinSet::new(),
            lines,
            stop_limit: plan.round.close_limit + STOP_LIMIT,
        };
        for node in plan.nodes() {
            let mut command = Command::new(&program);
            command
                .args(["node", "--format", "json", "--name", node.id.as_str()])
                .arg("--child-of")
                .arg(std::process::id().to_string())
                .arg(option("--state", &plan.checkpoint.folder))
                .stdin(stdin())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .kill_on_drop(true)
                // A terminal's Ctrl-C reaches the parent only, which hands it on.
                .process_group(0);
            let coordinates = node.id == plan.coordinator;
            if coordinates && resume {
                command.arg("--resume");
            }
            let mut child = command.arg("--").arg(file).spawn().map_err(|error| {
                let program = program.display();
                io::Error::new(
                    error.kind(),
                    format!("cannot start {program} for {}: {error}", node.id),
                )
            })?;
            if let Some(out) = child.stdout.take() {
                let may_coordinate = plan.may_coordinate(&node.id);
                family
                    .pipes
                    .spawn(listen(out, may_coordinate, sender.clone()));
            }
            if let (Some(pipe), Some(text)) = (child.stdin.take(), &piped) {
                family.pipes.spawn(feed(pipe, text.clone()));
            }
            let (sender, signals) = mpsc::channel(SIGNALS_MAX);
            family.exits.spawn(own(node.id.clone(), child, signals));
            family.children.push((node.id.clone(), sender));
        }
        Ok(family)
    }

    async fn follow(mut self, mut signals: Signals) -> Exit {
        let mut interrupt = None;
        let mut last: Option<Exit> = None;
        let mut patience = [Signal::TERM, Signal::KILL].into_iter();
        let mut alarm: Option<Pin<Box<Sleep>>> = None;
        let mut silent = false;
        while !self.exits.is_empty() || !silent {
            let next = {
                let (lines, exits) = (&mut self.lines, &mut self.exits);
                let hurry = async {
                    match &mut alarm {
                        Some(alarm) => alarm.await,
                        None => std::future::pending().await,
                    }
                };
                let line = async {
                    match silent {
                        true => std::future::pending().await,
                        false => lines.recv().await,
                    }
                };
                let exit = async {
                    match exits.join_next().await {
                        Some(joined) => joined,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    line = line => Next::Line(line),
                    joined = exit => match joined {
                        Ok((node, status)) => Next::Exit(node, status),
                        // The tasks do nothing that could panic, and nobody aborts them.
                        Err(_) => continue,
                    },
                    why = signals.next() => Next::Stop(why),
                    () = hurry => Next::Impatient,
                }
            };
            match next {
                Next::Line(Some((true, line))) => self.on_line(&line),
                Next::Line(Some((false, line))) => self.on_trouble(&line),
                Next::Line(None) => silent = true,
                Next::Exit(node, status)
                    if node == self.coordinator && self.may_be_succeeded(&status, interrupt) =>
                {
                    // Whatever comes of it, who is told to end must hear it from here.
                    last = Some(Exit::Failed);
                    self.orphaned(&node, &status);
                }
                Next::Exit(node, status) if node == self.coordinator => {
                    last = Some(self.judge(&node, &status, interrupt));
                    alarm = Some(Box::pin(tokio::time::sleep(LEAVE_LIMIT)));
                }
                Next::Exit(node, status) => {
                    let over = last.is_some() || interrupt.is_some() || self.display.has_ended();
                    self.on_exit(&node, &status, over);
                }
                Next::Stop(why) => {
                    interrupt = Some(why);
                    // The coordinator sends the others away; without it they are told here.
                    let signal = match why {
                        Interrupt::Interrupted => Signal::INT,
                        Interrupt::Terminated => Signal::TERM,
                    };
                    let coordinator = self.coordinator.clone();
                    self.tell(signal, |node| *node == coordinator || last.is_some());
                    // A process that was stopped, or hangs, does not even end when it is told to.
                    alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.stop_limit)));
                }
                Next::Impatient => {
                    let signal = patience.next().unwrap_or(Signal::KILL);
                    self.tell(signal, |_| true);
                    alarm = Some(Box::pin(tokio::time::sleep(LEAVE_LIMIT)));
                }
            }
        }
        if let Some(finished) = &self.finished {
            self.display.finish(finished);
        }
        match (last, interrupt) {
            // Who told it to end did not mean it to begin again.
            (Some(Exit::Amended), Some(Interrupt::Interrupted)) => Exit::Interrupted,
            (Some(Exit::Amended), Some(Interrupt::Terminated)) => Exit::Terminated,
            (last, _) => last.unwrap_or(Exit::Failed),
        }
    }

    fn tell(&self, signal: Signal, whom: impl Fn(&NodeId) -> bool) {
        for (node, child) in &self.children {
            if whom(node) {
                // A child that has ended needs no signal, and one for which so many wait has been told.
                let _ = child.try_send(signal);
            }
        }
    }

    /// Shows an event of a child to whoever looks at the page.
    fn show(&self, event: &Event) {
        if let Some(feed) = &self.feed {
            feed.push(&Past {
                at: self.began.elapsed().as_secs_f64(),
                life: 0,
                event: event.clone(),
            });
        }
    }

    fn on_line(&mut self, line: &str) {
        let event = serde_json::from_str::<Event>(line);
        event.iter().for_each(|event| self.show(event));
        match event {
            Ok(Event::Finished(finished)) => {
                self.display.on_event(&Event::Finished(finished.clone()));
                self.finished = Some(finished);
            }
            Ok(event) => {
                if let Event::CoordinatorPromoted { node, .. } = &event {
                    self.coordinator = node.clone();
                }
                self.display.on_event(&event);
            }
            // An error: on standard error it has been said already.
            Err(_) if self.common.format == Format::Json && !self.display.has_ended() => {
                if let Ok(value) = serde_json::from_str::<serde_json::Value>(line) {
                    print_line(&value);
                }
            }
            Err(_) => {}
        }
    }

    /// Whether the others may go on without the coordinator: it did not end the run, and a user may promote another.
    fn may_be_succeeded(
        &self,
        status: &io::Result<ExitStatus>,
        interrupt: Option<Interrupt>,
    ) -> bool {
        let fine = is_fine(status);
        !self.standby.is_empty() && self.finished.is_none() && interrupt.is_none() && !fine
    }

    fn orphaned(&self, node: &NodeId, status: &io::Result<ExitStatus>) {
        let standby: Vec<&str> = self.standby.iter().map(NodeId::as_str).collect();
        let status = words(status);
        if self.common.format == Format::Json {
            print_line(&serde_json::json!({
                "event": "process_ended",
                "node": node,
                "status": status,
            }));
        }
        self.display.note(&format!(
            "the process of {node}, the coordinator, ended: {status}; `tombolo promote` goes on with one of: {}",
            standby.join(", ")
        ));
    }

    /// Of the other nodes only what goes wrong is told; how the rounds go the coordinator knows.
    fn on_trouble(&mut self, line: &str) {
        let Ok(event) = serde_json::from_str::<Event>(line) else {
            return;
        };
        self.show(&event);
        if trouble(&event).is_some() {
            self.display.on_event(&event);
        }
    }

    fn on_exit(&self, node: &NodeId, status: &io::Result<ExitStatus>, over: bool) {
        if is_fine(status) || over {
            return;
        }
        let status = words(status);
        if self.common.format == Format::Json {
            print_line(&serde_json::json!({
                "event": "process_ended",
                "node": node,
                "status": status,
            }));
        }
        self.display.note(&format!(
            "the process of {node} ended: {status}; the rounds go on without it"
        ));
    }

    /// The coordinator's exit is the run's.
    fn judge(
        &self,
        node: &NodeId,
        status: &io::Result<ExitStatus>,
        interrupt: Option<Interrupt>,
    ) -> Exit {
        match interrupt {
            Some(Interrupt::Interrupted) => return Exit::Interrupted,
            Some(Interrupt::Terminated) => return Exit::Terminated,
            None => {}
        }
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        let exit = code.and_then(Exit::of_code);
        exit.unwrap_or_else(|| {
            let message = format!(
                "the process of {node}, the coordinator, ended: {}; --resume goes on from the last committed round",
                words(status)
            );
            match self.display.has_ended() {
                true => complain(&message),
                false => fail(self.common, &message),
            }
            Exit::Failed
        })
    }
}

/// Whether a process has ended as it was to: also one that begins again when all have ended.
fn is_fine(status: &io::Result<ExitStatus>) -> bool {
    let code = status.as_ref().ok().and_then(ExitStatus::code);
    matches!(
        code.and_then(Exit::of_code),
        Some(Exit::Done | Exit::Amended)
    )
}

/// Owns a process to its end; only here it is known whether its number is still its own.
async fn own(
    node: NodeId,
    mut child: Child,
    mut signals: mpsc::Receiver<Signal>,
) -> (NodeId, io::Result<ExitStatus>) {
    loop {
        tokio::select! {
            biased;
            status = child.wait() => return (node, status),
            Some(signal) = signals.recv() => {
                let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
                if let Some(pid) = pid && let Err(error) = kill_process(pid, signal) {
                    tracing::warn!(%node, %error, "a signal was not delivered");
                }
            }
        }
    }
}

/// Passes on what a child says. What it cannot pass on nobody waits for any more.
async fn listen(out: ChildStdout, coordinates: bool, lines: mpsc::Sender<Line>) {
    let mut said = BufReader::new(out).lines();
    while let Ok(Some(line)) = said.next_line().await {
        if lines.send((coordinates, line)).await.is_err() {
            return;
        }
    }
}

/// Writes the topology into a child's pipe and closes it. A child that does not read it says why by itself.
async fn feed(mut pipe: ChildStdin, text: Arc<str>) {
    let _ = pipe.write_all(text.as_bytes()).await;
}

fn words(status: &io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Makes the kernel kill this process when its parent dies. False if the parent is dead already.
pub fn die_with(parent: u32) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let found = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    Ok(found == Some(parent))
}
