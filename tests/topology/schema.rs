//! The schema that editors use says what the reader of topologies says.

use std::path::Path;

use tombolo::topology::{schema, template};

use crate::good::SMALL;

/// A judge of JSON schemas that knows what ours uses: objects, arrays, alternatives, and nothing of strings.
fn fits(schema: &serde_json::Value, value: &toml::Value) -> bool {
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| fits(schema, value));
    }
    if let Some(words) = schema["enum"].as_array() {
        return words
            .iter()
            .any(|word| Some(word.as_str().unwrap()) == value.as_str());
    }
    match (schema["type"].as_str().unwrap(), value) {
        ("object", toml::Value::Table(table)) => {
            let required = schema["required"].as_array().unwrap();
            required
                .iter()
                .all(|key| table.contains_key(key.as_str().unwrap()))
                && table
                    .iter()
                    .all(|(key, value)| match schema["properties"].get(key) {
                        Some(inner) => fits(inner, value),
                        None => schema["additionalProperties"] != false,
                    })
        }
        ("array", toml::Value::Array(items)) => {
            items.iter().all(|item| fits(&schema["items"], item))
        }
        ("string", value) => value.is_str(),
        ("integer", value) => value.is_integer(),
        ("number", value) => value.is_integer() || value.is_float(),
        ("boolean", value) => value.is_bool(),
        _ => false,
    }
}

#[test]
fn the_schema_fits_right_files_and_not_wrong_ones() {
    let schema = schema();
    for text in [
        SMALL,
        template(),
        include_str!("../../examples/harbour.toml"),
        include_str!("../fixtures/pinned.toml"),
    ] {
        assert!(
            fits(&schema, &text.parse::<toml::Table>().unwrap().into()),
            "{text}"
        );
    }
    for broken in [
        "01-unknown-key",
        "05-misplaced-key",
        "15-no-name",
        "23-wrong-types",
        "27-unknown-word",
        "67-later-node-keys",
    ] {
        let path = Path::new("tests/topology/broken")
            .join(broken)
            .with_extension("toml");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(
            !fits(&schema, &text.parse::<toml::Table>().unwrap().into()),
            "{broken}"
        );
    }
}

#[test]
fn the_schema_says_what_defaults_and_words_there_are() {
    let schema = schema();
    let properties = &schema["properties"];
    assert_eq!(properties["round"]["properties"]["grace"]["default"], "2s");
    assert_eq!(
        properties["federation"]["properties"]["rounds"]["maximum"],
        999_999
    );
    assert_eq!(properties["heartbeat"]["properties"]["phi"]["default"], 8.0);
    assert_eq!(
        properties["run"]["properties"]["balance_steps"]["default"],
        false
    );
    let domain = &properties["domain"]["items"]["properties"];
    let node = &domain["node"]["items"]["properties"];
    assert_eq!(node.get("numa"), None, "not built");
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("schema", serde_json::to_string_pretty(&schema).unwrap());
    });
}
