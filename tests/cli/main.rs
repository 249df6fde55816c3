//! The command line as a user meets it: the real program in folders of its own, its output, its exit codes, and what signals leave behind.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod audit;
mod bench;
mod causes;
mod certs;
mod checkpoint;
mod configuration;
mod dashboard;
mod doctor;
mod examples;
#[allow(dead_code, reason = "shared with another test")]
mod fixture;
mod floods;
mod interrupts;
mod kills;
mod manual;
mod membership;
mod orders;
mod pipes;
mod policy;
mod preflight;
mod processes;
mod records;
mod resume;
mod runs;
mod schemas;
mod status;
mod terminal;
mod top;
