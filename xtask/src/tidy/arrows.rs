//! Imports point one way: `core` and `fabric` know nothing of ours, `actors` know those two, the root package knows all three, and `candle` it alone.

use super::{Fault, Tree, code};

/// A crate's folder and what of ours it may name; tests of a crate name the crate itself.
const ARROWS: &[(&str, &[&str])] = &[
    ("core/", &["tombolo_core"]),
    ("fabric/", &["tombolo_fabric"]),
    (
        "actors/",
        &["tombolo_actors", "tombolo_core", "tombolo_fabric"],
    ),
    ("candle/", &["tombolo_candle", "tombolo"]),
    ("xtask/", &[]),
    (
        "",
        &[
            "tombolo_core",
            "tombolo_fabric",
            "tombolo_actors",
            "tombolo",
        ],
    ),
];

/// Everything of ours that can be named.
const OURS: &[&str] = &[
    "tombolo_core",
    "tombolo_fabric",
    "tombolo_actors",
    "tombolo_candle",
    "tombolo",
];

/// Faults in manifests and in what the source names.
pub fn check(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, text) in tree {
        let Some((folder, allowed)) = ARROWS.iter().find(|(folder, _)| file.starts_with(folder))
        else {
            continue;
        };
        let refuse = |line: usize, name: &str| Fault {
            file: file.clone(),
            line,
            message: format!(
                "names {name}; {folder} may name only [{}]",
                allowed.join(", ")
            ),
        };
        if *file == format!("{folder}Cargo.toml") {
            match dependencies(text) {
                Ok(names) => faults.extend(
                    names
                        .iter()
                        .filter(|name| is_ours(name) && !allowed.contains(&name.as_str()))
                        .map(|name| refuse(0, name)),
                ),
                Err(error) => faults.push(Fault {
                    file: file.clone(),
                    line: 0,
                    message: error.to_string(),
                }),
            }
        }
        if file.ends_with(".rs") {
            for (index, line) in code::only(text).lines().enumerate() {
                for name in OURS.iter().filter(|name| !allowed.contains(name)) {
                    // The federation's name is a common word; only a path is an import.
                    let named = code::has_word(line, name)
                        && (*name != "tombolo" || line.contains("tombolo::"));
                    if named {
                        faults.push(refuse(index + 1, name));
                    }
                }
            }
        }
    }
    faults
}

fn is_ours(name: &str) -> bool {
    name == "xtask" || OURS.contains(&name)
}

/// Every dependency of a manifest, of any kind and target, as source would name it.
fn dependencies(manifest: &str) -> Result<Vec<String>, toml::de::Error> {
    let table: toml::Table = manifest.parse()?;
    let targets = table.get("target").and_then(toml::Value::as_table);
    let tables = targets
        .into_iter()
        .flatten()
        .filter_map(|(_, target)| target.as_table())
        .chain([&table]);
    let mut names = Vec::new();
    for table in tables {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(entries) = table.get(kind).and_then(toml::Value::as_table) else {
                continue;
            };
            for (name, entry) in entries {
                let renamed = entry.get("package").and_then(toml::Value::as_str);
                names.push(renamed.unwrap_or(name).replace('-', "_"));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn found(file: &str, text: &str) -> usize {
        check(&tree(&[(file, text)])).len()
    }

    #[test]
    fn an_arrow_against_the_grain_is_a_fault_in_source() {
        assert_eq!(found("core/src/a.rs", "use tombolo_fabric::Region;"), 1);
        assert_eq!(
            found("fabric/src/a.rs", "use tombolo_core::ids::NodeId;"),
            1
        );
        assert_eq!(
            found("actors/src/a.rs", "tombolo::Federation::from_path(x);"),
            1
        );
        assert_eq!(found("core/tests/a.rs", "use tombolo_actors as actors;"), 1);
        assert_eq!(
            found("actors/src/a.rs", "use tombolo_core::ids::NodeId;"),
            0
        );
        assert_eq!(found("src/a.rs", "use tombolo_actors::env::Env;"), 0);
        assert_eq!(found("core/src/a.rs", "//! See `tombolo_actors::env`."), 0);
    }

    #[test]
    fn an_arrow_against_the_grain_is_a_fault_in_a_manifest() {
        let plain = "[dependencies]\ntombolo-core.workspace = true\n";
        assert_eq!(found("fabric/Cargo.toml", plain), 1);
        assert_eq!(found("actors/Cargo.toml", plain), 0);
        let renamed = "[target.'cfg(unix)'.dev-dependencies]\nours = { package = \"tombolo-actors\", path = \"../actors\" }\n";
        assert_eq!(found("core/Cargo.toml", renamed), 1);
        assert_eq!(found("core/Cargo.toml", "not toml"), 1);
    }
}
