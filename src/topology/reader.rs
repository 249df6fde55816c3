//! From TOML to checked values: walks the parsed file along the key tables and collects every mistake on the way.
//!
//! It judges one value at a time. What needs two values (a quorum and the nodes) is judged in `build`.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnosis::{Mistake, Mistakes};
use super::keys::{self, Key, Kind, Stage, Table};
use super::value::{Entry, Item, Section, Span, Value, same};

mod scalar;
mod suggest;

pub(super) use scalar::{host_and_port, normalised};
pub(super) use suggest::{nearest, shown};

/// Suggestions cost time, and nobody reads more than these.
const SUGGESTIONS_MAX: usize = 100;

/// Reads values and remembers mistakes.
pub(super) struct Reader<'a> {
    /// The tables of the whole file.
    pub root: &'static Table,
    /// Aggregation rules that the program brings.
    pub registered: &'a [String],
    /// Whether the tree may lack what the file holds, because some lines could not be read.
    pub holes: bool,
    pub mistakes: Mistakes,
}

impl Reader<'_> {
    /// Reads the whole file.
    pub(super) fn file(&mut self, file: &DeTable<'_>) -> Section {
        self.table(self.root, file, &(0..0))
    }

    /// Reads one table.
    fn table(&mut self, table: &'static Table, given: &DeTable<'_>, span: &Span) -> Section {
        let mut section = Section {
            span: span.clone(),
            entries: BTreeMap::new(),
            wrong: BTreeSet::new(),
        };
        for (name, value) in given.iter() {
            let Some(key) = table.key(name.get_ref()) else {
                let is_table = scalar::is_tabular(value.get_ref());
                self.unknown_key(table, name.get_ref(), is_table, &name.span());
                continue;
            };
            match self.key(key, &name.span(), value) {
                Some(value_read) => {
                    let entry = Entry {
                        item: Item {
                            value: value_read,
                            span: value.span(),
                        },
                        key: name.span(),
                        given: true,
                    };
                    section.entries.insert(key.name, entry);
                }
                None => {
                    section.wrong.insert(key.name);
                }
            }
        }
        for key in table.keys {
            if section.entries.contains_key(key.name) {
                continue;
            }
            if let Some(default) = key.default {
                let entry = Entry {
                    item: Item {
                        value: default_value(key, default, span),
                        span: span.clone(),
                    },
                    key: span.clone(),
                    given: false,
                };
                section.entries.insert(key.name, entry);
            } else if key.required && !section.is_wrong(key.name) && !self.holes {
                self.mistakes.push(missing_key(table, key, span));
            }
        }
        section
    }

    /// Reads one key of a table, as far as it is built.
    fn key(
        &mut self,
        key: &'static Key,
        name: &Span,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Value> {
        if key.stage == Stage::Later {
            self.mistakes.push(
                Mistake::at(name, format!("`{}` is not in this version", key.name))
                    .label("known, but not built yet")
                    .help("remove it"),
            );
            return None;
        }
        let read = self.value(key, key.kind, value)?;
        let default = key.default.filter(|_| key.stage == Stage::DefaultOnly);
        match default {
            Some(default) if !same(&read, &default_value(key, default, name)) => {
                let message = format!("`{}` other than {default} is not in this version", key.name);
                self.mistakes.push(
                    Mistake::at(&value.span(), message)
                        .label("known, but not built yet")
                        .help(format!("remove the key or write {} = {default}", key.name)),
                );
                None
            }
            _ => Some(read),
        }
    }

    /// Reads a value as one of the key's words or as the kind given.
    fn value(
        &mut self,
        key: &'static Key,
        kind: Kind,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Value> {
        let span = value.span();
        match (kind, value.get_ref()) {
            (_, DeValue::String(text)) if key.words.contains(&&**text) => {
                Some(Value::Word(text.to_string()))
            }
            (_, DeValue::String(text)) if is_later(key, text) => {
                let message = format!("`{} = {text:?}` is not in this version", key.name);
                let mistake = Mistake::at(&span, message).label("known, but not built yet");
                self.mistakes.push(match key.words {
                    [] => mistake,
                    words => mistake.help(format!("write {}", alternatives(words))),
                });
                None
            }
            (Kind::Table(table), DeValue::Table(given)) => {
                Some(Value::Section(self.table(table, given, &span)))
            }
            (Kind::Tables(table, most), DeValue::Array(items)) => {
                self.count(key, &span, items.len(), 0, most)?;
                let mut sections = Vec::new();
                for item in items.iter() {
                    match item.get_ref() {
                        DeValue::Table(given) => sections.push(Item {
                            value: Value::Section(self.table(table, given, &item.span())),
                            span: item.span(),
                        }),
                        other => {
                            self.wrong_type(key, kind, other, &item.span());
                            return None;
                        }
                    }
                }
                Some(Value::List(sections))
            }
            (Kind::List(element, least, most), DeValue::Array(items)) => {
                self.count(key, &span, items.len(), least, most)?;
                let read: Vec<Item> = items
                    .iter()
                    .filter_map(|item| {
                        let value = self.value(key, *element, item)?;
                        Some(Item {
                            value,
                            span: item.span(),
                        })
                    })
                    .collect();
                (read.len() == items.len()).then_some(Value::List(read))
            }
            (Kind::OneOrMore(element, most), DeValue::Array(_)) => {
                self.value(key, Kind::List(element, 1, most), value)
            }
            (Kind::OneOrMore(element, _), _) => {
                let value = self.value(key, *element, value)?;
                Some(Value::List(vec![Item { value, span }]))
            }
            (_, given) => match scalar::read(key, kind, given, self.registered) {
                Ok(scalar::Read::Right(value)) => Some(value),
                Ok(scalar::Read::Usable(value, refused)) => {
                    self.mistakes.push(refused.at(&span));
                    Some(value)
                }
                Err(Some(refused)) => {
                    self.mistakes.push(refused.at(&span));
                    None
                }
                Err(None) => {
                    self.wrong_type(key, kind, given, &span);
                    None
                }
            },
        }
    }

    fn count(
        &mut self,
        key: &Key,
        span: &Span,
        found: usize,
        least: usize,
        most: usize,
    ) -> Option<()> {
        if (least..=most).contains(&found) {
            return Some(());
        }
        let wanted = match (least, most) {
            (least, most) if least == most => format!("exactly {least}"),
            (0, most) => format!("at most {most}"),
            (least, most) => format!("from {least} to {most}"),
        };
        self.mistakes.push(
            Mistake::at(
                span,
                format!("`{}` holds {found} entries, expected {wanted}", key.name),
            )
            .label(format!("expected {wanted}")),
        );
        None
    }

    fn wrong_type(&mut self, key: &Key, kind: Kind, given: &DeValue<'_>, span: &Span) {
        let (expected, found) = (scalar::expected(key, kind), scalar::found(given));
        let mistake = Mistake::at(
            span,
            format!("`{}`: expected {expected}, found {found}", key.name),
        )
        .label(format!("this is {found}"));
        self.mistakes.push(match scalar::repair(key, kind, given) {
            Some(help) => mistake.help(help),
            None => mistake,
        });
    }

    fn unknown_key(&mut self, table: &'static Table, name: &str, is_table: bool, span: &Span) {
        let mistake = Mistake::at(
            span,
            format!("{} has no key `{}`", table.shown, shown(name)),
        )
        .label("unknown key");
        let help = (self.mistakes.len() < SUGGESTIONS_MAX)
            .then(|| suggest::for_key(self.root, table, name, is_table));
        self.mistakes.push(match help {
            Some(help) => mistake.help(help),
            None => mistake,
        });
    }
}

/// Whether every part of a value such as `topk+fp16` is a word of the contract that is not built.
fn is_later(key: &Key, text: &str) -> bool {
    !key.later.is_empty() && text.split('+').all(|part| key.later.contains(&part))
}

/// `"a", "b" or "c"`.
fn alternatives(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => format!("{one:?}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(|word| format!("{word:?}")).collect();
            format!("{} or {last:?}", first.join(", "))
        }
    }
}

fn missing_key(table: &Table, key: &Key, span: &Span) -> Mistake {
    if std::ptr::eq(table, &keys::FILE) {
        let head = match key.kind {
            Kind::Tables(..) => format!("[[{}]]", key.name),
            _ => format!("[{}]", key.name),
        };
        return Mistake::of_file(format!("there is no {head}")).help(format!(
            "add {head} with its name: {}",
            suggest::sentence(key.doc)
        ));
    }
    Mistake::at(span, format!("{} has no `{}`", table.shown, key.name))
        .label(format!("needs `{}`", key.name))
        .help(format!(
            "add `{}`: {}",
            key.name,
            suggest::sentence(key.doc)
        ))
}

/// The value that a key's default text stands for.
fn default_value(key: &'static Key, default: &str, span: &Span) -> Value {
    let parsed = DeValue::parse(default).expect("every default is TOML: a test reads them all");
    let mut reader = Reader {
        root: &keys::FILE,
        registered: &[],
        holes: false,
        mistakes: Mistakes::default(),
    };
    let mut value = reader
        .value(key, key.kind, &parsed)
        .expect("every default is of its key's kind: a test reads them all");
    relocate(&mut value, span);
    value
}

/// Moves a default to the place of the table that lacks the key.
fn relocate(value: &mut Value, span: &Span) {
    match value {
        Value::List(items) => {
            for item in items {
                item.span = span.clone();
                relocate(&mut item.value, span);
            }
        }
        Value::Section(section) => {
            section.span = span.clone();
            for entry in section.entries.values_mut() {
                entry.given = false;
                entry.key = span.clone();
                entry.item.span = span.clone();
                relocate(&mut entry.item.value, span);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_table(table: &'static Table, visit: &mut dyn FnMut(&'static Table)) {
        visit(table);
        for key in table.keys {
            if let Kind::Table(inner) | Kind::Tables(inner, _) = key.kind {
                each_table(inner, visit);
            }
        }
    }

    #[test]
    fn every_default_is_read_without_a_mistake() {
        let mut seen = 0;
        each_table(&keys::FILE, &mut |table| {
            for key in table.keys {
                if let Some(default) = key.default {
                    default_value(key, default, &(0..0));
                    seen += 1;
                }
            }
        });
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn a_table_names_each_key_once_and_every_key_has_a_sentence() {
        each_table(&keys::FILE, &mut |table| {
            let names: BTreeSet<&str> = table.keys.iter().map(|key| key.name).collect();
            assert_eq!(names.len(), table.keys.len(), "{}", table.shown);
            for key in table.keys {
                assert!(key.doc.ends_with('.'), "{} {}", table.shown, key.name);
                assert!(!(key.required && key.default.is_some()), "{}", key.name);
            }
        });
    }
}
