//! The command line: one file a command, one exit code a kind of ending.

/// `println!` for a reader that may go away: that is not our failure, and no reason to end a run. What a terminal would obey is spelled out.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let text = format!($($text)*);
        let text = tombolo_core::text::visible_lines(&text);
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }};
}

/// `eprintln!`, likewise.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write;
        let text = format!($($text)*);
        let text = tombolo_core::text::visible_lines(&text);
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }};
}

mod again;
mod audit;
mod bench;
mod certs;
mod check;
mod checkpoint;
mod dashboard;
mod doctor;
mod explain;
mod logs;
#[cfg(feature = "manual")]
mod manual;
mod new;
mod node;
mod notify;
mod order;
mod output;
#[cfg(feature = "manual")]
mod outputs;
mod policy;
mod preflight;
mod processes;
mod promote;
mod readmit;
mod records;
mod report;
mod run;
mod schema;
mod signals;
mod sim;
mod status;
mod top;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tombolo_core::coordinator::Wish;
use tombolo_core::text::is_hidden;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what it was asked.
    Done,
    /// It could not.
    Failed,
    /// The command line or the topology is wrong.
    Usage,
    /// No round ever met its quorum.
    NoQuorum,
    /// It was the coordinator, and another node is it now.
    SteppedDown,
    /// The run goes on by an amended topology, and this process has yet to begin again by it.
    Amended,
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

impl Exit {
    const ALL: [Exit; 8] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::NoQuorum,
        Exit::SteppedDown,
        Exit::Amended,
        Exit::Interrupted,
        Exit::Terminated,
    ];

    fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NoQuorum => 3,
            Exit::SteppedDown => 4,
            Exit::Amended => 5,
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
        }
    }

    /// What it means, and what to do.
    #[cfg(feature = "manual")]
    fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done; also a run that a user has stopped",
            Exit::Failed => "failed, which the last line says",
            Exit::Usage => "the command line or the topology is wrong",
            Exit::NoQuorum => "no round ever met its quorum",
            Exit::SteppedDown => {
                "it was the coordinator, and another node is it now: start it again with `--resume`"
            }
            Exit::Amended => {
                "the run goes on by an amended topology, and this process could not begin again by itself: start it again with `--resume`"
            }
            Exit::Interrupted => "Ctrl-C; what is committed is kept",
            Exit::Terminated => "SIGTERM; what is committed is kept",
        }
    }

    /// The ending that a process's exit code stands for.
    fn of_code(code: i32) -> Option<Exit> {
        Self::ALL
            .into_iter()
            .find(|exit| i32::from(exit.code()) == code)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// Joins islands of compute into one training federation.
#[derive(Debug, Parser)]
#[command(name = "tombolo", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Keep state in this folder instead of the topology's.
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,

    /// How to print results: for people, or one JSON object a line.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole federation on this machine.
    Run(run::Run),
    /// Run one node of a federation; the others run elsewhere.
    Node(node::Node),
    /// Run a federation in virtual time, from a seed, with the same code.
    Sim(sim::Sim),
    /// Check a topology: every mistake at once.
    Check(check::Check),
    /// List, verify and copy out what was committed.
    Checkpoint(checkpoint::Checkpoint),
    /// Show, verify and prove what the record says that every domain keeps.
    Audit(audit::Audit),
    /// Look for what would keep nodes from running here, and say what mends it.
    Doctor(doctor::Doctor),
    /// Measure the links of a topology before anything trains, and say what is wrong with them.
    Preflight(preflight::Preflight),
    /// Show what runs in a state folder.
    Status(status::Status),
    /// Show a run as it goes, in this terminal.
    Top(top::Top),
    /// Tell why a round, a node or a link went as it did.
    Explain(explain::Explain),
    /// Write a finished run as one page, in a file that needs nothing else.
    Report(report::Report),
    /// Write what happened in each round, at every site and on one clock, as a Chrome trace, which Perfetto shows.
    Trace(trace::Trace),
    /// Make a standby the coordinator, after the one before it was lost.
    Promote(promote::Promote),
    /// End a run: behind the open round, or now. What is committed is kept.
    Stop(order::Stop),
    /// Let the open round end, and open no other until `resume`.
    Pause(order::Pause),
    /// Open rounds again in a run that was paused.
    Resume(order::Pause),
    /// Let a run go on by its topology as the file says it now: what it adds joins at the next epoch, once every node has that file.
    Amend(order::Amend),
    /// Let an evicted node in again before its cool-down is over.
    Readmit(readmit::Readmit),
    /// Make, issue and show certificates.
    Certs(certs::Certs),
    /// Show who may do what at which site, and why.
    Policy(policy::Policy),
    /// Measure what this machine does, beside its limits.
    Bench(bench::Bench),
    /// Print the JSON schema of the topology, for editors.
    Schema(schema::Schema),
    /// Make a folder with a small topology that runs.
    New(new::New),
    /// Write man pages, completions and the table of exit codes.
    #[cfg(feature = "manual")]
    #[command(hide = true)]
    Manual(manual::Manual),
}

/// What all commands share.
#[derive(Debug, Clone)]
pub struct Common {
    /// Overrides the topology's state folder.
    pub state: Option<PathBuf>,
    /// How to print.
    pub format: Format,
}

/// Parses the arguments, runs the command, says what went wrong.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return misunderstood(&error),
    };
    let common = Common {
        state: arguments.state,
        format: arguments.format,
    };
    if let Err(message) = logs::init() {
        output::fail(&common, &message);
        return Exit::Usage.into();
    }
    let exit = match arguments.command {
        Command::Run(command) => command.run(&common),
        Command::Node(command) => command.run(&common),
        Command::Sim(command) => command.run(&common),
        Command::Check(command) => command.run(&common),
        Command::Checkpoint(command) => command.run(&common),
        Command::Audit(command) => command.run(&common),
        Command::Doctor(command) => command.run(&common),
        Command::Preflight(command) => command.run(&common),
        Command::Status(command) => command.run(&common),
        Command::Top(command) => command.run(&common),
        Command::Explain(command) => command.run(&common),
        Command::Report(command) => command.run(&common),
        Command::Trace(command) => command.run(&common),
        Command::Promote(command) => command.run(&common),
        Command::Readmit(command) => command.run(&common),
        Command::Stop(command) => command.run(&common),
        Command::Pause(command) => command.run(&common, Wish::Pause),
        Command::Amend(command) => command.run(&common),
        Command::Resume(command) => command.run(&common, Wish::Resume),
        Command::Certs(command) => command.run(&common),
        Command::Policy(command) => command.run(&common),
        Command::Bench(command) => command.run(&common),
        Command::Schema(command) => command.run(),
        Command::New(command) => command.run(&common),
        #[cfg(feature = "manual")]
        Command::Manual(command) => command.run(&common),
    };
    logs::flush();
    exit.into()
}

/// Says what is wrong with the arguments, or what was asked of them: help, or the version.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let told = error.to_string();
    match told.contains(|c| is_hidden(c) && c != '\n') {
        // They may hold what a terminal would obey, and clap repeats them.
        true => complain!("{}", told.trim_end()),
        false => drop(error.print()),
    }
    match error.exit_code() {
        0 => Exit::Done.into(),
        _ => Exit::Usage.into(),
    }
}

/// A runtime for a command's own waiting; the federation has threads of its own.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
