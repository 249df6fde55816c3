//! One value against one kind.

use std::net::SocketAddr;

use toml::de::{DeArray, DeValue};

use tombolo_core::compress::Coding;
use tombolo_core::ids::{NodeId, is_name};
use tombolo_core::plan::SyncEvery;

use super::suggest::{nearest, shown};
use super::{Key, Kind, Mistake, alternatives};
use crate::store;
use crate::topology::units;
use crate::topology::value::{Span, Value};

/// Most local steps and epochs of a round.
const STEPS_MAX: u64 = 1_000_000;
const EPOCHS_MAX: u64 = 1000;

/// The naming rule in words.
const NAME_RULE: &str =
    "names are 1 to 32 characters of a-z, 0-9 and -, with a letter or digit at both ends";

/// A value that was understood.
pub(super) enum Read {
    Right(Value),
    /// Wrong, but good enough to judge the rest of the file by.
    Usable(Value, Refused),
}

/// Why a value of the right type is refused.
pub(super) struct Refused {
    message: String,
    label: String,
    help: Option<String>,
}

impl Refused {
    fn new(message: String, label: impl Into<String>) -> Self {
        Refused {
            message,
            label: label.into(),
            help: None,
        }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(super) fn at(self, span: &Span) -> Mistake {
        let mistake = Mistake::at(span, self.message).label(self.label);
        match self.help {
            Some(help) => mistake.help(help),
            None => mistake,
        }
    }
}

/// Reads a value of any kind that is not a table or a list. An error without a refusal means the wrong type.
pub(super) fn read(
    key: &Key,
    kind: Kind,
    given: &DeValue<'_>,
    registered: &[String],
) -> Result<Read, Option<Refused>> {
    let right = |value| Ok(Read::Right(value));
    match (kind, given) {
        (Kind::Whole(least, most), DeValue::Integer(number)) => {
            match i128::from_str_radix(number.as_str(), number.radix()) {
                Ok(whole) if (i128::from(least)..=i128::from(most)).contains(&whole) => {
                    right(Value::Whole(whole as u64))
                }
                _ => Err(Some(out_of_range(key, kind, number.as_str()))),
            }
        }
        (Kind::Number(..) | Kind::Above(..), DeValue::Integer(_) | DeValue::Float(_)) => {
            read_number(key, kind, given)
        }
        (Kind::Flag, DeValue::Boolean(flag)) => right(Value::Flag(*flag)),
        (Kind::Steps, DeValue::Integer(number)) => {
            match u64::from_str_radix(number.as_str(), number.radix()) {
                Ok(steps @ 1..=STEPS_MAX) => right(Value::Steps(SyncEvery::Steps(steps))),
                _ => Err(Some(out_of_range(key, kind, number.as_str()))),
            }
        }
        (_, DeValue::String(text)) => read_text(key, kind, text, registered),
        _ => Err(None),
    }
}

fn read_number(key: &Key, kind: Kind, given: &DeValue<'_>) -> Result<Read, Option<Refused>> {
    let (text, number) = match given {
        DeValue::Integer(number) => (
            number.as_str(),
            i128::from_str_radix(number.as_str(), number.radix())
                .ok()
                .map(|whole| whole as f64),
        ),
        DeValue::Float(number) => (number.as_str(), number.as_str().parse::<f64>().ok()),
        _ => return Err(None),
    };
    let fits = |number: f64| match kind {
        Kind::Number(least, most) => (least..=most).contains(&number),
        Kind::Above(limit, most) => number > limit && number <= most,
        _ => false,
    };
    match number.filter(|&number| fits(number)) {
        Some(number) => Ok(Read::Right(Value::Number(number))),
        None => Err(Some(out_of_range(key, kind, text))),
    }
}

fn read_text(
    key: &Key,
    kind: Kind,
    text: &str,
    registered: &[String],
) -> Result<Read, Option<Refused>> {
    let name = key.name;
    let as_text = || Value::Text(text.to_owned());
    let refuse = |why: &str| {
        Refused::new(
            format!("`{name}` {why}"),
            format!("expected {}", expected(key, kind)),
        )
    };
    let shown_text = shown(text);
    match kind {
        Kind::Word => Err(Some(unknown_word(key, kind, text))),
        Kind::Rule if registered.iter().any(|rule| rule == text) => {
            Ok(Read::Right(Value::Word(text.to_owned())))
        }
        Kind::Rule => Err(Some(unknown_rule(key, text, registered))),
        Kind::Name if is_name(text) => Ok(Read::Right(as_text())),
        Kind::Name => {
            let refused = Refused::new(format!("{shown_text:?} is not a name"), "not a name");
            let help = match normalised(text) {
                candidate if is_name(&candidate) => format!("write {candidate:?}: {NAME_RULE}"),
                _ => NAME_RULE.to_owned(),
            };
            Ok(Read::Usable(as_text(), refused.help(help)))
        }
        Kind::Node if text.parse::<NodeId>().is_ok() => Ok(Read::Right(as_text())),
        Kind::Node => {
            let refused = Refused::new(format!("{shown_text:?} is not a node"), "not domain/node");
            Ok(Read::Usable(
                as_text(),
                refused.help("write domain/node, such as \"hq/gate\""),
            ))
        }
        Kind::Place if is_name(text) || text.parse::<NodeId>().is_ok() => {
            Ok(Read::Right(as_text()))
        }
        Kind::Place => {
            let message = format!("{shown_text:?} is neither a domain nor a node");
            let refused = Refused::new(message, "not a name");
            Err(Some(refused.help("write \"hq\" or \"hq/gate\"")))
        }
        Kind::Path if text.is_empty() || text.contains('\0') => Err(Some(refuse("is not a path"))),
        Kind::Path => Ok(Read::Right(as_text())),
        Kind::Codec => match text.parse::<Coding>() {
            Ok(_) => Ok(Read::Right(Value::Word(text.to_owned()))),
            Err(_) => Err(Some(unknown_codec(key, kind, text))),
        },
        Kind::Text if text.is_empty() || text.contains(char::is_control) => {
            Err(Some(refuse("is not one line of text")))
        }
        Kind::Text => Ok(Read::Right(as_text())),
        Kind::Socket if text.parse::<SocketAddr>().is_ok() => Ok(Read::Right(as_text())),
        Kind::Socket => {
            let help = match text.rsplit_once(':') {
                Some((_, port)) if port.parse::<u16>().is_ok() => {
                    "listen takes an IP address of this machine; host names go to `advertise`, IPv6 into [brackets]"
                }
                _ => "add a port: \"10.0.0.5:7000\"",
            };
            let refused = refuse(&format!("{shown_text:?} is not an IP address with a port"));
            Err(Some(refused.help(help)))
        }
        Kind::HostPort => match host_and_port(text) {
            Ok(_) => Ok(Read::Right(as_text())),
            Err(why) => Err(Some(refuse(&format!("{shown_text:?} {why}")))),
        },
        Kind::Sha256 if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) => {
            Ok(Read::Right(Value::Text(text.to_ascii_lowercase())))
        }
        Kind::Sha256 => Err(Some(refuse("is not a SHA-256 fingerprint"))),
        Kind::Store => read_store(key, text),
        Kind::Steps => read_epochs(key, text),
        Kind::Duration(least, most) => match units::duration(text) {
            Ok(span) if (known(least)..=known(most)).contains(&span) => {
                Ok(Read::Right(Value::Duration(span)))
            }
            Ok(_) => Err(Some(out_of_range(key, kind, &format!("{text:?}")))),
            Err(_) if nearest(text, key.words.iter().copied()).is_some() => {
                Err(Some(unknown_word(key, kind, text)))
            }
            Err(why) => Err(Some(refuse(&format!("{shown_text:?} {why}")))),
        },
        Kind::Rate => match units::rate(text) {
            Ok(rate) => Ok(Read::Right(Value::Whole(rate))),
            Err(why) => Err(Some(refuse(&format!("{shown_text:?} {why}")))),
        },
        Kind::Clock => match units::clock(text) {
            Ok(minute) => Ok(Read::Right(Value::Whole(minute))),
            Err(why) => Err(Some(refuse(&format!("{shown_text:?} {why}")))),
        },
        Kind::Share(most) => match units::share(text) {
            Ok(share) if share * 100.0 <= most => Ok(Read::Right(Value::Number(share))),
            Ok(_) => Err(Some(out_of_range(key, kind, &format!("{text:?}")))),
            Err(why) => Err(Some(refuse(&format!("{shown_text:?} {why}")))),
        },
        _ if !key.words.is_empty() => Err(Some(unknown_word(key, kind, text))),
        _ => Err(None),
    }
}

/// A bound in a key table.
fn known(text: &str) -> std::time::Duration {
    units::duration(text).expect("bounds in the key tables are durations")
}

fn read_store(key: &Key, text: &str) -> Result<Read, Option<Refused>> {
    match text.split_once(':') {
        Some(("file", rest)) => {
            let folder = rest.strip_prefix("//").unwrap_or(rest);
            if folder.is_empty() || folder.contains('\0') {
                let message = format!("`{}` names no folder", key.name);
                return Err(Some(
                    Refused::new(message, "no folder").help("write \"file:./state\""),
                ));
            }
            Ok(Read::Right(Value::Text(format!("file:{folder}"))))
        }
        Some((scheme, rest)) if store::SCHEMES.contains(&scheme) => read_objects(scheme, rest),
        Some((scheme @ ("http" | "https"), _)) => {
            let message = format!("a store over `{scheme}:` cannot commit");
            let label = "cannot create an object only if it is absent";
            Err(Some(Refused::new(message, label).help(OTHER_STORES)))
        }
        Some((scheme, _)) if scheme.len() > 1 && is_name(scheme) => {
            let message = format!("there is no store `{scheme}:`");
            Err(Some(
                Refused::new(message, "unknown scheme").help(OTHER_STORES),
            ))
        }
        _ => {
            let message = format!("`{}` has no scheme", key.name);
            Err(Some(
                Refused::new(message, "expected \"file:FOLDER\" or a URL")
                    .help("put file: in front of the folder"),
            ))
        }
    }
}

/// What to do about a store that cannot be used.
const OTHER_STORES: &str = "write \"file:FOLDER\", or a URL with s3:, gs:, az: or abfs:";

/// An object store: a bucket or container, and perhaps a prefix.
fn read_objects(scheme: &str, rest: &str) -> Result<Read, Option<Refused>> {
    let refuse = |message: String, label: &str, help: &str| {
        Err(Some(Refused::new(message, label.to_owned()).help(help)))
    };
    let example = format!("write \"{scheme}://BUCKET/PREFIX\"");
    let place = rest.strip_prefix("//").unwrap_or_default();
    let place = place.trim_end_matches('/');
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if rest.contains(['?', '#'])
        || bucket.contains(':')
        || (bucket.contains('@') && !scheme.starts_with("abfs"))
    {
        // Not shown: it may be a secret.
        let help =
            "credentials, region and endpoint come from the environment (AWS_*, GOOGLE_*, AZURE_*)";
        return refuse(
            format!("a store's URL is {scheme}://BUCKET/PREFIX and nothing else"),
            "credentials or options in it",
            help,
        );
    }
    let plain = |part: &str| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.@".contains(letter);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    if !plain(bucket) {
        return refuse(
            format!("the store {scheme}: names no bucket"),
            "no bucket",
            &example,
        );
    }
    if !prefix.is_empty() && !prefix.split('/').all(plain) {
        let help = "use letters, digits, `-`, `_` and `.` between slashes";
        return refuse(
            "this prefix of a store is refused".into(),
            "not plain names",
            help,
        );
    }
    if !store::HAS_CLOUD {
        let message = format!("this build has no `{scheme}:`");
        let help = "build it with `--features object-store-cloud`, or write \"file:FOLDER\"";
        return refuse(message, "not built in", help);
    }
    Ok(Read::Right(Value::Text(format!("{scheme}://{place}"))))
}

fn read_epochs(key: &Key, text: &str) -> Result<Read, Option<Refused>> {
    let count = text
        .strip_suffix("epochs")
        .or_else(|| text.strip_suffix("epoch"))
        .and_then(|count| count.trim().parse::<u64>().ok());
    match count {
        Some(epochs @ 1..=EPOCHS_MAX) => Ok(Read::Right(Value::Steps(SyncEvery::Epochs(epochs)))),
        Some(_) => Err(Some(out_of_range(key, Kind::Steps, text))),
        None if text.trim().parse::<u64>().is_ok() => Err(None),
        None => {
            let message = format!("`{}` cannot be {:?}", key.name, shown(text));
            let label = format!("expected {}", expected(key, Kind::Steps));
            Err(Some(Refused::new(message, label)))
        }
    }
}

fn unknown_word(key: &Key, kind: Kind, text: &str) -> Refused {
    let message = format!("`{}` cannot be {:?}", key.name, shown(text));
    let refused = Refused::new(message, format!("expected {}", expected(key, kind)));
    match nearest(text, key.words.iter().chain(key.later).copied()) {
        Some(word) if key.words.contains(&word) => refused.help(format!("did you mean {word:?}?")),
        Some(word) => refused.help(format!("{word:?} is known, but not in this version")),
        None => refused,
    }
}

/// Suggests the nearest name for each part.
fn unknown_codec(key: &Key, kind: Kind, text: &str) -> Refused {
    let message = format!("`{}` cannot be {:?}", key.name, shown(text));
    let refused = Refused::new(message, format!("expected {}", expected(key, kind)));
    let part = |part| nearest(part, CODEC_PARTS.iter().copied()).unwrap_or(part);
    let meant: Vec<&str> = text.split('+').map(part).collect();
    let meant = meant.join("+");
    match meant.parse::<Coding>() {
        Ok(_) => refused.help(format!("did you mean {meant:?}?")),
        Err(_) => refused,
    }
}

/// What codecs are written of.
const CODEC_PARTS: &[&str] = &[
    "none", "fp16", "bf16", "int8", "topk", "snappy", "lz4", "zstd",
];

fn unknown_rule(key: &Key, text: &str, registered: &[String]) -> Refused {
    let message = format!("there is no aggregation rule {:?}", shown(text));
    let refused = Refused::new(message, "neither built in nor registered");
    let all = key.words.iter().chain(key.later).copied();
    refused.help(
        match nearest(text, all.chain(registered.iter().map(String::as_str))) {
            Some(rule) if !key.later.contains(&rule) => format!("did you mean {rule:?}?"),
            _ => format!(
                "write {}, or register the rule in the program that reads this file",
                alternatives(key.words)
            ),
        },
    )
}

fn out_of_range(key: &Key, kind: Kind, found: &str) -> Refused {
    let expected = expected(key, kind);
    let message = format!("`{}` is {}, out of its range", key.name, shown(found));
    Refused::new(message, format!("expected {expected}"))
}

/// Cuts `host:port` and says what is wrong with it.
pub(in crate::topology) fn host_and_port(text: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("has no port")?;
    let port: u16 = port.parse().map_err(|_| "has no port number")?;
    if port == 0 {
        return Err("has port 0, which cannot be dialled");
    }
    let bare = match host.strip_prefix('[') {
        Some(v6) => {
            let v6 = v6.strip_suffix(']').ok_or("lacks a closing bracket")?;
            v6.parse::<std::net::Ipv6Addr>()
                .map_err(|_| "is not an IPv6 address")?;
            v6
        }
        None if host.contains(':') => return Err("needs [brackets] around the IPv6 address"),
        None => host,
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':');
    match bare.len() {
        1..=253 if bare.bytes().all(allowed) => Ok((bare, port)),
        _ => Err("has no host name or address"),
    }
}

/// What a name becomes when it is written the way names are.
pub(in crate::topology) fn normalised(text: &str) -> String {
    let folded = text.trim().to_lowercase();
    let dashed = folded.chars().map(|c| match c {
        c if c.is_ascii_alphanumeric() => c,
        _ => '-',
    });
    dashed.collect::<String>().trim_matches('-').to_owned()
}

/// What a key expects, behind the word "expected".
pub(super) fn expected(key: &Key, kind: Kind) -> String {
    let base = match kind {
        Kind::Whole(least, most) => format!("a whole number from {least} to {most}"),
        Kind::Number(least, most) => format!("a number from {least} to {most}"),
        Kind::Above(limit, most) => format!("a number above {limit}, at most {most:e}"),
        Kind::Flag => "true or false".into(),
        Kind::Word | Kind::Rule => return alternatives(key.words),
        Kind::Codec => {
            "none, fp16, bf16, int8, topk or topk+fp16 in quotes, with +snappy, +lz4 or +zstd behind it or not".into()
        }
        Kind::Name => "a name in quotes".into(),
        Kind::Node => "a node, such as \"hq/gate\"".into(),
        Kind::Place => "a domain or a node, such as \"hq\" or \"hq/gate\"".into(),
        Kind::Path => "a path in quotes".into(),
        Kind::Text => "text in quotes".into(),
        Kind::Socket => "an address, such as \"10.0.0.5:7000\"".into(),
        Kind::HostPort => "host:port, such as \"gate.example.org:7000\"".into(),
        Kind::Sha256 => "64 hexadecimal digits in quotes".into(),
        Kind::Store => "a store, such as \"file:./state\"".into(),
        Kind::Steps => {
            "a whole number of steps from 1 to 1000000, or \"1 epoch\" (up to 1000)".into()
        }
        Kind::Duration(least, most) => format!("a duration from {least:?} to {most:?}"),
        Kind::Rate => "a rate, such as \"200 Mbit/s\"".into(),
        Kind::Clock => "a time of day, such as \"08:30\"".into(),
        Kind::Share(most) => format!("a percentage from \"0%\" to \"{most}%\""),
        Kind::List(element, ..) => format!("a list, each entry {}", expected(key, *element)),
        Kind::OneOrMore(element, _) => {
            format!("{}, or a list of such", expected(key, *element))
        }
        Kind::Table(_) => "a table".into(),
        Kind::Tables(..) => "a list of tables".into(),
    };
    match key.words {
        [] => base,
        words => format!("{base}, or {}", alternatives(words)),
    }
}

/// What stands there, behind the word "found".
pub(super) fn found(given: &DeValue<'_>) -> &'static str {
    match given {
        DeValue::String(_) => "text in quotes",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(items) if is_tables(items) => "a list of tables",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Whether a value is a table or several.
pub(super) fn is_tabular(given: &DeValue<'_>) -> bool {
    match given {
        DeValue::Table(_) => true,
        DeValue::Array(items) => is_tables(items),
        _ => false,
    }
}

/// Whether a list holds tables only, as `[[name]]` makes them.
fn is_tables(items: &DeArray<'_>) -> bool {
    !items.is_empty()
        && items
            .iter()
            .all(|item| matches!(item.get_ref(), DeValue::Table(_)))
}

/// How a value of the wrong type becomes one of the right type, where that is plain.
pub(super) fn repair(key: &Key, kind: Kind, given: &DeValue<'_>) -> Option<String> {
    let name = key.name;
    match (kind, given) {
        (
            Kind::Whole(..) | Kind::Number(..) | Kind::Above(..) | Kind::Steps,
            DeValue::String(text),
        ) if text.trim().parse::<f64>().is_ok() => Some(format!(
            "remove the quotes: {name} = {}",
            shown(text.trim())
        )),
        (Kind::Flag, DeValue::String(text)) if matches!(&**text, "true" | "false") => {
            Some(format!("remove the quotes: {name} = {text}"))
        }
        (Kind::Duration(..), DeValue::Integer(number)) => Some(format!(
            "add a unit: {name} = \"{}s\"",
            shown(number.as_str())
        )),
        (Kind::Share(_), DeValue::Float(_) | DeValue::Integer(_)) => {
            Some(format!("write a percentage: {name} = \"0.1%\""))
        }
        (Kind::Rate, DeValue::Integer(_)) => Some(format!("add a unit: {name} = \"200 Mbit/s\"")),
        (Kind::List(..), DeValue::String(text)) => {
            Some(format!("put it into a list: {name} = [{:?}]", shown(text)))
        }
        (Kind::Name | Kind::List(Kind::Name, ..), DeValue::Table(_)) if name == "nodes" => Some(
            "nodes with addresses take the place of `nodes`: a [[domain.node]] table each, with name, listen and advertise".into(),
        ),
        (Kind::Table(table), DeValue::Array(items)) if is_tables(items) => {
            Some(format!("write {} once, with single brackets", table.shown))
        }
        (Kind::Table(table), DeValue::String(_)) if table.key("kind").is_some() => {
            let DeValue::String(word) = given else {
                return None;
            };
            Some(format!("write {name} = {{ kind = {:?} }}", shown(word)))
        }
        (Kind::Table(table), _) if table.shown.starts_with('[') => {
            Some(format!("write it as {} with keys below it", table.shown))
        }
        (Kind::Table(table), _) => {
            let keys = table.keys.iter().map(|key| format!("{} = ...", key.name));
            let keys = keys.collect::<Vec<_>>().join(", ");
            Some(format!("write {name} = {{ {keys} }}"))
        }
        (Kind::Tables(table, _), DeValue::Table(_)) if table.shown.starts_with("[[") => {
            Some(format!("write {} with double brackets", table.shown))
        }
        (Kind::Tables(..), DeValue::Table(_)) => {
            Some(format!("put it into a list: {name} = [{{ ... }}]"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        assert_eq!(
            host_and_port("gate.example.org:7000"),
            Ok(("gate.example.org", 7000))
        );
        assert_eq!(
            host_and_port("[2001:db8::1]:7000"),
            Ok(("2001:db8::1", 7000))
        );
        for bad in [
            "gate",
            "gate:",
            "gate:0",
            "gate:70000",
            ":7000",
            "2001:db8::1:7000",
            "[2001:7000",
            "a b:1",
        ] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_normalised_to_lower_case_and_dashes() {
        for (given, name) in [
            ("Gate", "gate"),
            ("my node", "my-node"),
            ("a.b", "a-b"),
            (" x_1 ", "x-1"),
            ("é", ""),
        ] {
            assert_eq!(normalised(given), name);
        }
    }
}
