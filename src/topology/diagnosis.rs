//! Everything that is wrong with a file, told at once.
//!
//! A [`Mistake`] points at bytes of the file, says what was expected and found, and what to do next. A [`Diagnosis`] is all of them in file
//! order, printed by miette with the line and a caret, or as one JSON object a line.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteHandlerOpts,
    NamedSource, ReportHandler, SourceCode,
};
use serde_json::json;
use tombolo_core::text::{is_hidden, visible};

/// Mistakes told at most; whoever has more learns nothing from the next one.
const MISTAKES_MAX: usize = 100;

/// Lines longer than this in sum are not printed around a mistake.
const SNIPPET_BYTES_MAX: usize = 2000;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    span: Option<Range<usize>>,
    message: String,
    label: String,
    help: Option<String>,
    also: Option<(Range<usize>, String)>,
}

impl Mistake {
    /// A mistake at these bytes of the file.
    pub(super) fn at(span: &Range<usize>, message: impl Into<String>) -> Self {
        Mistake {
            span: Some(span.clone()),
            message: message.into(),
            label: "here".into(),
            help: None,
            also: None,
        }
    }

    /// A mistake of the file as a whole.
    pub(super) fn of_file(message: impl Into<String>) -> Self {
        Mistake {
            span: None,
            ..Mistake::at(&(0..0), message)
        }
    }

    /// What stands at the caret.
    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// What to do next.
    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// A second place that has to do with it.
    pub(super) fn also(mut self, span: &Range<usize>, label: impl Into<String>) -> Self {
        self.also = Some((span.clone(), label.into()));
        self
    }

    fn spans_mut(&mut self) -> impl Iterator<Item = &mut Range<usize>> {
        let also = self.also.as_mut().map(|(span, _)| span);
        self.span.iter_mut().chain(also)
    }

    /// Makes everything in its words visible: they may repeat what the file says.
    fn spell_out(&mut self) {
        let also = self.also.as_mut().map(|(_, label)| label);
        let words = [&mut self.message, &mut self.label].into_iter();
        for text in words.chain(self.help.as_mut()).chain(also) {
            *text = visible(text).into_owned();
        }
    }

    /// The first byte it points at.
    pub(super) fn start(&self) -> Option<usize> {
        self.span.as_ref().map(|span| span.start)
    }
}

/// What was found so far: all are counted, and of a flood the first in the file are kept.
#[derive(Debug, Default)]
pub(super) struct Mistakes {
    kept: Vec<Mistake>,
    dropped: usize,
}

impl Mistakes {
    pub(super) fn push(&mut self, mistake: Mistake) {
        self.kept.push(mistake);
        if self.kept.len() >= 8 * MISTAKES_MAX {
            self.shorten();
        }
    }

    /// How many were found.
    pub(super) fn len(&self) -> usize {
        self.kept.len() + self.dropped
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes back those for which `stays` does not hold.
    pub(super) fn retain(&mut self, stays: impl FnMut(&Mistake) -> bool) {
        self.kept.retain(stays);
    }

    /// Takes in what else was found.
    pub(super) fn extend(&mut self, more: Mistakes) {
        self.dropped += more.dropped;
        more.kept.into_iter().for_each(|mistake| self.push(mistake));
    }

    /// The first ones in file order, each once.
    fn shorten(&mut self) {
        self.kept.sort_by_key(Mistake::start);
        self.kept.dedup();
        self.dropped += self.kept.len().saturating_sub(MISTAKES_MAX);
        self.kept.truncate(MISTAKES_MAX);
    }
}

impl From<Mistake> for Mistakes {
    fn from(mistake: Mistake) -> Self {
        Mistakes {
            kept: vec![mistake],
            dropped: 0,
        }
    }
}

/// One mistake with its place, for those who do not print with miette.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Line, from 1; 0 if the whole file is meant.
    pub line: usize,
    /// Column in characters, from 1; 0 if the whole file is meant.
    pub column: usize,
    /// What is wrong: expected and found.
    pub message: String,
    /// What to do next; may be empty.
    pub help: String,
}

/// All mistakes of one file.
pub struct Diagnosis {
    name: String,
    mistakes: Vec<Told>,
    parts: Vec<Part>,
    untold: usize,
    /// The line, from 1, after which the file was not read.
    unread: Option<usize>,
}

impl Diagnosis {
    pub(super) fn new(name: &str, text: &str, mistakes: impl Into<Mistakes>) -> Self {
        let mut mistakes = mistakes.into();
        debug_assert!(!mistakes.is_empty(), "a diagnosis has a mistake");
        mistakes.shorten();
        let (mut mistakes, untold) = (mistakes.kept, mistakes.dropped);
        let lines = Lines::new(text);
        let spans = mistakes.iter_mut().flat_map(Mistake::spans_mut);
        spans.for_each(|span| *span = printable(span, text));
        let source = Source::new(text);
        let name = visible(name).into_owned();
        let told = |mistake: &Mistake| {
            let place = mistake.start().map(|start| lines.place(text, start));
            let (line, column) = place.unwrap_or((0, 0));
            Told {
                line,
                column,
                message: mistake.message.clone(),
                help: mistake.help.clone().unwrap_or_default(),
            }
        };
        let told: Vec<Told> = mistakes
            .iter_mut()
            .map(|mistake| {
                mistake.spell_out();
                told(mistake)
            })
            .collect();
        let shown = Arc::new(NamedSource::new(&name, source.text.clone()));
        let part = |mut mistake: Mistake| {
            let place = mistake.start().map(|start| lines.place(text, start));
            let shows = mistake.start().is_some_and(|start| lines.are_short(start));
            mistake
                .spans_mut()
                .for_each(|span| *span = source.moved(span));
            Part {
                place,
                shows,
                mistake,
                source: shown.clone(),
            }
        };
        Diagnosis {
            mistakes: told,
            parts: mistakes.into_iter().map(part).collect(),
            name,
            untold,
            unread: None,
        }
    }

    /// Says that the file was not read from this byte of its text on.
    pub(super) fn unread(mut self, text: &str, from: Option<usize>) -> Self {
        self.unread = from.map(|from| Lines::new(text).line(from));
        self
    }

    /// The file's name as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The mistakes in file order.
    pub fn mistakes(&self) -> impl Iterator<Item = &Told> {
        self.mistakes.iter()
    }

    /// One JSON object a mistake, each on a line of its own; if those are not all of them, a last one says so.
    pub fn to_json_lines(&self) -> String {
        let told = self.mistakes.iter().map(|told| {
            json!({
                "event": "mistake",
                "file": self.name,
                "line": told.line,
                "column": told.column,
                "message": told.message,
                "help": told.help,
            })
        });
        let more = (self.untold > 0 || self.unread.is_some()).then(|| {
            json!({
                "event": "more_mistakes",
                "file": self.name,
                "more": self.untold,
                "unread_after_line": self.unread,
            })
        });
        told.chain(more)
            .map(|object| format!("{object}\n"))
            .collect()
    }

    /// The report for people who have no terminal or no colours: fixed width, no escape codes.
    pub fn to_plain_text(&self) -> String {
        let theme = GraphicalTheme::unicode_nocolor();
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_width(100)
            .with_links(false)
            .without_syntax_highlighting();
        self.drawn(&handler)
    }

    /// The report for standard error: as wide as the terminal, and with colours if it has them.
    pub fn to_terminal_text(&self) -> String {
        self.drawn(&MietteHandlerOpts::new().build())
    }

    /// The heading and each mistake for itself: drawn as one report, miette would write `Error:` above each.
    fn drawn(&self, handler: &dyn ReportHandler) -> String {
        struct Drawn<'a>(&'a Part, &'a dyn ReportHandler);

        impl fmt::Display for Drawn<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.1.debug(self.0, f)
            }
        }

        let mistakes = self.parts.iter();
        let mistakes = mistakes.map(|part| format!("\n{}", Drawn(part, handler)));
        format!("{self}\n{}", mistakes.collect::<String>())
    }
}

/// The heading, `harbour.toml: 2 mistakes`; with `{:#}` one mistake a line, `harbour.toml:3:1: what is wrong (what to do)`.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            let (count, many) = (self.mistakes.len() + self.untold, self.untold > 0);
            let plural = if count == 1 { "" } else { "s" };
            write!(f, "{}: {count} mistake{plural}", self.name)?;
            if many {
                write!(f, ", the first {MISTAKES_MAX} follow")?;
            }
            return match self.unread {
                Some(line) => write!(f, "; what follows line {line} was not read"),
                None => Ok(()),
            };
        }
        for (index, told) in self.mistakes.iter().enumerate() {
            let (line_break, name) = (if index > 0 { "\n" } else { "" }, &self.name);
            write!(f, "{line_break}{name}")?;
            if told.line > 0 {
                write!(f, ":{}:{}", told.line, told.column)?;
            }
            write!(f, ": {}", told.message)?;
            if !told.help.is_empty() {
                write!(f, " ({})", told.help)?;
            }
        }
        match self.untold {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more", self.name),
        }
    }
}

/// The whole report, because that is what `main` prints of an error.
impl fmt::Debug for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_plain_text())
    }
}

impl std::error::Error for Diagnosis {}

/// One mistake as miette wants it: with the text that it points into.
#[derive(Debug)]
struct Part {
    mistake: Mistake,
    place: Option<(usize, usize)>,
    /// Whether the lines around it are short enough to print.
    shows: bool,
    source: Arc<NamedSource<String>>,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.mistake.message)?;
        match self.place {
            Some((line, column)) if !self.shows => write!(f, " (line {line}, column {column})"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Part {}

impl Diagnostic for Part {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.mistake
            .help
            .as_ref()
            .map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.shows.then_some(&*self.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let main = self.mistake.span.iter().map(|span| {
            LabeledSpan::new_primary_with_span(Some(self.mistake.label.clone()), span.clone())
        });
        let also = self
            .mistake
            .also
            .iter()
            .map(|(span, label)| LabeledSpan::new_with_span(Some(label.clone()), span.clone()));
        Some(Box::new(main.chain(also)))
    }
}

/// Puts a span inside the text, onto one line and onto whole characters, so that it can always be printed.
fn printable(span: &Range<usize>, text: &str) -> Range<usize> {
    let start = text.floor_char_boundary(span.start);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let end = text.floor_char_boundary(span.end.clamp(start, line_end));
    start..end
}

/// The text of a file with everything in it visible, and where its bytes have gone.
struct Source {
    text: String,
    /// Of each character that was spelled out: where it ended in the file, and by how much the text has grown up to there.
    grown: Vec<(usize, usize)>,
}

impl Source {
    fn new(given: &str) -> Self {
        let mut source = Source {
            text: String::with_capacity(given.len()),
            grown: Vec::new(),
        };
        let mut characters = given.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            let ends_line =
                character == '\r' && characters.peek().is_some_and(|next| next.1 == '\n');
            if ends_line || !is_hidden(character) || matches!(character, '\n' | '\t') {
                source.text.push(character);
                continue;
            }
            source.text.extend(character.escape_default());
            let end = at + character.len_utf8();
            source.grown.push((end, source.text.len() - end));
        }
        source
    }

    fn moved(&self, span: &Range<usize>) -> Range<usize> {
        let place = |at: usize| {
            let before = self.grown.partition_point(|(end, _)| *end <= at);
            at + before.checked_sub(1).map_or(0, |last| self.grown[last].1)
        };
        place(span.start)..place(span.end)
    }
}

/// Where lines start, so that finding one among many does not read the text again.
pub(super) struct Lines {
    starts: Vec<usize>,
    end: usize,
}

impl Lines {
    pub(super) fn new(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        let after = breaks.map(|(at, _)| at + 1);
        Lines {
            starts: std::iter::once(0).chain(after).collect(),
            end: text.len(),
        }
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|&start| start <= offset)
    }

    /// Line and column in characters, both from 1.
    fn place(&self, text: &str, offset: usize) -> (usize, usize) {
        let offset = text.floor_char_boundary(offset);
        let line = self.line(offset);
        let start = self.starts[line - 1];
        (line, text[start..offset].chars().count() + 1)
    }

    /// Whether the line of a byte and its neighbours can be printed.
    fn are_short(&self, offset: usize) -> bool {
        let line = self.line(offset);
        let first = self.starts[line.saturating_sub(2)];
        let end = self.starts.get(line + 1).unwrap_or(&self.end);
        end - first <= SNIPPET_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_span_is_brought_into_the_text() {
        let text = "é = 1\nb";
        for (given, shown) in [(0..1, 0..0), (0..99, 0..6), (7..99, 7..8), (50..60, 8..8)] {
            assert_eq!(printable(&given, text), shown, "{given:?}");
        }
        let lines = Lines::new(text);
        assert_eq!(lines.place(text, 7), (2, 1));
        assert_eq!(lines.place(text, 3), (1, 3));
        assert_eq!(lines.place(text, 99), (2, 2));
    }

    #[test]
    fn what_a_file_hides_is_shown_and_the_caret_still_points_at_it() {
        let text = "a = 1\r\n\u{1b}[31mbad\u{0} = 2\tx\r= 3\n";
        let at = text.find("bad").unwrap();
        let mistake = Mistake::at(&(at..at + 4), "`bad\u{0}` is wrong").help("not \u{9b}x");
        let report = Diagnosis::new("a\u{1b}.toml", text, mistake).to_plain_text();
        let hidden = |c: char| is_hidden(c) && c != '\n';
        assert!(!report.contains(hidden), "{report:?}");
        let lines: Vec<&str> = report.lines().collect();
        let line = lines
            .iter()
            .position(|line| line.contains("[31mbad"))
            .unwrap();
        assert!(lines[line].contains("\\u{1b}[31mbad\\u{0} = 2"), "{report}");
        assert!(report.contains("x\\r= 3"), "{report}");
        let column = |line: &str, what: &str| line[..line.find(what).unwrap()].chars().count();
        assert_eq!(
            column(lines[line], "bad"),
            column(lines[line + 1], "──"),
            "{report}"
        );
    }

    #[test]
    fn a_flood_of_mistakes_is_cut_and_counted() {
        let mut mistakes = Mistakes::default();
        for at in (0..2500).rev() {
            mistakes.push(Mistake::at(&(at..at + 1), "wrong"));
        }
        assert_eq!(mistakes.len(), 2500);
        assert!(mistakes.kept.len() < 8 * MISTAKES_MAX);
        let diagnosis = Diagnosis::new("a.toml", &"x".repeat(3000), mistakes);
        let columns: Vec<usize> = diagnosis.mistakes().map(|told| told.column).collect();
        assert!(columns.iter().copied().eq(1..=MISTAKES_MAX), "{columns:?}");
        assert_eq!(
            diagnosis.to_string(),
            "a.toml: 2500 mistakes, the first 100 follow"
        );
        assert!(format!("{diagnosis:#}").ends_with("\na.toml: and 2400 more"));
        let lines = diagnosis.to_json_lines();
        let last: serde_json::Value =
            serde_json::from_str(lines.lines().last().unwrap()).expect("a line is JSON");
        assert_eq!(
            (&last["event"], &last["more"]),
            (&json!("more_mistakes"), &json!(2400))
        );
    }

    #[test]
    fn json_lines_carry_place_message_and_help() {
        let mistake = Mistake::at(&(2..3), "wrong").help("do right");
        let lines = Diagnosis::new("a.toml", "x\ny", mistake).to_json_lines();
        let value: serde_json::Value =
            serde_json::from_str(lines.trim_end()).expect("a line is JSON");
        assert_eq!(
            value,
            json!({"event": "mistake", "file": "a.toml", "line": 2, "column": 1, "message": "wrong", "help": "do right"})
        );
    }
}
