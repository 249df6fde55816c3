//! Nodes of a real deployment, each on its own: when the run is over, all of them hear so.

use crate::stand::{PINNED, Tiny, node, topology, within_limit};

/// FATE#683, FATE#4040: whoever passes the last word on stays until it has been heard.
#[test]
fn the_end_of_a_run_reaches_every_node() {
    let nodes = ["hq/gate", "hq/a", "plant/gate", "plant/c"];
    let topology = topology(1, PINNED)
        .replace("[\"gate\", \"a\", \"b\"]", "[\"gate\", \"a\"]")
        .replace("[\"gate\", \"c\", \"d\"]", "[\"gate\", \"c\"]");
    let folder = tempfile::tempdir().unwrap();
    let federations = nodes.map(|_| {
        let federation = tombolo::Federation::from_toml(&topology, folder.path()).unwrap();
        let federation = federation.state(folder.path().join("state"));
        federation.prepare().unwrap();
        federation.trainer(|_| Tiny::new())
    });
    within_limit(async {
        let mut running = Vec::new();
        for (federation, name) in federations.into_iter().zip(nodes) {
            running.push(federation.spawn_node(&node(name)).await.unwrap());
        }
        let mut running = running.into_iter().map(tombolo::federation::Running::run);
        let [gate, a, other, c] = std::array::from_fn(|_| running.next().expect("four"));
        let (gate, a, other, c) = tokio::join!(gate, a, other, c);
        assert_eq!(gate.unwrap().finished.committed, 1);
        for (name, report) in [("hq/a", a), ("plant/gate", other), ("plant/c", c)] {
            assert_eq!(report.unwrap().finished.reason, "", "{name}");
        }
    });
}
