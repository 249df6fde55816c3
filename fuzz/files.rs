//! What people write, what processes record, and what is said over the control socket.

use std::path::Path;
use std::sync::LazyLock;

use tombolo::control::{Request, Response};
use tombolo::explain::Past;
use tombolo::observe::{Bounds, Picture};
use tombolo::topology::{config_hash, parse, parse_faults};
use tombolo_core::plan::Plan;

/// The parser's words, the tree and the mistakes with the lines around them.
pub fn room(len: usize) -> usize {
    (512 << 10) + 1024 * len
}

/// Two sites.
pub const SITES: &str = r#"[federation]
name = "harbour"
rounds = 3
coordinator = "hq/gate"
[round]
quorum = { nodes = 2, domains = 2 }
deadline = "30s"
grace = "2s"
[aggregator]
kind = "fedavg"
clip = "none"
[[domain]]
name = "hq"
[[domain.node]]
name = "gate"
listen = "0.0.0.0:4433"
advertise = "hq.example:4433"
[[domain.node]]
name = "a"
[[domain]]
name = "plant"
[[domain.node]]
name = "gate"
listen = "0.0.0.0:4433"
advertise = "plant.example:4433"
[[link]]
between = ["hq", "plant"]
codec = "fp16"
[heartbeat]
every = "500ms"
"#;

static PLAN: LazyLock<Plan> =
    LazyLock::new(|| parse("sites.toml", SITES, Path::new("/base")).unwrap());

pub fn topology(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    match parse("sites.toml", text, Path::new("/base")) {
        Ok(plan) => {
            assert_eq!(config_hash(&plan), config_hash(&plan.clone()));
            true
        }
        Err(diagnosis) => {
            assert!(diagnosis.mistakes().count() > 0);
            false
        }
    }
}

pub fn faults(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    match parse_faults("faults.toml", text, &PLAN) {
        Ok(_) => true,
        Err(diagnosis) => {
            assert!(diagnosis.mistakes().count() > 0);
            false
        }
    }
}

/// A line of a record, and what the page makes of it.
pub fn event(bytes: &[u8]) -> bool {
    Past::read(bytes).is_some_and(|past| {
        let written = serde_json::to_vec(&past).unwrap();
        assert_eq!(Past::read(&written), Some(past.clone()));
        Picture::new(Bounds::LIVE).apply(&past);
        true
    })
}

pub fn request(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Request>(bytes).is_ok_and(|request| {
        let written = serde_json::to_vec(&request).unwrap();
        assert_eq!(
            serde_json::from_slice::<Request>(&written).unwrap(),
            request
        );
        true
    })
}

pub fn response(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Response>(bytes).is_ok_and(|response| {
        let written = serde_json::to_vec(&response).unwrap();
        assert_eq!(
            serde_json::from_slice::<Response>(&written).unwrap(),
            response
        );
        true
    })
}
