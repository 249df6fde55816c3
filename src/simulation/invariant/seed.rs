//! SEED-1: the same seed takes the same course.

use tombolo_core::event::Event;
use tombolo_core::time::Micros;

use super::Violation;
use crate::simulation::SimulationReport;

/// Where two runs of one simulation part ways; `None` if they do not.
pub fn differs(one: &SimulationReport, two: &SimulationReport) -> Option<Violation> {
    if one.trace_hash == two.trace_hash {
        return None;
    }
    let told = |event: Option<&(Micros, Event)>| match event {
        Some((at, event)) => format!("{at:?} {event:?}"),
        None => "nothing more".to_owned(),
    };
    let longest = one.events.len().max(two.events.len());
    let parting = (0..longest).find(|&nth| one.events.get(nth) != two.events.get(nth));
    let (at, what) = match parting {
        Some(nth) => {
            let (first, second) = (one.events.get(nth), two.events.get(nth));
            let at = first.or(second).map_or(Micros::default(), |(at, _)| *at);
            let what = format!(
                "run again with the same seed, event {nth} is {} where it was {}",
                told(second),
                told(first)
            );
            (at, what)
        }
        None => {
            let what =
                "run again with the same seed, every event is the same and the packets are not";
            (Micros::default(), what.to_owned())
        }
    };
    Some(Violation {
        law: "SEED-1",
        at,
        what,
    })
}
