//! `pause`, `resume` and `stop`, from the command line.

use serde_json::Value;

use crate::fixture::{Workspace, hash_of, pinned};

const ROUNDS: u64 = 80;

fn paused(workspace: &Workspace) -> Value {
    let output = workspace.run("status topology.toml");
    let mut all = output.events("status").into_iter();
    let knows = |status: &Value| {
        let mut nodes = status["nodes"].as_array().unwrap().iter();
        nodes.any(|node| node["coordinator"] == true)
    };
    all.find(knows)
        .map_or(Value::Null, |status| status["rounds"]["paused"].clone())
}

/// Paused, killed, gone on with, still paused, then resumed and stopped; at last the model of a run that nobody disturbed.
#[test]
fn a_run_is_paused_through_a_restart_and_stopped_and_ends_with_the_undisturbed_model() {
    let topology = pinned(ROUNDS);
    let undisturbed = hash_of(&topology);
    for mode in ["", "--processes"] {
        let workspace = Workspace::new(&topology);
        let mut run = workspace.start(&format!("run topology.toml {mode}"));
        run.until_rounds(1);
        let told = workspace.run("pause topology.toml --by ada").expect(0);
        let told = &told.events("paused")[0];
        assert!(
            told["by"].as_str().unwrap().starts_with("ada (user "),
            "{told}"
        );
        assert_eq!(told["already"], false);
        assert_eq!(paused(&workspace)["by"], told["by"]);
        let text = workspace.text("status topology.toml").lines.join("\n");
        assert!(text.contains("paused by ada"), "{text}");
        let again = workspace.run("pause topology.toml").expect(0);
        assert_eq!(again.events("paused")[0]["already"], true);
        drop(run);
        // Processes of nodes die with the one that started them, and a moment after it.
        let ends = (0..1000).any(|_| workspace.run("status topology.toml").code() != 0);
        assert!(ends, "processes outlive the one that started them");

        let mut run = workspace.start(&format!("run topology.toml --resume {mode}"));
        let found = (0..600).any(|_| {
            run.listen(std::time::Duration::from_millis(50));
            paused(&workspace)["by"] == told["by"]
        });
        assert!(
            found,
            "the pause is forgotten: {:#?}",
            run.listen(std::time::Duration::ZERO)
        );
        run.until("the word that the run is paused", |output| {
            let said = output.events("run_paused");
            said.iter().any(|event| event["by"] == told["by"])
        });
        workspace.run("resume topology.toml").expect(0);
        let none = workspace.run("resume topology.toml").expect(1).errors();
        assert!(none.contains("not paused"), "{none}");
        run.until_rounds(1);
        let now = if mode.is_empty() { "--now" } else { "" };
        let told = workspace
            .run(&format!("stop topology.toml {now}"))
            .expect(0);
        assert_eq!(told.events("stopping")[0]["already"], false);
        let stopped = run.end().expect(0);
        let reason = stopped.finished()["reason"].as_str().unwrap().to_owned();
        assert!(reason.starts_with("stopped by "), "{reason}");

        let rest = workspace
            .run(&format!("run topology.toml --resume {mode}"))
            .expect(0);
        assert_eq!(rest.hash(), undisturbed, "{mode}");
        let nobody = workspace.run("stop topology.toml").expect(1).errors();
        assert!(nobody.contains("no coordinator runs in"), "{nobody}");
    }
}
