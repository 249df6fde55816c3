//! `tombolo certs`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::fixture::{Workspace, pinned};

/// A node with such a certificate would be refused by everybody.
#[test]
fn a_certificate_of_another_federation_is_a_problem() {
    let workspace = Workspace::new(&pinned(2));
    workspace.run("certs init topology.toml").expect(0);
    workspace.run("certs issue topology.toml").expect(0);
    workspace.run("certs show topology.toml").expect(0);
    let other = pinned(2).replace("name = \"pinned\"", "name = \"other\"");
    workspace.write("topology.toml", &other);
    let shown = workspace.run("certs show topology.toml").expect(1);
    let nodes = shown.events("certificate").into_iter();
    let nodes: Vec<_> = nodes.filter(|entry| entry["kind"] == "node").collect();
    assert_eq!(nodes.len(), 9, "{shown:#?}");
    for node in nodes {
        let problem = node["problems"][0].as_str().unwrap();
        let both = "is of federation \"pinned\", the topology is of \"other\"";
        assert!(problem.starts_with(both), "{node}");
    }
}

#[test]
fn domains_are_made_nodes_certified_and_all_is_shown() {
    let workspace = Workspace::new(&pinned(2));
    let nothing = workspace.run("certs show topology.toml").expect(1);
    assert_eq!(
        nothing.events("certificate").len(),
        3,
        "roots that are missing"
    );
    let made = workspace
        .run("certs init topology.toml --domain hq")
        .expect(0);
    assert_eq!(made.events("made")[0]["kind"], "root");
    let rest = workspace.run("certs init topology.toml").expect(0);
    assert_eq!(
        rest.events("made").len(),
        2,
        "only what was not there: {rest:#?}"
    );
    assert_eq!(rest.events("found").len(), 1, "{rest:#?}");
    let again = workspace.text("certs init topology.toml").expect(0);
    assert_eq!(again.lines.len(), 3);
    let kept = &again.lines[0];
    assert!(
        kept.starts_with("nothing to do: ")
            && kept.contains("hq.pem is valid for another 36")
            && kept.ends_with("`--domain hq --replace` makes a new one"),
        "{kept}"
    );

    let issue = "certs issue topology.toml --node hq/gate";
    let issued = workspace.run(&format!("{issue} --days 3")).expect(0);
    let entry = &issued.events("made")[0];
    assert_eq!(entry["spiffe_id"], "spiffe://hq.pinned/node/gate");
    let days = entry["remaining_s"].as_u64().unwrap() / 86_400;
    assert!((2..=3).contains(&days), "{entry}");
    let again = workspace.run(issue).expect(0);
    assert_eq!(again.events("found")[0]["sha256"], entry["sha256"]);
    let replaced = workspace.run(&format!("{issue} --replace")).expect(0);
    assert_ne!(replaced.events("made")[0]["sha256"], entry["sha256"]);
    let key = workspace.path().join("certs/hq/gate.key");
    let mode = std::fs::metadata(&key).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let shown = workspace.run("certs show topology.toml").expect(0);
    assert_eq!(shown.events("certificate").len(), 4, "{shown:#?}");
    let text = workspace
        .text("certs show topology.toml")
        .expect(0)
        .lines
        .join("\n");
    assert!(text.contains("id spiffe://hq.pinned/node/gate"), "{text}");

    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let spoiled = workspace.run(issue).expect(1);
    assert!(
        spoiled.errors().contains("mode is 0644") && spoiled.errors().contains("--replace"),
        "{spoiled:#?}"
    );
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let rest = workspace.run("certs issue topology.toml").expect(0);
    assert_eq!(rest.events("made").len(), 8, "all but hq/gate");

    workspace.run("run topology.toml").expect(0);
    let shown = workspace.run("certs show topology.toml").expect(0);
    assert_eq!(shown.events("certificate").len(), 12, "as many as before");
}

#[test]
fn what_cannot_be_issued_is_refused() {
    let workspace = Workspace::new(&pinned(2));
    for (command, code, said) in [
        ("certs init topology.toml --domain moon", 2, "domain moon"),
        ("certs issue topology.toml --node hq/z", 2, "node hq/z"),
        ("certs issue topology.toml --node hq/gate", 1, "hq.pem"),
        ("certs issue topology.toml", 2, "hq.key"),
        ("certs issue topology.toml --replace", 2, "--node"),
        ("certs init topology.toml --days 100000", 2, "lifetime"),
        ("certs init topology.toml --replace", 2, "--domain"),
    ] {
        let output = workspace.run(command).expect(code);
        assert!(output.errors().contains(said), "{command}: {output:#?}");
    }
    assert!(!workspace.path().join("certs").exists());
}

/// A key never leaves its node, nothing is signed that nobody has compared, and what was signed can be called back.
#[test]
fn a_certificate_is_asked_for_approved_put_in_place_and_revoked() {
    let workspace = Workspace::new(&pinned(2));
    workspace
        .run("certs init topology.toml --domain hq")
        .expect(0);
    workspace
        .run("certs issue topology.toml --node hq/gate")
        .expect(0);
    let asked = workspace
        .run("certs request topology.toml --node hq/gate --out gate.csr")
        .expect(0);
    let key = asked.events("requested")[0]["key_sha256"].clone();
    let key = key.as_str().unwrap();
    let approve = "certs approve topology.toml --request gate.csr";
    let alone = workspace.run(approve).expect(2);
    assert!(
        alone.errors().contains(key) && alone.errors().contains("--fingerprint"),
        "{alone:#?}"
    );
    let other = format!("{approve} --fingerprint {}", "0".repeat(64));
    let other = workspace.run(&other).expect(2);
    assert!(other.errors().contains("it is not the one"), "{other:#?}");
    let approved = workspace
        .run(&format!("{approve} --fingerprint {}", key.to_uppercase()))
        .expect(0);
    let entry = &approved.events("approved")[0];
    let rotate = "certs rotate topology.toml --node hq/gate --certificate gate.pem";
    let rotated = workspace.run(rotate).expect(0);
    assert_eq!(rotated.events("rotated")[0]["sha256"], entry["sha256"]);
    let shown = workspace.run("certs show topology.toml");
    let of_gate = shown.events("certificate").into_iter();
    let of_gate: Vec<_> = of_gate.filter(|it| it["kind"] == "node").collect();
    assert_eq!(of_gate[0]["problems"].as_array().unwrap().len(), 0);
    let again = workspace
        .run("certs rotate topology.toml --node hq/gate")
        .expect(0);
    assert_ne!(again.events("rotated")[0]["sha256"], entry["sha256"]);
    let late = workspace.run(rotate).expect(1);
    assert!(late.errors().contains("another key"), "{late:#?}");

    let revoked = workspace
        .run("certs revoke topology.toml --node hq/gate")
        .expect(0);
    let revoked = &revoked.events("revoked")[0];
    // A list of later is of a greater number, whoever has lost the one before.
    assert!(
        revoked["number"].as_u64().unwrap() > 1_700_000_000,
        "{revoked}"
    );
    assert_eq!(
        revoked["serials"].as_array().unwrap().len(),
        3,
        "all of them"
    );
    let shown = workspace.run("certs show topology.toml").expect(1);
    let problem = shown.lines.join("\n");
    assert!(problem.contains("was revoked by its domain"), "{problem}");
    let nothing = workspace
        .run("certs revoke topology.toml --node hq/gate")
        .expect(2);
    assert!(
        nothing.errors().contains("no certificate to revoke"),
        "{nothing:#?}"
    );
}
