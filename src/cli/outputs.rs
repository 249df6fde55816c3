//! What each line of `--format json` holds: the schemas in `docs/manual/schemas/`. A test holds real lines of the program to them, both ways: no
//! field is missing, and none is there that stands nowhere.

mod preflight;
mod table;

use serde_json::{Map, Value, json};

/// One sort of line.
struct Output {
    /// The file's name.
    name: &'static str,
    /// What `event` is; none for a line without one.
    event: Option<&'static str>,
    /// Who prints it, and what it says.
    says: &'static str,
    fields: &'static [Field],
    /// Whether fields that are not listed may follow.
    open: bool,
}

struct Field {
    name: &'static str,
    kind: Kind,
    says: &'static str,
    always: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Whole,
    Number,
    Bool,
    /// BLAKE3 or SHA-256.
    Hash,
    Word(&'static [&'static str]),
    List(&'static Kind),
    /// An object whose fields its description tells.
    Object,
    /// Or null.
    Or(&'static Kind),
}

use Kind::{Bool, Hash, List, Number, Object, Or, Text, Whole, Word};

const fn is(name: &'static str, kind: Kind, says: &'static str) -> Field {
    Field {
        name,
        kind,
        says,
        always: true,
    }
}

/// It may be left out.
const fn may(name: &'static str, kind: Kind, says: &'static str) -> Field {
    Field {
        always: false,
        ..is(name, kind, says)
    }
}

const fn line(
    name: &'static str,
    event: &'static str,
    says: &'static str,
    fields: &'static [Field],
) -> Output {
    Output {
        name,
        event: Some(event),
        says,
        fields,
        open: false,
    }
}

/// Each schema, with the name of its file.
pub fn schemas() -> impl Iterator<Item = (String, Value)> {
    let each = table::OUTPUTS.iter().chain(preflight::OUTPUTS);
    each.map(|output| (format!("{}.json", output.name), output.schema()))
}

impl Output {
    fn schema(&self) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        if let Some(event) = self.event {
            properties.insert("event".into(), json!({ "const": event }));
            required.push("event");
        }
        for field in self.fields {
            let mut schema = field.kind.schema();
            schema["description"] = field.says.into();
            properties.insert(field.name.into(), schema);
            required.extend(field.always.then_some(field.name));
        }
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.name,
            "description": self.says,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": self.open,
        })
    }
}

impl Kind {
    fn schema(self) -> Value {
        match self {
            Text => json!({ "type": "string" }),
            Whole => json!({ "type": "integer", "minimum": 0 }),
            Number => json!({ "type": "number" }),
            Bool => json!({ "type": "boolean" }),
            Hash => json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
            Word(words) => json!({ "enum": words }),
            List(of) => json!({ "type": "array", "items": of.schema() }),
            Object => json!({ "type": "object" }),
            Or(of) => json!({ "anyOf": [of.schema(), { "type": "null" }] }),
        }
    }
}
