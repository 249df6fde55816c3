//! The JSON schema of a topology file, for editors that complete and check while one types.

use serde_json::{Map, Value, json};
use toml::de::DeValue;

use super::keys::{FILE, Key, Kind, Stage, Table};

/// The naming rule as a regular expression.
const NAME: &str = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$";
const CODEC: &str =
    "^((none|fp16|bf16|int8|topk|topk\\+fp16)(\\+(snappy|lz4|zstd))?|snappy|lz4|zstd)$";
const NODE: &str = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?/[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$";
const DURATION: &str = "^[0-9]+(\\.[0-9]+)? ?(us|ms|s|min|h|d)$";

/// The JSON schema (draft 2020-12) of a topology file. Keys that are not in this version are left out, so that editors mark them.
pub fn schema() -> Value {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tombolo topology",
    });
    if let (Some(top), Value::Object(file)) = (schema.as_object_mut(), table(&FILE)) {
        top.extend(file);
    }
    schema
}

fn table(table: &Table) -> Value {
    let built = || table.keys.iter().filter(|key| key.stage != Stage::Later);
    let properties: Map<String, Value> = built()
        .map(|key| (key.name.to_owned(), property(key)))
        .collect();
    let required: Vec<&str> = built()
        .filter(|key| key.required)
        .map(|key| key.name)
        .collect();
    json!({
        "description": table.doc,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property(key: &Key) -> Value {
    let default = key.default.map(|text| {
        let parsed = DeValue::parse(text).expect("every default is TOML: a test reads them all");
        to_json(parsed.get_ref())
    });
    let mut schema = match (key.kind, key.words) {
        (Kind::Word, words) => json!({ "enum": words }),
        (Kind::Rule, words) => json!({ "anyOf": [{ "enum": words }, kind(key.kind)] }),
        (of, []) => kind(of),
        (of, words) => json!({ "anyOf": [{ "enum": words }, kind(of)] }),
    };
    let fields = schema.as_object_mut().expect("every schema is an object");
    fields.insert("description".into(), key.doc.into());
    if let Some(default) = default {
        if key.stage == Stage::DefaultOnly {
            fields.insert("const".into(), default.clone());
        }
        fields.insert("default".into(), default);
    }
    schema
}

fn kind(of: Kind) -> Value {
    match of {
        Kind::Whole(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Number(least, most) => json!({ "type": "number", "minimum": least, "maximum": most }),
        Kind::Above(limit, most) => {
            json!({ "type": "number", "exclusiveMinimum": limit, "maximum": most })
        }
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Name | Kind::Rule => json!({ "type": "string", "pattern": NAME }),
        Kind::Node => json!({ "type": "string", "pattern": NODE }),
        Kind::Place => json!({ "anyOf": [kind(Kind::Name), kind(Kind::Node)] }),
        Kind::Word | Kind::Path | Kind::Text => json!({ "type": "string", "minLength": 1 }),
        Kind::Codec => json!({ "type": "string", "pattern": CODEC }),
        Kind::Socket | Kind::HostPort => json!({ "type": "string", "pattern": ":[0-9]{1,5}$" }),
        Kind::Sha256 => json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" }),
        Kind::Store => {
            json!({ "type": "string", "pattern": "^(file:|s3a?://|gs://|az://|abfss?://)." })
        }
        Kind::Steps => json!({ "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": 1_000_000 },
            { "type": "string", "pattern": "^[0-9]+ ?epochs?$" },
        ] }),
        Kind::Duration(..) => json!({ "type": "string", "pattern": DURATION }),
        Kind::Rate => {
            json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? ?[kMG]?bit/s$" })
        }
        Kind::Clock => json!({ "type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$" }),
        Kind::Share(_) => json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? ?%$" }),
        Kind::List(element, least, most) => json!({
            "type": "array", "items": self::kind(*element), "minItems": least, "maxItems": most,
        }),
        Kind::OneOrMore(element, most) => json!({ "anyOf": [
            self::kind(*element),
            { "type": "array", "items": self::kind(*element), "minItems": 1, "maxItems": most },
        ] }),
        Kind::Table(inner) => table(inner),
        Kind::Tables(inner, most) => {
            json!({ "type": "array", "items": table(inner), "maxItems": most })
        }
    }
}

/// A default of the key tables as JSON.
fn to_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(number) => number
            .as_str()
            .parse::<u64>()
            .map_or(Value::Null, Value::from),
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .map_or(Value::Null, Value::from),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(_) => Value::Null,
        DeValue::Array(items) => items.iter().map(|item| to_json(item.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(key, value)| (key.get_ref().to_string(), to_json(value.get_ref())))
            .collect::<Map<_, _>>()
            .into(),
    }
}
