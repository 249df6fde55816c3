//! What is wrong when the text is not TOML, in words of ours. The parser's own words are for its maintainers.

use std::collections::BTreeSet;
use std::ops::Range;

use toml_parser::decoder::Encoding;
use toml_parser::parser::{EventReceiver, RecursionGuard, ValidateWhitespace, parse_document};
use toml_parser::{ErrorSink, ParseError, Raw, Source, Span};

use super::TOO_MUCH;
use super::diagnosis::{Lines, Mistake, Mistakes};
use super::reader::shown;

/// Looking for the first of two equal keys reads backwards through the file.
const SEARCHES_MAX: usize = 100;

/// What is not closed makes all that follows a part of it.
const LIST: &str = "this list is not well formed";
const TABLE: &str = "this table is not well formed";

/// Words and signs of a file: more than the largest topology has. So many that each costs a byte or two is none.
const TOKENS_MAX: usize = 2_000_000;

/// Errors of the parser after which a text is no topology: each takes memory, and nobody reads so many.
const ERRORS_MAX: usize = 1000;

/// Bytes of the line in which reading ends that are still read.
const LINE_MAX: usize = 1000;

/// How deep tables and lists may lie in each other; the parser's own limit.
const DEPTH_MAX: u32 = 80;

/// Where a text should not be read further, because it is full of errors by then; `None` if all of it is worth it.
///
/// # Errors
///
/// It cannot be a topology at all.
pub(super) fn cut(text: &str) -> Result<Option<usize>, Box<Mistake>> {
    let source = Source::new(text);
    if source.lex().nth(TOKENS_MAX).is_some() {
        let message = format!("the file holds more than {TOKENS_MAX} words and signs");
        return Err(Box::new(Mistake::of_file(message).help(TOO_MUCH)));
    }
    let (mut found, mut last) = (0, None);
    let mut count = |error: ParseError| {
        found += 1;
        if found >= ERRORS_MAX && last.is_none() {
            last = error.unexpected().map(|span| span.end());
        }
    };
    let mut values = Values(text);
    let mut spaces = ValidateWhitespace::new(&mut values, source);
    let mut depth = RecursionGuard::new(&mut spaces, DEPTH_MAX);
    parse_document(&source.lex().into_vec(), &mut depth, &mut count);
    let after = |at: usize| {
        let at = text.ceil_char_boundary(at);
        // A whole line if it is a line of people's.
        let rest = text[at..].bytes().take(LINE_MAX);
        at + rest.take_while(|byte| *byte != b'\n').count()
    };
    Ok(last.map(after).filter(|end| *end < text.len()))
}

/// Judges keys and values on the way, and keeps none of them.
struct Values<'a>(&'a str);

impl<'a> Values<'a> {
    fn raw(&self, span: Span, encoding: Option<Encoding>) -> Raw<'a> {
        let raw = self.0.get(span.start()..span.end()).unwrap_or_default();
        Raw::new_unchecked(raw, encoding, span)
    }
}

impl EventReceiver for Values<'_> {
    fn simple_key(&mut self, span: Span, kind: Option<Encoding>, error: &mut dyn ErrorSink) {
        self.raw(span, kind).decode_key(&mut (), error);
    }

    fn scalar(&mut self, span: Span, kind: Option<Encoding>, error: &mut dyn ErrorSink) {
        let _ = self.raw(span, kind).decode_scalar(&mut (), error);
    }
}

/// Mistakes of syntax, and whether the tree behind them may have holes.
pub(super) struct Syntax {
    pub mistakes: Mistakes,
    /// The lines, from 1, that cannot be read.
    pub lines: BTreeSet<usize>,
    pub holes: bool,
    /// From here on the parser no longer knows in which table it is.
    pub lost_from: usize,
}

/// Turns the parser's errors into mistakes, one a line: a line that cannot be read tends to give several.
pub(super) fn mistakes(text: &str, lines: &Lines, errors: &[toml::de::Error]) -> Syntax {
    let mut found = Syntax {
        mistakes: Mistakes::default(),
        lines: BTreeSet::new(),
        holes: false,
        lost_from: usize::MAX,
    };
    let mut last: Option<(usize, &str)> = None;
    let mut errors: Vec<_> = errors
        .iter()
        .map(|error| (error.span().unwrap_or(0..0), error.message()))
        .collect();
    errors.sort_by_key(|(span, _)| span.start);
    for (span, message) in errors {
        if message.starts_with("duplicate key") {
            let search = found.mistakes.len() < SEARCHES_MAX;
            found.lines.insert(lines.line(span.start));
            found.mistakes.push(repeated(text, &span, search));
            continue;
        }
        found.holes = true;
        let line = lines.line(span.start);
        let (said, help) = words(message, span.is_empty());
        let echo = last
            .is_some_and(|(above, before)| line == above || (line == above + 1 && before == said));
        last = Some((line, said));
        if echo || span.start >= found.lost_from {
            continue;
        }
        if matches!(said, LIST | TABLE) {
            found.lost_from = span.start;
        }
        found.lines.insert(line);
        let mistake = Mistake::at(&span, said).label("not TOML from here");
        found.mistakes.push(mistake.help(help));
    }
    found
}

/// A key or table that was there before.
fn repeated(text: &str, span: &Range<usize>, search: bool) -> Mistake {
    let name = text.get(span.clone()).unwrap_or_default();
    let message = format!("`{}` is given twice", shown(name));
    let mistake = Mistake::at(span, message).label("given again");
    let help = "remove one of the two";
    match search.then(|| earlier(text, name, span.start)).flatten() {
        Some(first) => mistake.also(&first, "first given here").help(help),
        None => mistake.help(help),
    }
}

/// The nearest line above that sets the key or opens the table.
fn earlier(text: &str, name: &str, before: usize) -> Option<Range<usize>> {
    let line_start = text[..before].rfind('\n').map_or(0, |at| at + 1);
    let head = text[line_start..before].trim_start().starts_with('[');
    let mut end = line_start;
    while end > 0 {
        let start = text[..end - 1].rfind('\n').map_or(0, |at| at + 1);
        let line = &text[start..end];
        let trimmed = line.trim_start();
        let key = trimmed.trim_start_matches('[').trim_start();
        let opens = trimmed.starts_with('[');
        let rest = key.strip_prefix(name).map(str::trim_start);
        let sets = rest.is_some_and(|rest| rest.starts_with(if head { ']' } else { '=' }));
        if sets && opens == head {
            let at = start + (line.len() - key.len());
            return Some(at..at + name.len());
        }
        if opens && !head {
            return None;
        }
        end = start;
    }
    None
}

/// What to say instead of the parser's message, and what to do.
fn words(message: &str, nothing: bool) -> (&'static str, &'static str) {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| message.starts_with(prefix));
    if starts(&["missing value", "key with no value"])
        || (nothing && starts(&["string values must be quoted"]))
    {
        ("this key has no value", "write key = value")
    } else if starts(&["string values must be quoted"]) {
        ("this text has no quotes", "put it in quotes, \"like this\"")
    } else if starts(&[
        "unclosed array table",
        "unclosed table",
        "missing table open",
    ]) {
        (
            "this table's head is not closed",
            "write [name], or [[name]] for one of several",
        )
    } else if starts(&[
        "unclosed array",
        "missing comma between array",
        "extra comma in array",
        "unexpected `=` in array",
        "missing array",
    ]) {
        (
            LIST,
            "write [\"a\", \"b\"]: values with commas between them, and a closing bracket before the next key",
        )
    } else if starts(&[
        "unclosed inline",
        "missing comma between key",
        "extra comma in inline",
        "missing inline",
        "missing key for inline",
        "missing assignment",
        "extra assignment",
        "invalid inline",
    ]) {
        (
            TABLE,
            "write { a = 1, b = 2 }: keys and values with commas between them, and a closing brace",
        )
    } else if starts(&[
        "invalid basic",
        "invalid literal",
        "invalid multi-line",
        "missing opening quote",
        "missing escaped",
        "too few unicode",
    ]) {
        (
            "this text in quotes is not well formed",
            "close the quotes on the same line; write a backslash as \\\\",
        )
    } else if starts(&[
        "unexpected leading",
        "redundant",
        "unexpected sign",
        "`_` may",
        "integers with",
        "radix",
    ]) {
        (
            "this is not a number",
            "write it without leading zeros or signs, such as 20",
        )
    } else if starts(&["invalid unquoted key", "unquoted keys", "keys cannot"]) {
        (
            "this is not a key",
            "keys are lower-case letters, digits and underscores",
        )
    } else if starts(&["cannot recurse", "recursion"]) {
        (
            "this is nested too deeply",
            "no key of a topology needs more than a few levels",
        )
    } else if starts(&["cannot extend"]) {
        (
            "this opens a table under a key that already has a value",
            "give the key once, as a table or as a value",
        )
    } else if starts(&["carriage return"]) {
        (
            "a carriage return stands alone here",
            "end lines with a line feed",
        )
    } else {
        (
            "this is not TOML",
            "a line is key = value, [table], [[table]] or # comment",
        )
    }
}
