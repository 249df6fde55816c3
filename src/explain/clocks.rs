//! Records of several processes on one clock, the coordinator's.
//!
//! Each process records by a monotonic clock of its own, and says now and then how far the clocks of its peers are from it and how wrong that may
//! be (`clock_measured`). Between two such sights the truth lies where both of them allow it, since no sound clock runs wrong by more than so
//! much. A clock that nobody beside the coordinator has seen is reached over others; bounds add up on the way.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use tombolo_core::clock::RATE_MAX;
use tombolo_core::event::Event;
use tombolo_core::ids::{NodeId, Round};

use super::Past;

/// Sights of one clock by another that are kept; of more, every other one.
const SIGHTS_MAX: usize = 8_192;

/// A time is a whole number of microseconds.
const QUANTUM_S: f64 = 1e-6;

/// Nodes of one process whose bound is told; names come from a file, which may hold anything.
const NODES_MAX: usize = 4_096;

/// Openings by which a record is known again.
const OPENINGS_MAX: usize = 64;

/// A record, and which life of the process that wrote it.
type Source = (usize, u64);

/// A moment on the coordinator's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Seconds since the first moment that was recorded.
    pub at: f64,
    /// It is off by no more, in seconds; none if nothing is known of that.
    pub bound: Option<f64>,
}

/// The other clock at a moment of one's own.
#[derive(Debug, Clone, Copy)]
struct Sight {
    at: f64,
    offset: f64,
    bound: f64,
}

/// A clock that a record goes by.
#[derive(Debug)]
struct Clock {
    nodes: BTreeSet<NodeId>,
    first: f64,
    last: f64,
    /// What only a coordinator does, and when: by this a record is known that another one repeats.
    openings: Vec<(u64, Round)>,
    coordinates: bool,
}

/// Collects what records say of clocks.
#[derive(Debug, Default)]
pub struct Survey {
    clocks: Vec<Clock>,
    by_source: BTreeMap<Source, usize>,
    by_life: BTreeMap<(NodeId, u64), usize>,
    sights: BTreeMap<(usize, (NodeId, u64)), Vec<Sight>>,
    opened: BTreeMap<Round, (usize, f64)>,
}

impl Survey {
    /// Takes the next event of a record.
    pub fn take(&mut self, record: usize, past: &Past) {
        let next = self.clocks.len();
        let clock = *self.by_source.entry((record, past.life)).or_insert(next);
        if clock == next {
            self.clocks.push(Clock {
                nodes: BTreeSet::new(),
                first: past.at,
                last: past.at,
                openings: Vec::new(),
                coordinates: false,
            });
        }
        let of = &mut self.clocks[clock];
        (of.first, of.last) = (of.first.min(past.at), of.last.max(past.at));
        match &past.event {
            Event::NodeStarted { node, life, .. } => {
                if of.nodes.len() < NODES_MAX {
                    of.nodes.insert(node.clone());
                }
                self.by_life.entry((node.clone(), *life)).or_insert(clock);
            }
            Event::RoundOpened { round, .. } => {
                of.coordinates = true;
                if of.openings.len() < OPENINGS_MAX {
                    of.openings.push((past.at.to_bits(), *round));
                }
                self.opened.insert(*round, (clock, past.at));
            }
            Event::ClockMeasured(seen) => {
                let key = (clock, (seen.peer.clone(), seen.life));
                let sights = self.sights.entry(key).or_default();
                if sights.len() == SIGHTS_MAX {
                    let mut nth = 0;
                    sights.retain(|_| {
                        nth += 1;
                        nth % 2 == 0
                    });
                }
                sights.push(Sight {
                    at: past.at,
                    offset: seen.offset_us as f64 / 1e6,
                    bound: seen.bound_us as f64 / 1e6,
                });
            }
            _ => {}
        }
    }

    /// Finds a way from each clock to the coordinator's, the one whose bounds are the least.
    pub fn settle(self) -> Clocks {
        let Survey {
            clocks,
            by_source,
            mut by_life,
            sights,
            opened,
        } = self;
        // A clock that others have seen, whose own record is not here, is still a stone to step on.
        let mut count = clocks.len();
        let mut edges: Vec<(usize, usize, Vec<Sight>)> = Vec::new();
        for ((own, peer), mut sights) in sights {
            let other = *by_life.entry(peer).or_insert(count);
            count = count.max(other + 1);
            sights.sort_by(|a, b| a.at.total_cmp(&b.at));
            if own != other {
                edges.push((own, other, sights));
            }
        }
        let repeats = repeats(&clocks);
        let is_one =
            |(index, clock): (usize, &Clock)| clock.coordinates && !repeats.contains(&index);
        let reference = clocks.iter().enumerate().position(is_one);
        let mut ways: Vec<Way> = (0..count).map(|_| Way::Lost).collect();
        if let Some(way) = ways.get_mut(reference.unwrap_or(0)) {
            *way = Way::Reference;
        }
        find(&mut ways, edges, reference.unwrap_or(0));
        repeats.iter().for_each(|clock| ways[*clock] = Way::Twice);
        let mut placed = Clocks {
            ways,
            by_source,
            opened: BTreeMap::new(),
            begin: 0.0,
            bounds: BTreeMap::new(),
        };
        placed.follow(&clocks);
        let firsts = clocks.iter().enumerate();
        let firsts = firsts.filter_map(|(clock, of)| Some(placed.way(clock, of.first)?.at));
        placed.begin = firsts.reduce(f64::min).unwrap_or(0.0);
        let opened = opened.into_iter();
        let opened =
            opened.filter_map(|(round, (clock, at))| Some((round, placed.place_on(clock, at)?.at)));
        placed.opened = opened.collect();
        for (clock, of) in clocks.iter().enumerate() {
            let bound = placed.widest(clock, of);
            let nodes = of.nodes.iter().map(|node| (node.clone(), bound));
            placed.bounds.extend(nodes);
        }
        placed
    }
}

/// How a clock is got from to the coordinator's.
#[derive(Debug)]
enum Way {
    Reference,
    /// By what is known of the next one, and over that.
    Over(usize, Vec<Sight>),
    /// Nobody has seen this life's clock: it begins when the one before had ended, which was then on the coordinator's, or later.
    After(f64),
    /// Another record tells the same.
    Twice,
    Lost,
}

/// Goes from clock to clock, the least wide way first.
fn find(ways: &mut [Way], edges: Vec<(usize, usize, Vec<Sight>)>, reference: usize) {
    let mut beside: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, (a, b, _)) in edges.iter().enumerate() {
        beside.entry(*a).or_default().push(index);
        beside.entry(*b).or_default().push(index);
    }
    let least = |sights: &[Sight]| {
        let bounds = sights.iter().map(|sight| sight.bound);
        (bounds.fold(f64::MAX, f64::min) * 1e6) as u64
    };
    let mut next = BinaryHeap::from([Reverse((0_u64, reference, None::<usize>))]);
    let mut reached = vec![false; ways.len()];
    while let Some(Reverse((width, clock, by))) = next.pop() {
        if std::mem::replace(&mut reached[clock], true) {
            continue;
        }
        if let Some(edge) = by {
            let (a, b, sights) = &edges[edge];
            ways[clock] = match *a == clock {
                true => Way::Over(*b, sights.clone()),
                // Seen from the other side.
                false => Way::Over(*a, sights.iter().map(|sight| sight.reversed()).collect()),
            };
        }
        for edge in beside.get(&clock).into_iter().flatten() {
            let (a, b, sights) = &edges[*edge];
            let other = if *a == clock { *b } else { *a };
            if !reached[other] {
                let width = width.saturating_add(least(sights));
                next.push(Reverse((width, other, Some(*edge))));
            }
        }
    }
}

/// A node that becomes coordinator writes the run's record beside its own: what is told twice counts once.
fn repeats(clocks: &[Clock]) -> BTreeSet<usize> {
    let of_nodes = clocks.iter().filter(|clock| !clock.nodes.is_empty());
    let known: BTreeSet<_> = of_nodes.flat_map(|clock| &clock.openings).collect();
    let repeats = clocks.iter().enumerate().filter(|(_, clock)| {
        let first = clock.openings.first().filter(|_| clock.nodes.is_empty());
        first.is_some_and(|first| known.contains(first))
    });
    repeats.map(|(index, _)| index).collect()
}

/// How the records' clocks lie to each other.
#[derive(Debug)]
pub struct Clocks {
    ways: Vec<Way>,
    by_source: BTreeMap<Source, usize>,
    /// When each round was opened, the last time.
    opened: BTreeMap<Round, f64>,
    begin: f64,
    bounds: BTreeMap<NodeId, Option<f64>>,
}

impl Clocks {
    /// When an event of a record happened on the coordinator's clock; none if that cannot be told, or another record tells it.
    ///
    /// What a node does for a round it does after that was opened: within the bound, that decides.
    pub fn place(&self, record: usize, past: &Past) -> Option<Place> {
        let clock = *self.by_source.get(&(record, past.life))?;
        let place = self.place_on(clock, past.at)?;
        let opened = follows(&past.event).and_then(|round| self.opened.get(&round));
        let early = opened.filter(|opened| {
            let early = **opened - place.at;
            early > 0.0 && place.bound.is_none_or(|bound| early <= bound)
        });
        Some(Place {
            at: *early.unwrap_or(&place.at),
            ..place
        })
    }

    /// Whether another record tells the same as this part of one.
    pub fn repeats(&self, record: usize, life: u64) -> bool {
        let clock = self.by_source.get(&(record, life));
        let way = clock.and_then(|clock| self.ways.get(*clock));
        matches!(way, Some(Way::Twice))
    }

    /// How far off the times of each node that has a record are at the most, in seconds; none if nothing is known of that.
    pub fn bounds(&self) -> &BTreeMap<NodeId, Option<f64>> {
        &self.bounds
    }

    fn place_on(&self, clock: usize, at: f64) -> Option<Place> {
        let place = self.way(clock, at)?;
        Some(Place {
            at: (place.at - self.begin).max(0.0),
            ..place
        })
    }

    /// Lives that nobody has seen stand behind the ones before them.
    fn follow(&mut self, clocks: &[Clock]) {
        let mut before: Option<(usize, usize)> = None;
        for ((record, _), clock) in self.by_source.clone() {
            let last = before.filter(|(of, _)| *of == record);
            if let Some((_, last)) = last.filter(|_| matches!(self.ways[clock], Way::Lost))
                && let Some(place) = self.way(last, clocks[last].last)
            {
                self.ways[clock] = Way::After(place.at);
            }
            before = Some((record, clock));
        }
    }

    fn way(&self, mut clock: usize, mut at: f64) -> Option<Place> {
        let mut bound = Some(QUANTUM_S);
        loop {
            match self.ways.get(clock)? {
                Way::Reference => return Some(Place { at, bound }),
                Way::Over(next, sights) => {
                    let (offset, off) = offset(sights, at);
                    at += offset;
                    bound = bound.map(|bound| bound + off);
                    clock = *next;
                }
                Way::After(before) => {
                    let at = at + before;
                    return Some(Place { at, bound: None });
                }
                Way::Twice | Way::Lost => return None,
            }
        }
    }

    fn widest(&self, clock: usize, of: &Clock) -> Option<f64> {
        let sights = match &self.ways[clock] {
            Way::Over(_, sights) => sights.as_slice(),
            _ => &[],
        };
        // Half-way between two sights least is known.
        let between = sights.windows(2).map(|two| (two[0].at + two[1].at) / 2.0);
        let mut widest = 0.0;
        for at in [of.first, of.last].into_iter().chain(between) {
            widest = f64::max(widest, self.way(clock, at)?.bound?);
        }
        Some(widest)
    }
}

impl Sight {
    /// Ours, as the other one would have seen it.
    fn reversed(&self) -> Sight {
        Sight {
            at: self.at + self.offset,
            offset: -self.offset,
            bound: self.bound,
        }
    }

    /// Between which offsets the truth lies some time before or after.
    fn limits(&self, at: f64) -> (f64, f64) {
        let spread = self.bound + (at - self.at).abs() * RATE_MAX;
        (self.offset - spread, self.offset + spread)
    }
}

/// The offset at a moment, and how wrong it may be: on the line between the sights beside it, within what both of them allow.
fn offset(sights: &[Sight], at: f64) -> (f64, f64) {
    let behind = sights.partition_point(|sight| sight.at <= at);
    let (before, after) = (
        behind.checked_sub(1).map(|index| sights[index]),
        sights.get(behind),
    );
    let (line, one, other) = match (before, after) {
        (Some(one), Some(other)) => {
            let share = (at - one.at) / (other.at - one.at).max(QUANTUM_S);
            let line = one.offset + share * (other.offset - one.offset);
            (line, one.limits(at), other.limits(at))
        }
        (Some(only), None) => (only.offset, only.limits(at), only.limits(at)),
        (None, Some(only)) => (only.offset, only.limits(at), only.limits(at)),
        (None, None) => return (0.0, f64::INFINITY),
    };
    let (low, high) = (one.0.max(other.0), one.1.min(other.1));
    if low > high {
        // One of the two clocks was stopped in between: all that is known is that it was.
        let (low, high) = (one.0.min(other.0), one.1.max(other.1));
        return (line, (high - line).max(line - low));
    }
    let line = line.clamp(low, high);
    (line, (high - line).max(line - low))
}

/// The round that had been opened before this could happen.
fn follows(event: &Event) -> Option<Round> {
    match event {
        Event::TrainingStarted { round, .. }
        | Event::TrainingResumed { round, .. }
        | Event::UpdateExported { round, .. }
        | Event::UpdateMeasured { round, .. }
        | Event::FoldStarted { round, .. }
        | Event::Contributed { round, .. } => Some(*round),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::event::ClockOffset;

    fn n(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn past(at: f64, event: Event) -> Past {
        Past { at, life: 0, event }
    }

    fn started(node: &str, life: u64) -> Event {
        Event::NodeStarted {
            node: n(node),
            address: String::new(),
            life,
        }
    }

    fn seen(node: &str, peer: &str, life: u64, offset_us: i64, bound_us: u64) -> Event {
        Event::ClockMeasured(ClockOffset {
            node: n(node),
            peer: n(peer),
            life,
            offset_us,
            bound_us,
        })
    }

    fn opened(round: Round) -> Event {
        Event::RoundOpened {
            round,
            epoch: 1,
            cohort: Vec::new(),
            deadline_ms: 1,
        }
    }

    fn began(round: Round) -> Event {
        let node = n("plant/c");
        Event::TrainingStarted { node, round }
    }

    fn survey(records: &[Vec<Past>]) -> Clocks {
        let mut survey = Survey::default();
        for (record, pasts) in records.iter().enumerate() {
            for past in pasts {
                survey.take(record, past);
            }
        }
        survey.settle()
    }

    fn close(found: Place, at: f64, bound: f64) {
        assert!((found.at - at).abs() < 1e-9, "{found:?}");
        assert!((found.bound.unwrap() - bound).abs() < 1e-9, "{found:?}");
    }

    /// plant/c has seen nobody but its gateway, whose own record is lost; the gateway was seen by the coordinator.
    #[test]
    fn a_clock_is_reached_over_one_whose_record_is_not_there_and_bounds_add_up() {
        let hq = vec![
            past(0.0, started("hq/a", 1)),
            past(1.0, opened(1)),
            past(10.0, seen("hq/a", "plant/g", 2, 500_000, 200)),
        ];
        let plant = vec![
            past(0.5, started("plant/c", 3)),
            past(11.0, seen("plant/c", "plant/g", 2, -300_000, 100)),
            past(11.0, began(1)),
        ];
        let clocks = survey(&[hq, plant.clone()]);
        // 11.0 here is 10.7 at the gateway, which is 10.2 at the coordinator: 0.2 s after its sight. What was recorded first was 0.5 here, which
        // is 0.3 s before the coordinator's clock began.
        let place = clocks.place(1, &plant[2]).unwrap();
        close(place, 10.5, 200e-6 + 100e-6 + 0.2 * RATE_MAX + QUANTUM_S);
        assert_eq!(clocks.bounds().len(), 2);
        // As far from both sights as it gets: at its start.
        let widest = clocks.bounds()[&n("plant/c")].unwrap();
        assert!(widest > 0.02 && widest < 0.022, "{widest}");
    }

    #[test]
    fn between_two_sights_the_truth_is_where_both_allow_it() {
        let sights = [(10.0, 1.0, 1e-3), (20.0, 1.002, 2e-3)].map(|(at, offset, bound)| Sight {
            at,
            offset,
            bound,
        });
        let (found, bound) = offset(&sights, 15.0);
        // From the first 0.994 to 1.006, from the other 0.995 to 1.009.
        assert!((found - 1.001).abs() < 1e-12 && (bound - 6e-3).abs() < 1e-12);
        let (found, bound) = offset(&sights, 30.0);
        assert!((found - 1.002).abs() < 1e-12 && (bound - 12e-3).abs() < 1e-12);
        // A clock that was stopped in between: the bound holds both.
        let sights = [(10.0, 1.0, 1e-3), (20.0, -4.0, 1e-3)].map(|(at, offset, bound)| Sight {
            at,
            offset,
            bound,
        });
        let (found, bound) = offset(&sights, 10.5);
        assert!(
            (found - 0.75).abs() < 1e-12 && bound > 4.7,
            "{found} {bound}"
        );
    }

    #[test]
    fn what_a_round_makes_a_node_do_comes_after_its_opening() {
        let hq = vec![
            past(1.0, started("hq/a", 1)),
            past(2.0, opened(7)),
            past(3.0, seen("hq/a", "plant/c", 3, 0, 900)),
        ];
        let plant = vec![
            past(1.0, started("plant/c", 3)),
            past(1.9995, began(7)),
            past(1.9, began(7)),
        ];
        let clocks = survey(&[hq, plant.clone()]);
        // Seconds since the first moment, which was 1.0.
        let within = clocks.place(1, &plant[1]).unwrap();
        assert!((within.at - 1.0).abs() < 1e-9, "{within:?}");
        let beyond = clocks.place(1, &plant[2]).unwrap();
        assert!((beyond.at - 0.9).abs() < 1e-9, "{beyond:?}");
    }

    #[test]
    fn what_cannot_be_placed_is_left_out_and_lives_follow_each_other() {
        let second = |past: &Past| Past {
            life: 1,
            ..past.clone()
        };
        let hq = vec![
            past(0.0, started("hq/a", 1)),
            past(5.0, opened(1)),
            second(&past(0.5, started("hq/a", 9))),
            second(&past(2.0, opened(2))),
        ];
        let alone = vec![past(0.0, started("plant/c", 3))];
        let clocks = survey(&[hq.clone(), alone.clone()]);
        assert_eq!(clocks.place(1, &alone[0]), None);
        let (at, bound) = (7.0, None);
        assert_eq!(clocks.place(0, &hq[3]), Some(Place { at, bound }));
    }

    /// Anybody may have written a record: one in which each line seems to be of another life is placed like any other.
    #[test]
    fn however_many_lives_a_record_has_they_follow_each_other() {
        const LIVES: u64 = 50_000;
        let mut survey = Survey::default();
        survey.take(0, &past(1.0, started("hq/a", 1)));
        survey.take(0, &past(1.0, opened(1)));
        for life in 1..=LIVES {
            let (at, event) = (1.0, opened(life + 1));
            survey.take(0, &Past { at, life, event });
        }
        let clocks = survey.settle();
        let last = Past {
            life: LIVES,
            ..past(1.0, began(7))
        };
        let place = clocks.place(0, &last).unwrap();
        assert_eq!((place.at, place.bound), (LIVES as f64, None));
    }

    /// A node that is promoted goes on in the run's record, which does not say again whose clock that is.
    #[test]
    fn what_two_records_tell_counts_once() {
        let promoted = vec![
            past(1.0, started("plant/g", 5)),
            past(9.0, opened(4)),
            past(9.5, opened(5)),
        ];
        let run = promoted[1..].to_vec();
        let clocks = survey(&[run.clone(), promoted.clone()]);
        assert_eq!(clocks.place(0, &run[0]), None);
        assert!(clocks.place(1, &promoted[1]).is_some());
    }
}
