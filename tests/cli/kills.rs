//! kill -9 at any moment: `--resume` goes on from a committed round and ends as if nothing had happened.

use rustix::process::Signal;
use tombolo::core::rng::Rng;

use crate::fixture::{Output, Workspace, pinned};

const SEED: u64 = 7;
const KILLS: u64 = 10;

/// Every event of the run appears on standard error, as it happens.
const LOG: &str = "tombolo::federation=debug";

fn events(output: &Output) -> usize {
    output
        .errors
        .iter()
        .filter(|line| line.contains("event="))
        .count()
}

#[test]
fn killed_in_any_phase_a_run_resumes_to_the_undisturbed_model() {
    let workspace = Workspace::new(&pinned(3));
    let undisturbed = workspace
        .start_with("run topology.toml", LOG)
        .end()
        .expect(0);
    // How many links still say that they are down before the end is a matter of chance.
    let lines = undisturbed.errors.iter();
    let total = lines
        .filter(|line| line.contains("event="))
        .take_while(|line| !line.contains("event=Finished"))
        .count();
    assert!(total > 100, "{undisturbed:#?}");
    let mut rng = Rng::derive(SEED, &[b"kills"]);
    let mut killed = 0;
    for kill in 0..KILLS {
        let moment = rng.next_u64() as usize % total;
        let run = format!("run topology.toml --state killed-{kill}");
        let mut process = workspace.start_with(&run, LOG);
        process.until("the moment", |seen| events(seen) >= moment);
        process.signal(Signal::KILL);
        let output = process.end();
        killed += usize::from(output.status.unwrap().code().is_none());
        let committed = output.events("round").len() as u64;
        let rest = workspace.run(&format!("{run} --resume"));
        let replay = format!("seed {SEED}, kill {kill} after event {moment} of {total}");
        assert_eq!(rest.code(), 0, "{replay}: {rest:#?}");
        assert_eq!(rest.hash(), undisturbed.hash(), "{replay}");
        assert_eq!(rest.finished()["committed"], 3, "{replay}");
        if let Some(first) = rest.events("round").first() {
            // What was announced is not done again.
            assert!(
                first["round"].as_u64().unwrap() > committed,
                "{replay}: {first}"
            );
        }
    }
    // A kill right at the end may come too late; most must not.
    assert!(killed >= 7, "only {killed} of {KILLS} runs were killed");
}
