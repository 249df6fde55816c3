//! A user amends the topology: everybody is asked, and one who does not agree is enough.

use super::*;

const AHEAD: Hash = Hash([9; 32]);

const AMENDMENT: Amendment = Amendment {
    configuration: Hash([8; 32]),
    topology: AHEAD,
};

impl Run {
    fn amend(&mut self, number: u64) -> Vec<Effect> {
        self.tell(Message::Order(
            number,
            Order {
                wish: Wish::Amend(AMENDMENT),
                by: "ada".into(),
                unix: 0,
            },
        ))
    }

    /// Round 1 is being committed, and both nodes of the one domain are there.
    fn of_two() -> Self {
        let mut run = Run::committing(plan(&[2]));
        let standing = Control::Standing {
            node: "d0/n1".parse().unwrap(),
            word: Word::Active,
        };
        run.tell(Message::Domain("d0/n0".parse().unwrap(), standing));
        run
    }

    fn answers(&mut self, domain: usize, node: &str, objection: Option<&str>) -> Vec<Effect> {
        let from = format!("d{domain}/n0").parse::<NodeId>().unwrap();
        let agreed = Control::MemberAgreed {
            node: node.parse().unwrap(),
            topology: AHEAD,
            objection: objection.map(Into::into),
        };
        self.tell(Message::Domain(from, agreed))
    }
}

fn answer(effects: &[Effect], number: u64) -> Option<OrderAnswer> {
    effects.iter().find_map(|effect| match effect {
        Effect::Ordered(of, answer) if *of == number => Some(answer.clone()),
        _ => None,
    })
}

fn ask(domain: &str) -> Effect {
    Effect::Tell(domain.parse().unwrap(), Control::Amend(AHEAD))
}

#[test]
fn all_agree_and_the_run_goes_on_by_it_behind_the_open_round() {
    let mut run = Run::of_two();
    let effects = run.amend(1);
    assert_eq!(effects, [ask("d0")]);
    assert_eq!(run.answers(0, "d0/n0", None), []);
    assert_eq!(
        run.answers(0, "d0/n0", None),
        [],
        "said twice, counted once"
    );
    assert_eq!(run.answers(0, "d0/n1", None), [Effect::Amend(1, AMENDMENT)]);
    let early = run.tell(Message::Amended(2, Ok(())));
    assert_eq!(answer(&early, 1), None, "that is another order's");
    let effects = run.tell(Message::Amended(1, Ok(())));
    let amended = Obeyed::Amended {
        topology: AHEAD,
        nodes: 2,
        away: Vec::new(),
        open: Some(1),
    };
    assert_eq!(answer(&effects, 1), Some(Ok(amended)));
    assert!(run.says("RunAmended { by: \"ada\""));
    run.tell(Message::Committed(1, Ok(())));
    assert!(run.is_running() && !run.opened(2), "d0 is behind");
    run.domain(0, adopted());
    let reason = format!("{AMENDED}{AHEAD}");
    assert_eq!(run.finished().reason, reason);
    let reason = reason.as_str().into();
    assert!(run.told(0, &Control::Finish { reason }));
}

#[test]
fn one_who_does_not_agree_is_named_and_the_run_is_as_it_was() {
    let mut run = Run::of_two();
    run.amend(1);
    run.answers(0, "d0/n1", Some("its file is another one"));
    let effects = run.answers(0, "d0/n0", None);
    let Some(Err(NotObeyed::Disagreed { agreed: 1, .. })) = answer(&effects, 1) else {
        panic!("{effects:?}")
    };
    let said = answer(&effects, 1).unwrap().unwrap_err().to_string();
    assert!(
        said.contains("(1 do)") && said.ends_with("d0/n1: its file is another one"),
        "{said}"
    );
    run.tell(Message::Committed(1, Ok(())));
    assert!(run.opened(2));
    assert_eq!(run.amend(2), [ask("d0")], "it may be asked again");
}

#[test]
fn who_does_not_answer_in_time_has_not_agreed() {
    let mut run = Run::of_two();
    run.amend(1);
    run.answers(0, "d0/n0", None);
    assert_eq!(run.wake_at, Some(at(10_000)));
    run.now = at(9_999);
    assert_eq!(answer(&run.wake(), 1), None);
    assert!(matches!(
        answer(&run.amend(2), 2),
        Some(Err(NotObeyed::Busy))
    ));
    run.now = at(10_000);
    let refused = answer(&run.wake(), 1).unwrap().unwrap_err().to_string();
    assert!(
        refused.ends_with("d0/n1: no answer within 10s: is it up?"),
        "{refused}"
    );
    assert_eq!(run.answers(0, "d0/n1", None), [], "too late");
}

/// A site that is lost would keep back the very amendment that is to take it out.
#[test]
fn who_is_away_is_not_asked_and_is_named() {
    let mut run = Run::committing(plan(&[2, 1]));
    let standing = |word| Control::Standing {
        node: "d0/n1".parse().unwrap(),
        word,
    };
    let gate: NodeId = "d0/n0".parse().unwrap();
    run.tell(Message::Domain(gate.clone(), standing(Word::Active)));
    run.tell(Message::Domain(gate, standing(Word::Restoring)));
    run.tell(Message::Watched("d1/n0".parse().unwrap(), Word::Restoring));
    assert_eq!(run.amend(1), [ask("d0")]);
    run.answers(0, "d0/n0", None);
    let effects = run.tell(Message::Amended(1, Ok(())));
    let Some(Ok(Obeyed::Amended { nodes: 1, away, .. })) = answer(&effects, 1) else {
        panic!("{effects:?}")
    };
    assert_eq!(
        away,
        ["d0/n1", "d1/n0"].map(|node| node.parse::<NodeId>().unwrap())
    );
}

/// A stop goes before: what is amended holds, and who begins again by it is for a user to say.
#[test]
fn who_stops_an_amended_run_means_that() {
    let stop = |wish| Order {
        wish,
        by: "ada".into(),
        unix: 0,
    };
    for before in [true, false] {
        let mut run = Run::of_two();
        run.amend(1);
        run.answers(0, "d0/n0", None);
        run.answers(0, "d0/n1", None);
        if before {
            run.tell(Message::Order(2, stop(Wish::Stop)));
        }
        let effects = run.tell(Message::Amended(1, Ok(())));
        assert!(matches!(
            answer(&effects, 1),
            Some(Ok(Obeyed::Amended { .. }))
        ));
        if !before {
            let effects = run.tell(Message::Order(2, stop(Wish::Stop)));
            let stopping = Obeyed::Stopping {
                open: Some(1),
                already: false,
            };
            assert_eq!(answer(&effects, 2), Some(Ok(stopping)));
        }
        run.tell(Message::Committed(1, Ok(())));
        run.domain(0, adopted());
        assert_eq!(run.finished().reason, "stopped by ada", "{before}");
    }
}

#[test]
fn what_cannot_be_written_down_is_not_amended() {
    let mut run = Run::committing(plan(&[1]));
    run.amend(1);
    run.answers(0, "d0/n0", None);
    let effects = run.tell(Message::Amended(1, Err("disk full".into())));
    let unwritten = Err(NotObeyed::Unwritten {
        reason: "disk full".into(),
        paused: false,
    });
    assert_eq!(answer(&effects, 1), Some(unwritten));
    run.tell(Message::Committed(1, Ok(())));
    assert!(run.opened(2));
}

#[test]
fn who_is_out_is_not_asked_and_a_run_that_ends_meanwhile_is_not_amended() {
    let mut run = Run::new(plan(&[2]));
    let mut before = loaded(0);
    let mut view = View::first(&plan(&[2]));
    view.epoch = 2;
    view.out
        .insert("d0/n1".parse().unwrap(), crate::view::Out::Left);
    before.view = Some(view);
    run.tell(Message::Start(Box::new(before), None));
    run.amend(1);
    assert_eq!(run.answers(0, "d0/n0", None), [Effect::Amend(1, AMENDMENT)]);

    let mut run = Run::committing(plan(&[1]));
    run.amend(1);
    let effects = run.tell(Message::Stop("interrupted".into()));
    let ended = effects.into_iter().chain(run.wake()).collect::<Vec<_>>();
    assert!(matches!(
        answer(&ended, 1),
        Some(Err(NotObeyed::Ends { .. }))
    ));
}

#[test]
fn a_node_agrees_only_to_what_its_file_says_and_the_run_does_not_yet() {
    let [run, other] = [1, 2].map(|byte| Hash([byte; 32]));
    let says = |found: &Hash, own: &Hash| objection(&AHEAD, found, own).unwrap_or_default();
    assert_eq!(objection(&AHEAD, &AHEAD, &run), None);
    assert!(says(&run, &run).contains("still that of the run"));
    assert!(says(&other, &run).contains("another one"));
    assert!(says(&AHEAD, &AHEAD).contains("already"));
}
