//! "Each failed node's cause reaches the CLI." flower#1400, FLIP#1001

use rustix::process::Signal;

use crate::fixture::{Workspace, kill, pinned, process_of};

/// A site that is too far away to join in time.
fn far() -> String {
    let hurried = "\"1s\"\nfailed_limit = 2\nclose_limit = \"1s\"";
    let link = "\n[[link]]\nbetween = [\"plant\", \"hq\"]\nemulate = { delay = \"5s\" }\n";
    pinned(2).replace("\"10min\"", hurried) + link
}

#[test]
fn what_keeps_a_domain_out_is_a_line_of_json_before_the_last_one() {
    let workspace = Workspace::new(&far());
    for command in [
        "sim topology.toml",
        "run topology.toml",
        "run topology.toml --processes --state apart",
    ] {
        let output = workspace.run(command).expect(3);
        assert_eq!(output.events("round").len(), 2, "{output:#?}");
        let dropped = output.events("domain_dropped");
        let told = |event: &serde_json::Value| {
            event["domain"] == "plant" && event["reason"].as_str().unwrap().contains("never joined")
        };
        assert!(dropped.iter().any(told), "{output:#?}");
        let last = output.lines.last().unwrap();
        assert!(last.contains("\"event\":\"finished\""), "{output:#?}");
    }
    let text = workspace.text("run topology.toml --state text").expect(3);
    assert!(
        text.errors()
            .contains("domain plant is out: it does not hold"),
        "{text:#?}"
    );
}

/// The others' processes see who is gone; the coordinator's may not.
#[test]
fn a_lost_node_is_told_whichever_process_saw_it() {
    let quick = "\n[heartbeat]\nevery = \"100ms\"\nretry = [\"50ms\", \"50ms\", \"50ms\"]\n";
    // So many that it lasts; not so many that a loss which nobody tells is waited for without an end.
    let topology = pinned(3000).replace("quorum = \"all\"", "grace = \"100ms\"") + quick;
    let workspace = Workspace::new(&topology);
    let mut run = workspace.start("run topology.toml --processes");
    run.until_rounds(1);
    kill(process_of(&workspace, "plant/d"), Signal::KILL);
    run.until("the loss", |seen| {
        let told =
            |line: &String| line.contains("\"peer_lost\"") && line.contains("\"peer\":\"plant/d\"");
        seen.lines.iter().any(told)
    });
    run.signal(Signal::INT);
    let output = run.end().expect(130);
    let last = output.lines.last().unwrap();
    assert!(last.contains("\"event\":\"finished\""), "{output:#?}");
}
