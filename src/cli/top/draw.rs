//! What `tombolo top` draws: head, curve, nodes, links, what happened.

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};

use crate::cli::output::bytes;
use tombolo::control::LinkState;
use tombolo::federation::state_word;
use tombolo::observe::{LinkPicture, NodePicture, Phase, Picture, RoundPicture, WayPicture};
use tombolo_core::ids::NodeId;
use tombolo_core::membership::State;
use tombolo_core::text::visible;

/// Lines of the head, of the curve, of the last words, and of the keys.
const HEAD: u16 = 3;
const CURVE: u16 = 4;
const NOTICES: usize = 6;
const FOOT: u16 = 1;

/// Lines of a table beside its rows: a border with a title, and the names of its columns.
const AROUND: u16 = 2;

/// Links are given no more of the screen than a third.
const LINKS_SHARE: u16 = 3;

/// Where the reader is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    /// Whether the keys move the links, and not the nodes.
    links: bool,
    node: usize,
    link: usize,
}

impl Place {
    /// Moves.
    pub fn on_key(&mut self, code: KeyCode) {
        if matches!(code, KeyCode::Tab | KeyCode::BackTab) {
            self.links = !self.links;
            return;
        }
        let at = match self.links {
            true => &mut self.link,
            false => &mut self.node,
        };
        *at = match code {
            KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => at.saturating_add(10),
            KeyCode::PageUp => at.saturating_sub(10),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => *at,
        };
    }
}

/// Lines that it takes to draw everything.
pub fn height(picture: &Picture) -> usize {
    let fixed = usize::from(HEAD + CURVE + 2 * AROUND + FOOT);
    let links = picture.links.len();
    let notices = picture.notices.len().min(NOTICES) + 1;
    // As many lines as give the links all of theirs in a third.
    let rows = picture.nodes.len() + links;
    (fixed + rows + notices).max(usize::from(LINKS_SHARE) * (links + usize::from(AROUND)))
}

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, picture: &Picture, place: &mut Place) {
    let area = frame.area();
    let links = u16::try_from(picture.links.len()).unwrap_or(u16::MAX);
    let links = links
        .saturating_add(AROUND)
        .min(area.height / LINKS_SHARE)
        .max(AROUND + 1);
    let notices = picture.notices.len().min(NOTICES) as u16 + 1;
    let [head, curve, nodes, linked, said, foot] = Layout::vertical([
        Constraint::Length(HEAD),
        Constraint::Length(CURVE),
        Constraint::Min(AROUND + 1),
        Constraint::Length(links),
        Constraint::Length(notices),
        Constraint::Length(FOOT),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head_of(picture)), head);
    draw_curve(frame, picture, curve);
    draw_nodes(frame, picture, place, nodes);
    draw_links(frame, picture, place, linked);
    draw_notices(frame, picture, said);
    let keys = "q quit   up, down, page up, page down move   tab nodes or links";
    let keys = Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM));
    frame.render_widget(keys, foot);
}

// ---- the head ----

fn head_of(picture: &Picture) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let name = match picture.federation.as_str() {
        "" => "a federation".to_owned(),
        name => visible(name).to_string(),
    };
    let planned = match picture.planned {
        0 => String::new(),
        planned => format!(" of {planned}"),
    };
    let now = match (&picture.finished, picture.rounds.back()) {
        (Some(finished), _) if finished.reason.is_empty() => "ended".to_owned(),
        (Some(finished), _) => format!("ended: {}", visible(&finished.reason)),
        (None, None) => "no round yet".to_owned(),
        (None, Some(round)) => {
            let number = round.round;
            match round.elapsed_s {
                Some(_) => format!("round {number}{planned} has ended"),
                None => format!(
                    "round {number}{planned} open for {:.1} s",
                    (picture.at - round.opened).max(0.0)
                ),
            }
        }
    };
    let now = match &picture.paused {
        Some(paused) => format!("{now}, paused by {}", visible(&paused.by)),
        None => now,
    };
    let coordinator = match &picture.coordinator {
        Some(node) => format!("coordinator {node}"),
        None => "no coordinator known".to_owned(),
    };
    let totals = &picture.totals;
    vec![
        Line::from(vec![
            Span::styled(name, bold),
            Span::raw(format!("   {now}   view {}   {coordinator}", picture.epoch)),
        ]),
        Line::from(format!(
            "{} committed, {} degraded, {} aborted   {} updates counted, {} late, {} refused   {} down, {} up",
            totals.committed,
            totals.degraded,
            totals.aborted,
            totals.counted,
            totals.late,
            totals.refused,
            bytes(totals.bytes_down),
            bytes(totals.bytes_up),
        )),
        picture
            .rounds
            .iter()
            .rev()
            .find(|round| round.state.is_some())
            .map_or_else(Line::default, last_of),
    ]
}

/// How the last round ended.
fn last_of(round: &RoundPicture) -> Line<'static> {
    let word = round.state.map(state_word).unwrap_or_default();
    let mut text = format!("round {} {word}", round.round);
    if let Some(elapsed) = round.elapsed_s {
        text += &format!(" in {elapsed:.2} s");
    }
    text += &format!(", {} of {} counted", round.counted, round.asked);
    if let Some(accuracy) = round.accuracy {
        text += &format!(", accuracy {accuracy:.4}");
    }
    if let Some(loss) = round.loss {
        text += &format!(", loss {loss:.4}");
    }
    if !round.late.is_empty() {
        text += &format!("; late: {}", names(&round.late));
    }
    if !round.reason.is_empty() {
        text += &format!("; {}", visible(&round.reason));
    }
    Line::from(text)
}

fn names(nodes: &[NodeId]) -> String {
    let names: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
    names.join(", ")
}

// ---- the curve ----

fn draw_curve(frame: &mut Frame<'_>, picture: &Picture, area: Rect) {
    let accuracies = picture.rounds.iter().filter_map(|round| round.accuracy);
    let accuracies: Vec<f64> = accuracies.filter(|value| value.is_finite()).collect();
    let shown = &accuracies[accuracies.len().saturating_sub(usize::from(area.width))..];
    // A share of one, in steps that a bar can show.
    let steps = shown
        .iter()
        .map(|share| (share.clamp(0.0, 1.0) * 1000.0) as u64);
    let curve = Sparkline::default()
        .block(Block::new().borders(Borders::TOP).title("accuracy"))
        .data(steps)
        .max(1000);
    frame.render_widget(curve, area);
}

// ---- tables ----

/// The part of `count` rows that is seen, from `at` on; `at` comes back to where there is something to see.
fn seen(at: &mut usize, count: usize, area: Rect) -> std::ops::Range<usize> {
    let room = usize::from(area.height.saturating_sub(AROUND));
    *at = (*at).min(count.saturating_sub(room));
    *at..(*at + room).min(count)
}

fn title(what: &str, range: &std::ops::Range<usize>, count: usize, chosen: bool) -> Line<'static> {
    let text = match range.len() == count {
        true => format!("{count} {what}"),
        false => format!("{what} {} to {} of {count}", range.start + 1, range.end),
    };
    let style = match chosen {
        true => Style::new().add_modifier(Modifier::BOLD),
        false => Style::new(),
    };
    Line::styled(text, style)
}

fn head_row<'a>(names: impl IntoIterator<Item = &'a str>) -> Row<'a> {
    Row::new(names).style(Style::new().add_modifier(Modifier::DIM))
}

fn draw_nodes(frame: &mut Frame<'_>, picture: &Picture, place: &mut Place, area: Rect) {
    let count = picture.nodes.len();
    let range = seen(&mut place.node, count, area);
    let rows = picture.nodes.iter().skip(range.start).take(range.len());
    let rows: Vec<Row<'_>> = rows.map(|(id, node)| row_of_node(id, node)).collect();
    let widths = [
        Constraint::Length(24),
        Constraint::Length(11),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Min(10),
    ];
    let names = [
        "node", "state", "doing", "counted", "late", "refused", "loss", "why",
    ];
    let block = Block::new().borders(Borders::TOP);
    let block = block.title(title("nodes", &range, count, !place.links));
    let table = Table::new(rows, widths)
        .header(head_row(names))
        .block(block);
    frame.render_widget(table, area);
}

fn row_of_node<'a>(id: &'a NodeId, node: &'a NodePicture) -> Row<'a> {
    let (word, color) = match node.state {
        State::Active => ("active", Color::Green),
        State::Joining => ("joining", Color::Blue),
        State::Suspect => ("suspect", Color::Yellow),
        State::Restoring => ("restoring", Color::Yellow),
        State::Evicted => ("evicted", Color::Red),
        State::Left => ("left", Color::DarkGray),
    };
    let doing = match node.phase {
        Phase::Idle => "idle",
        Phase::Asked => "asked",
        Phase::Training => "training",
        Phase::Trained => "trained",
        Phase::Reported => "reported",
        Phase::Counted => "counted",
        Phase::Late => "late",
        Phase::Refused => "refused",
        Phase::Failed => "failed",
    };
    let loss = node.loss.map(|loss| format!("{loss:.4}"));
    Row::new([
        Cell::from(id.as_str()),
        Cell::from(word).style(Style::new().fg(color)),
        Cell::from(doing),
        Cell::from(node.counted.to_string()),
        Cell::from(node.late.to_string()),
        Cell::from(node.refused.to_string()),
        Cell::from(loss.unwrap_or_default()),
        Cell::from(visible(&node.reason).to_string()),
    ])
}

fn draw_links(frame: &mut Frame<'_>, picture: &Picture, place: &mut Place, area: Rect) {
    let count = picture.links.len();
    let range = seen(&mut place.link, count, area);
    let rows: Vec<Row<'_>> = picture.links[range.clone()]
        .iter()
        .map(row_of_link)
        .collect();
    let widths = [
        Constraint::Length(30),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(12),
        Constraint::Length(18),
        Constraint::Length(18),
        Constraint::Min(8),
    ];
    let names = ["link", "state", "rtt", "loss", "codec", "->", "<-", "why"];
    let block = Block::new().borders(Borders::TOP);
    let block = block.title(title("links between sites", &range, count, place.links));
    let table = Table::new(rows, widths)
        .header(head_row(names))
        .block(block);
    frame.render_widget(table, area);
}

/// What went over it, and how much smaller codecs have made that.
fn way(way: &WayPicture) -> String {
    let [plain, travelled] = way.tensors();
    let smaller = match plain > travelled && travelled > 0 {
        true => format!(" (1:{:.1})", plain as f64 / travelled as f64),
        false => String::new(),
    };
    format!("{}{smaller}", bytes(way.bytes))
}

fn row_of_link(link: &LinkPicture) -> Row<'_> {
    let color = match link.state {
        LinkState::Up => Color::Green,
        LinkState::Connecting => Color::Blue,
        LinkState::Suspect => Color::Yellow,
        LinkState::Lost => Color::Red,
    };
    let round_trip = link.round_trip_ms.map(|ms| format!("{ms:.1} ms"));
    let loss = link.heartbeat_loss;
    let loss = loss.map(|share| format!("{:.1} %", share * 100.0));
    Row::new([
        Cell::from(format!("{} - {}", link.a, link.b)),
        Cell::from(link.state.to_string()).style(Style::new().fg(color)),
        Cell::from(round_trip.unwrap_or_default()),
        Cell::from(loss.unwrap_or_default()),
        Cell::from(link.codec.as_str()),
        Cell::from(way(&link.a_to_b)),
        Cell::from(way(&link.b_to_a)),
        Cell::from(visible(&link.reason).to_string()),
    ])
}

// ---- what happened ----

fn draw_notices(frame: &mut Frame<'_>, picture: &Picture, area: Rect) {
    let skipped = picture.notices.len().saturating_sub(NOTICES);
    let lines = picture.notices.iter().skip(skipped);
    let lines: Vec<Line<'_>> = lines
        .map(|notice| Line::from(format!("{:9.2} s  {}", notice.at, visible(&notice.what))))
        .collect();
    let block = Block::new().borders(Borders::TOP).title("what happened");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
