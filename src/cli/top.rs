//! `tombolo top [RUNDIR]`.

mod draw;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::output::{fail, print_line};
use super::status::run_folder;
use super::{Common, Exit, Format};
use draw::{Place, draw};
use tombolo::observe::{Bounds, Follower, Picture};

/// How long a key is waited for; when none comes, the record is looked at.
const KEY: Duration = Duration::from_millis(250);

/// Keys after which it is looked at all the same.
const KEYS: u32 = 8;

/// What is drawn where there is no terminal to draw on.
const WIDTH: u16 = 120;
const HEIGHT_MAX: usize = 400;

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// The state folder of the run; default: the one of --state, or ./state.
    folder: Option<PathBuf>,
    /// Print how it stands, once.
    #[arg(long)]
    once: bool,
}

impl Top {
    /// Shows the picture until told to stop.
    pub fn run(&self, common: &Common) -> Exit {
        let folder = run_folder(common, self.folder.as_deref());
        let mut follower = match Follower::open(&folder, Bounds::LIVE) {
            Ok(follower) => follower,
            Err(error) => {
                fail(common, &error.to_string());
                return Exit::Failed;
            }
        };
        if common.format == Format::Json {
            print_line(follower.picture());
            return Exit::Done;
        }
        if self.once || !io::stdout().is_terminal() {
            say!("{}", text(follower.picture()));
            return Exit::Done;
        }
        let shown = show(&mut follower, &folder);
        ratatui::restore();
        match shown {
            Ok(exit) => exit,
            Err(error) => {
                fail(common, &format!("the view of the run ended: {error}"));
                Exit::Failed
            }
        }
    }
}

/// Draws until a key or a signal ends it; the terminal is given back by the caller.
fn show(follower: &mut Follower, folder: &Path) -> io::Result<Exit> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, ended.clone())?;
    }
    let mut terminal: DefaultTerminal = ratatui::try_init()?;
    let mut place = Place::default();
    let mut keys = 0;
    loop {
        terminal.draw(|frame| draw(frame, follower.picture(), &mut place))?;
        if ended.load(Ordering::Relaxed) {
            return Ok(Exit::Terminated);
        }
        let pressed = event::poll(KEY)?;
        if pressed
            && let Input::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('c') if control => return Ok(Exit::Interrupted),
                KeyCode::Char('q') | KeyCode::Esc => return Ok(Exit::Done),
                code => place.on_key(code),
            }
        }
        keys += 1;
        if !pressed || keys >= KEYS {
            keys = 0;
            let said = format!("the record in {}", folder.display());
            follower
                .look()
                .map_err(|error| io::Error::new(error.kind(), format!("{said}: {error}")))?;
        }
    }
}

/// Everything at once, for a file or a pipe.
fn text(picture: &Picture) -> String {
    let height = draw::height(picture).min(HEIGHT_MAX);
    let backend = TestBackend::new(WIDTH, u16::try_from(height).unwrap_or(u16::MAX));
    let Ok(mut terminal) = Terminal::new(backend);
    let Ok(_) = terminal.draw(|frame| draw(frame, picture, &mut Place::default()));
    let buffer = terminal.backend().buffer();
    let cells = buffer.content().chunks(usize::from(WIDTH));
    let lines = cells.map(|line| {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}
