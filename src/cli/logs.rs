//! The log on standard error: what a line looks like, and that the same trouble over and over is one line with a count.
//!
//! A node that cannot reach its peer says so at every attempt, for days. So a warning or an error that says what one did a short while before, but for its
//! numbers, is counted and not written; the count follows a minute later with the next line, or at the end. What is remembered is bounded, and
//! so is what is written: at most so many lines a minute, whatever happens.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, JsonFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// For how long lines are counted instead of written, after one was.
const SPAN: Duration = Duration::from_secs(60);

/// Different lines that are remembered at once.
const KNOWN_MAX: usize = 128;

/// Lines that a process writes within [`SPAN`]; what comes beyond is counted as one.
const LINES_MAX: usize = 1_000;

/// What `TOMBOLO_LOG_FORMAT` may say.
const FORMAT_VARIABLE: &str = "TOMBOLO_LOG_FORMAT";

/// Lets this process log on standard error.
///
/// # Errors
/// A variable of the environment says something else than it can.
pub fn init() -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TOMBOLO_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match std::env::var(FORMAT_VARIABLE).as_deref() {
        Err(_) | Ok("" | "text") => {
            let format = Format::default();
            builder.event_format(Folded(format)).init();
        }
        Ok("json") => {
            let format = Format::default().json();
            fold().is_json = true;
            let builder = builder.fmt_fields(JsonFields::new());
            builder.event_format(Folded(format)).init();
        }
        Ok(other) => {
            return Err(format!(
                "{FORMAT_VARIABLE} is {other:?}; expected \"text\" or \"json\""
            ));
        }
    }
    Ok(())
}

/// Writes what was counted and not written yet: for the end of the process.
pub fn flush() {
    let lines = fold().flush();
    let _ = std::io::stderr().lock().write_all(lines.as_bytes());
}

/// A format that writes each line once.
struct Folded<F>(F);

impl<S, N, F> FormatEvent<S, N> for Folded<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        cx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let about = event.metadata();
        if *about.level() > Level::WARN {
            // Whoever asks for more wants all of it.
            return self.0.format_event(cx, writer, event);
        }
        let mut line = Line(format!("{} {}:", about.level(), about.target()));
        event.record(&mut line);
        let (counts, is_new) = fold().take(now(), line.0);
        writer.write_str(&counts)?;
        match is_new {
            true => self.0.format_event(cx, writer, event),
            false => Ok(()),
        }
    }
}

/// What an event says, in one line.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write;
        // A string takes whatever it is given.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// What was written lately, and how often it would have been since.
struct Fold {
    known: VecDeque<Known>,
    /// Since when `written` and `beyond` count.
    since: Option<Instant>,
    written: usize,
    beyond: u64,
    is_json: bool,
}

struct Known {
    /// Without its numbers.
    line: String,
    since: Instant,
    count: u64,
}

static FOLD: Mutex<Fold> = Mutex::new(Fold::new());

fn fold() -> MutexGuard<'static, Fold> {
    FOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fold {
    const fn new() -> Self {
        Fold {
            known: VecDeque::new(),
            since: None,
            written: 0,
            beyond: 0,
            is_json: false,
        }
    }

    /// A line is to be written: the counts that are due before it, and whether it is.
    fn take(&mut self, now: Instant, line: String) -> (String, bool) {
        let mut due = String::new();
        while let Some(oldest) = self.known.pop_front_if(|oldest| now - oldest.since >= SPAN) {
            self.tell(&mut due, oldest.count, &oldest.line);
        }
        if self.since.is_none_or(|since| now - since >= SPAN) {
            self.tell_beyond(&mut due);
            (self.since, self.written) = (Some(now), 0);
        }
        let line: String = line
            .chars()
            .map(|letter| if letter.is_ascii_digit() { '#' } else { letter })
            .collect();
        if let Some(known) = self.known.iter_mut().find(|known| known.line == line) {
            known.count += 1;
            return (due, false);
        }
        if self.written >= LINES_MAX {
            self.beyond += 1;
            return (due, false);
        }
        self.written += 1;
        if self.known.len() == KNOWN_MAX
            && let Some(oldest) = self.known.pop_front()
        {
            self.tell(&mut due, oldest.count, &oldest.line);
        }
        let (since, count) = (now, 0);
        self.known.push_back(Known { line, since, count });
        (due, true)
    }

    /// All counts that are not written yet.
    fn flush(&mut self) -> String {
        let mut due = String::new();
        while let Some(known) = self.known.pop_front() {
            self.tell(&mut due, known.count, &known.line);
        }
        self.tell_beyond(&mut due);
        due
    }

    fn tell_beyond(&mut self, due: &mut String) {
        let beyond = std::mem::take(&mut self.beyond);
        self.tell(due, beyond, "lines of other kinds, too many to write");
    }

    fn tell(&self, due: &mut String, count: u64, line: &str) {
        if count == 0 {
            return;
        }
        match self.is_json {
            true => due.push_str(&json!({ "repeated": count, "line": line }).to_string()),
            false => due.push_str(&format!("{count} times more: {line}")),
        }
        due.push('\n');
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the log of a process is about the real world"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written if these lines come so many seconds after the beginning.
    fn written(lines: &[(u64, &str)]) -> (Vec<String>, Fold) {
        let (mut fold, began) = (Fold::new(), now());
        let mut written = Vec::new();
        for (at, line) in lines {
            let (counts, is_new) = fold.take(began + Duration::from_secs(*at), (*line).to_owned());
            written.extend(counts.lines().map(str::to_owned));
            written.extend(is_new.then(|| (*line).to_owned()));
        }
        (written, fold)
    }

    /// "Repeated errors fold into one line with a count." lizardfs#272
    #[test]
    fn the_same_trouble_is_one_line_and_a_count_a_minute_later() {
        let lost = "WARN link: no answer port=4600 after=12";
        let again = "WARN link: no answer port=4601 after=13";
        let (lines, mut fold) = written(&[
            (0, lost),
            (1, again),
            (30, again),
            (31, "ERROR disk: full"),
            (59, lost),
            (61, lost),
            (62, lost),
        ]);
        assert_eq!(
            lines,
            [
                lost,
                "ERROR disk: full",
                "3 times more: WARN link: no answer port=#### after=##",
                lost,
            ]
        );
        assert_eq!(
            fold.flush(),
            "1 times more: WARN link: no answer port=#### after=##\n"
        );
        assert_eq!(fold.flush(), "", "once");
    }

    /// "Log size is bounded." concourse#7335
    #[test]
    fn a_flood_of_lines_that_all_differ_is_bounded_and_so_is_what_is_remembered() {
        let (mut fold, at) = (Fold::new(), now());
        let mut lines = 0;
        for nth in 0..100_000_u32 {
            // Letters only: numbers make no difference.
            let line: String = nth
                .to_string()
                .bytes()
                .map(|digit| char::from(digit + 49))
                .collect();
            let (counts, is_new) = fold.take(at, line);
            lines += counts.lines().count() + usize::from(is_new);
        }
        assert_eq!(lines, LINES_MAX);
        assert_eq!(fold.known.len(), KNOWN_MAX);
        let (counts, is_new) = fold.take(at + SPAN, "later".to_owned());
        assert!(is_new, "after a while it goes on");
        assert_eq!(
            counts,
            "99000 times more: lines of other kinds, too many to write\n"
        );
    }

    #[test]
    fn counts_are_json_where_the_log_is() {
        let mut fold = Fold::new();
        fold.is_json = true;
        let at = now();
        fold.take(at, "a \"b\"".to_owned());
        fold.take(at, "a \"b\"".to_owned());
        let count: serde_json::Value = serde_json::from_str(&fold.flush()).unwrap();
        assert_eq!(count, json!({ "repeated": 1, "line": "a \"b\"" }));
    }
}
