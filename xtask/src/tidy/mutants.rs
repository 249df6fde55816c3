//! Bugs that are planted for tests are built for tests only: nothing but dev-dependencies may turn the feature `mutants` on.

use super::{Fault, Tree};

const FEATURE: &str = "mutants";

/// Faults in manifests.
pub fn check(tree: &Tree) -> Vec<Fault> {
    let manifests = tree
        .iter()
        .filter(|(file, _)| *file == "Cargo.toml" || file.ends_with("/Cargo.toml"));
    // Who does not parse is told so by the rule of the arrows.
    let parsed = manifests.filter_map(|(file, text)| Some((file, text.parse().ok()?)));
    parsed
        .flat_map(|(file, manifest): (_, toml::Table)| {
            let fault = |place: String| Fault {
                file: file.clone(),
                line: 0,
                message: format!(
                    "{place} turns on {FEATURE}, which plants bugs: only dev-dependencies may"
                ),
            };
            places(&toml::Value::Table(manifest), "")
                .into_iter()
                .map(fault)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Where a manifest turns the feature on, but for its dev-dependencies and the feature's own list.
fn places(value: &toml::Value, path: &str) -> Vec<String> {
    let turns_on = |text: &str| text == FEATURE || text.ends_with(&format!("/{FEATURE}"));
    match value {
        toml::Value::String(text) if turns_on(text) => vec![path.to_owned()],
        toml::Value::Array(values) => values
            .iter()
            .flat_map(|value| places(value, path))
            .collect(),
        toml::Value::Table(table) => table
            .iter()
            .filter(|(key, _)| *key != "dev-dependencies")
            .filter(|(key, _)| !(path == "features" && *key == FEATURE))
            .flat_map(|(key, value)| {
                let path = match path {
                    "" => key.clone(),
                    _ => format!("{path}.{key}"),
                };
                places(value, &path)
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn found(text: &str) -> usize {
        check(&tree(&[("core/Cargo.toml", text)])).len()
    }

    #[test]
    fn only_dev_dependencies_may_plant_bugs() {
        let declared = "[features]\nmutants = [\"tombolo-core/mutants\"]\n";
        assert_eq!(found(declared), 0);
        let tested =
            "[dev-dependencies]\ntombolo-core = { path = \".\", features = [\"mutants\"] }\n";
        assert_eq!(found(tested), 0);
        let shipped = "[dependencies]\ntombolo-core = { path = \".\", features = [\"mutants\"] }\n";
        assert_eq!(found(shipped), 1);
        let everywhere = "[workspace.dependencies.tombolo-core]\nfeatures = [\"mutants\"]\n";
        assert_eq!(found(everywhere), 1);
        assert_eq!(found("[features]\ndefault = [\"mutants\"]\n"), 1);
        assert_eq!(found("[features]\nfast = [\"tombolo-core/mutants\"]\n"), 1);
    }
}
