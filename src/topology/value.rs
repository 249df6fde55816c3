//! What a file says after reading: every key with a value of its kind, its place, and whether it was given or is the default.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use tombolo_core::plan::SyncEvery;

/// Bytes of the file.
pub(super) type Span = Range<usize>;

/// A value of a key's kind.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Whole(u64),
    Number(f64),
    Flag(bool),
    /// One of the key's words; for a rule also a registered name.
    Word(String),
    /// Names, addresses, paths.
    Text(String),
    Duration(Duration),
    Steps(SyncEvery),
    List(Vec<Item>),
    Section(Section),
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub value: Value,
    pub span: Span,
}

impl Item {
    /// The text of a name, address or path.
    pub(super) fn text(&self) -> &str {
        match &self.value {
            Value::Text(text) => text,
            _ => unreachable!("the key's kind is text"),
        }
    }

    /// The table.
    pub(super) fn section(&self) -> &Section {
        match &self.value {
            Value::Section(section) => section,
            _ => unreachable!("the key's kind is a table"),
        }
    }
}

/// What one key holds.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub item: Item,
    /// Where the key stands; the table's head for a default.
    pub key: Span,
    /// Whether the file says it, rightly.
    pub given: bool,
}

/// A table after reading. A key with a default is always there; asking a key for another kind than its own is a bug and panics.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub span: Span,
    pub entries: BTreeMap<&'static str, Entry>,
    /// Keys that are given, but wrong.
    pub wrong: BTreeSet<&'static str>,
}

impl Section {
    /// A key that may be absent.
    pub(super) fn find(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Whether the file gives this key wrongly, so that nothing can be said about what depends on it.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        self.wrong.contains(key)
    }

    /// Whether the file gives this key.
    pub(super) fn gives(&self, key: &str) -> bool {
        self.find(key).is_some_and(|entry| entry.given)
    }

    /// Where the value stands, or else the table's head.
    pub(super) fn place(&self, key: &str) -> Span {
        self.find(key)
            .map_or(self.span.clone(), |entry| entry.item.span.clone())
    }

    pub(super) fn value(&self, key: &str) -> &Value {
        &self
            .find(key)
            .unwrap_or_else(|| unreachable!("{key} has a default"))
            .item
            .value
    }

    pub(super) fn whole(&self, key: &str) -> u64 {
        match self.value(key) {
            Value::Whole(number) => *number,
            other => unreachable!("{key} is a whole number, not {other:?}"),
        }
    }

    pub(super) fn number(&self, key: &str) -> f64 {
        match self.value(key) {
            Value::Number(number) => *number,
            other => unreachable!("{key} is a number, not {other:?}"),
        }
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        match self.value(key) {
            Value::Flag(flag) => *flag,
            other => unreachable!("{key} is true or false, not {other:?}"),
        }
    }

    pub(super) fn word(&self, key: &str) -> &str {
        match self.value(key) {
            Value::Word(word) => word,
            other => unreachable!("{key} is a word, not {other:?}"),
        }
    }

    pub(super) fn duration(&self, key: &str) -> Duration {
        match self.value(key) {
            Value::Duration(span) => *span,
            other => unreachable!("{key} is a duration, not {other:?}"),
        }
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.find(key).map(|entry| entry.item.text())
    }

    pub(super) fn section(&self, key: &str) -> &Section {
        match self.value(key) {
            Value::Section(section) => section,
            other => unreachable!("{key} is a table, not {other:?}"),
        }
    }

    /// The elements of a list; none if the key is absent.
    pub(super) fn list(&self, key: &str) -> &[Item] {
        match self.find(key).map(|entry| &entry.item.value) {
            None => &[],
            Some(Value::List(items)) => items,
            Some(other) => unreachable!("{key} is a list, not {other:?}"),
        }
    }
}

/// Whether two values say the same, wherever they stand.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Whole(a), Value::Whole(b)) => a == b,
        (Value::Number(a), Value::Number(b)) => a == b,
        (Value::Flag(a), Value::Flag(b)) => a == b,
        (Value::Word(a), Value::Word(b)) | (Value::Text(a), Value::Text(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Steps(a), Value::Steps(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a.value, &b.value))
        }
        _ => false,
    }
}
