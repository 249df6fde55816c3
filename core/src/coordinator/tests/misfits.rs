//! What does not fit the coordinator: a domain with another past, and a disk that takes nothing.

use super::*;
use crate::plan::Durability;

/// A commit is told only once it is written down: who holds more, or another model of the same round, comes from another run.
#[test]
fn a_domain_with_another_past_is_sent_away_naming_both_sides() {
    let at_three = || {
        let mut run = Run::new(plan(&[1, 1]));
        run.tell(Message::Start(Box::new(loaded(3)), None));
        run
    };
    let ours = loaded(3).hash;
    let holding = |round: Round, hash: Hash| {
        let mut join = join_of(&layout());
        if let Control::DomainJoin(join) = &mut join {
            (join.round, join.hash) = (round, hash);
        }
        join
    };
    for (round, hash) in [(4, Hash([9; 32])), (3, Hash([9; 32])), (900, ours)] {
        let mut run = at_three();
        let effects = run.domain(1, holding(round, hash));
        let [Effect::Tell(_, Control::Finish { reason })] = &effects[..] else {
            panic!("{effects:?}")
        };
        let both = [
            format!("{hash:?} of round {round}"),
            format!("{ours:?} of round 3"),
        ];
        assert!(both.iter().all(|side| reason.contains(side)), "{reason}");
        assert!(matches!(
            run.events.last(),
            Some(Event::TurnedAway {
                why: crate::event::Misfit::Past,
                ..
            })
        ));
    }
    // What it held before, or what every node makes by itself, is no other past.
    for (round, hash) in [(3, ours), (2, Hash([9; 32])), (0, Hash([9; 32]))] {
        let effects = at_three().domain(1, holding(round, hash));
        let sent_away = |effect: &Effect| matches!(effect, Effect::Tell(_, Control::Finish { .. }));
        assert!(!effects.iter().any(sent_away), "{effects:?}");
    }
}

/// A disk that takes nothing is told at once, whatever the deadline, with a journal or without.
#[test]
fn a_round_that_cannot_be_noted_is_not_waited_for() {
    for durability in [Durability::Resend, Durability::Journal] {
        let mut plan = plan(&[1, 1]);
        plan.round.durability = durability;
        let mut run = Run::weighed(plan);
        run.contribute(0, 0, &["d0/n0"]);
        let full = NoteError::Disk("disk full".into());
        run.tell(Message::Noted(1, d(0), 0, Err(full)));
        let record = run.last_record();
        assert_eq!(record.state, RoundState::Aborted);
        assert!(record.reason.contains("disk full"), "{}", record.reason);
        let named = |event: &Event| matches!(event, Event::DomainDropped { domain, reason, .. } if *domain == d(0) && reason.contains("disk full"));
        assert!(run.events.iter().any(named), "{:?}", run.events);
    }
}
