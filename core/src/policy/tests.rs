use proptest::prelude::*;

use super::*;
use crate::plan::samples::plan;
use crate::view::View;

fn n(text: &str) -> NodeId {
    text.parse().unwrap()
}

fn d(text: &str) -> DomainId {
    text.parse().unwrap()
}

fn rule(site: &str, identity: &str, actions: &[Action], slices: &[&str]) -> Rule {
    Rule {
        site: (site != "*").then(|| d(site)),
        identity: identity.parse().unwrap(),
        actions: actions.iter().copied().collect(),
        slices: slices.iter().map(|slice| slice.parse().unwrap()).collect(),
    }
}

/// Three domains of three; `d1/n0` is a standby, `d2/n1` a successor; the last nodes are in slice `blue`.
fn coast() -> Plan {
    let mut plan = plan(&[3, 3, 3]);
    plan.standby = vec![n("d1/n0")];
    plan.domains[2].gateways.push(n("d2/n1"));
    plan.policy.slices = vec!["blue".parse().unwrap()];
    for domain in &mut plan.domains {
        domain.nodes[2].slice = Some("blue".parse().unwrap());
    }
    plan
}

/// Whether nodes of each domain may do something at d0, at d1 and at d2, as `+` and `-`.
fn granted(plan: &Plan, action: Action) -> Vec<String> {
    let row = |node: &NodeId| {
        let at = |site: &str| of(plan, &d(site), node, action, node).allowed;
        let signs = ["d0", "d1", "d2"].map(|site| if at(site) { '+' } else { '-' });
        format!("{node} {}", signs.iter().collect::<String>())
    };
    plan.nodes().map(|node| row(&node.id)).collect()
}

#[test]
fn a_site_without_rules_grants_what_roles_imply() {
    let plan = coast();
    assert_eq!(
        granted(&plan, Action::Join),
        [
            "d0/n0 +++",
            "d0/n1 +--",
            "d0/n2 +--",
            "d1/n0 +++",
            "d1/n1 -+-",
            "d1/n2 -+-",
            "d2/n0 +++",
            "d2/n1 +++",
            "d2/n2 --+"
        ]
    );
    assert_eq!(
        granted(&plan, Action::ReadModel),
        granted(&plan, Action::Join)
    );
    assert_eq!(
        granted(&plan, Action::Train),
        [
            "d0/n0 ++-",
            "d0/n1 ++-",
            "d0/n2 ++-",
            "d1/n0 ++-",
            "d1/n1 ++-",
            "d1/n2 ++-",
            "d2/n0 +++",
            "d2/n1 +++",
            "d2/n2 +++"
        ]
    );
    assert_eq!(
        granted(&plan, Action::Aggregate),
        [
            "d0/n0 ++-",
            "d0/n1 ---",
            "d0/n2 ---",
            "d1/n0 ++-",
            "d1/n1 ---",
            "d1/n2 ---",
            "d2/n0 +++",
            "d2/n1 +++",
            "d2/n2 ---"
        ]
    );
    assert_eq!(
        granted(&plan, Action::Coordinate),
        [
            "d0/n0 +++",
            "d0/n1 ---",
            "d0/n2 ---",
            "d1/n0 +++",
            "d1/n1 ---",
            "d1/n2 ---",
            "d2/n0 ---",
            "d2/n1 ---",
            "d2/n2 ---"
        ]
    );
    assert_eq!(
        granted(&plan, Action::ReadMetrics),
        [
            "d0/n0 +++",
            "d0/n1 ---",
            "d0/n2 ---",
            "d1/n0 +++",
            "d1/n1 ---",
            "d1/n2 ---",
            "d2/n0 --+",
            "d2/n1 --+",
            "d2/n2 ---"
        ]
    );
}

/// The role of joining is the topology's own list of links.
#[test]
fn who_may_join_by_role_is_who_has_a_link() {
    for plan in [coast(), plan(&[2, 1, 4])] {
        for node in plan.nodes() {
            let peers = plan.peers(&node.id);
            for domain in &plan.domains {
                let is_linked = node.id.domain() == domain.id
                    || peers.iter().any(|peer| peer.domain() == domain.id);
                let verdict = of(&plan, &domain.id, &node.id, Action::Join, &node.id);
                assert_eq!(verdict.allowed, is_linked, "{verdict}");
            }
        }
    }
}

#[test]
fn nobody_unknown_may_do_anything_and_nothing_is_granted_at_an_unknown_site() {
    let mut plan = coast();
    plan.policy.rules = vec![rule("*", "*", &Action::ALL, &[])];
    for action in Action::ALL {
        let stranger = of(&plan, &d("d0"), &n("d1/n9"), action, &n("d1/n9"));
        assert_eq!((stranger.allowed, stranger.by), (false, By::Role));
        assert!(stranger.why.contains("d1/n9 is no node of the topology"));
        let nowhere = of(&plan, &d("d7"), &n("d0/n0"), action, &n("d0/n0"));
        assert!(nowhere.why.contains("no site d7"), "{nowhere}");
    }
}

#[test]
fn a_verdict_is_a_sentence_that_names_the_rule() {
    let mut plan = coast();
    plan.policy.rules = vec![
        rule("d2", "d2/*", &[Action::Join], &[]),
        rule("d2", "d2/*", &[Action::Train], &["blue"]),
    ];
    let says =
        |site: &str, who: &str, action| of(&plan, &d(site), &n(who), action, &n(who)).to_string();
    assert_eq!(
        says("d2", "d2/n2", Action::Train),
        "d2/n2 may train at d2 in slice blue: rule 2 of the file grants it to d2/*"
    );
    assert_eq!(
        says("d2", "d2/n1", Action::Train),
        "d2/n1 may not train at d2: d2 has rules of its own, and none of them grants it"
    );
    assert_eq!(
        says("d2", "d0/n1", Action::Coordinate),
        "d0/n1 may not coordinate at d2: d0/n1 is neither the coordinator nor a standby"
    );
    assert_eq!(
        says("d0", "d0/n0", Action::ReadModel),
        "d0/n0 may read the model at d0: d0 has no rules of its own, and by default whoever has a link reads the model"
    );
    for by in [By::Role, By::BuiltIn, By::Rule(7), By::NoRule] {
        assert_eq!(By::try_from(by.to_string()), Ok(by));
    }
}

#[test]
fn a_round_asks_whom_every_site_on_the_way_lets_in() {
    let all = || rule("d2", "*", &Action::ALL, &[]);
    let mut plan = coast();
    let view = View::first(&plan);
    let out = |plan: &Plan| {
        let out = |node: &&crate::plan::NodePlan| left_out(plan, &view, &node.id).is_some();
        plan.nodes()
            .filter(out)
            .map(|node| node.id.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(out(&plan), [""; 0]);
    plan.policy.rules = vec![all()];
    assert_eq!(out(&plan), [""; 0]);
    let ours = |actions: &[Action]| rule("d2", "d2/*", actions, &[]);
    let theirs = |actions: &[Action]| rule("d2", "d0/*", actions, &[]);
    let of_d2 = ["d2/n0", "d2/n1", "d2/n2"];
    // Without what the coordinator needs.
    for action in [Action::Join, Action::Coordinate] {
        let rest: Vec<Action> = Action::ALL.into_iter().filter(|of| *of != action).collect();
        plan.policy.rules = vec![ours(&Action::ALL), theirs(&rest)];
        assert_eq!(out(&plan), of_d2, "{action}");
    }
    // Its metrics, and models of d2, are no condition.
    plan.policy.rules = vec![
        ours(&Action::ALL),
        theirs(&[Action::Join, Action::Coordinate]),
    ];
    assert_eq!(out(&plan), [""; 0]);
    // In one slice only.
    plan.policy.rules = vec![
        ours(&Action::ALL),
        theirs(&[Action::Join]),
        rule("d2", "d0/n0", &[Action::Coordinate], &["blue"]),
    ];
    assert_eq!(out(&plan), of_d2, "the gateway itself is in no slice");
    plan.domains[2].nodes[0].slice = Some("blue".parse().unwrap());
    assert_eq!(out(&plan), ["d2/n1"]);
    // At the coordinator's site.
    plan = coast();
    plan.policy.rules = vec![
        rule("d0", "d0/*", &Action::ALL, &[]),
        rule("d0", "d1/*", &Action::ALL, &[]),
        rule(
            "d0",
            "d2/n0",
            &[Action::Join, Action::Aggregate, Action::ReadModel],
            &[],
        ),
        rule("d0", "d2/n2", &[Action::Train], &[]),
    ];
    assert_eq!(out(&plan), ["d2/n0", "d2/n1"]);
}

/// What cannot be meant is told apart from what only leaves somebody out.
#[test]
fn concerns_tell_what_a_file_comes_to() {
    let mut plan = coast();
    plan.round.quorum = crate::plan::Quorum::AtLeast {
        nodes: 7,
        domains: 2,
    };
    let at = |rules: Vec<Rule>| {
        let mut plan = plan.clone();
        plan.policy.rules = rules;
        concerns(&plan)
    };
    assert_eq!(at(vec![]), []);
    assert_eq!(at(vec![rule("*", "*", &Action::ALL, &[])]), []);
    let nobody = at(vec![rule("d0", "d0/n1", &Action::ALL, &[])]);
    assert!(
        matches!(&nobody[0], Concern::Impossible(why) if why.contains("nobody could coordinate")),
        "{nobody:?}"
    );
    let few = at(vec![
        rule("d0", "d0/*", &Action::ALL, &[]),
        rule("d0", "d1/*", &[Action::Join], &[]),
    ]);
    assert!(
        matches!(&few[0], Concern::Impossible(why) if why.contains("quorum of 7 nodes") && why.contains("let 3 nodes")),
        "{few:?}"
    );
    let one = at(vec![
        rule("d2", "d2/n0", &Action::ALL, &[]),
        rule("d2", "d2/*", &[Action::Join, Action::ReadModel], &[]),
        rule("d2", "d0/*", &Action::ALL, &[]),
        rule("d2", "d2/n1", &[Action::Train], &[]),
        rule("d2", "d9/n1", &[Action::Train], &[]),
    ]);
    let told: Vec<&Concern> = one.iter().collect();
    assert!(
        matches!(&told[..], [Concern::Warning(follows), Concern::Warning(unknown)]
            if follows.contains("d2/n2 may not train at d2") && follows.ends_with("it will only follow")
            && unknown.contains("rule 5") && unknown.contains("d9/n1")),
        "{one:?}"
    );
}

#[test]
fn the_hash_is_of_what_is_granted_and_not_of_the_order() {
    let mut plan = coast();
    let rules = [
        rule("d2", "d2/*", &[Action::Join], &[]),
        rule("*", "*", &[Action::Train], &["blue"]),
    ];
    plan.policy.rules = rules.to_vec();
    let one = hash(&plan);
    plan.policy.rules.reverse();
    assert_eq!(hash(&plan), one);
    plan.domains[0].nodes[0].slice = Some("blue".parse().unwrap());
    assert_ne!(hash(&plan), one);
}

#[test]
fn the_same_refusal_is_told_once_a_minute_and_there_is_an_end_to_it() {
    let plan = coast();
    let verdict = of(&plan, &d("d0"), &n("d1/n9"), Action::Join, &n("d1/n9"));
    let mut told = Refusals::default();
    let at = |seconds: u64| Micros(seconds * 1_000_000);
    assert!(told.is_news(at(0), &verdict));
    assert!(!told.is_news(at(59), &verdict));
    let other = Verdict {
        action: Action::Train,
        ..verdict.clone()
    };
    assert!(told.is_news(at(59), &other));
    assert!(told.is_news(at(60), &verdict));
    let many = (0..10_000).filter(|of| {
        let identity = n(&format!("d1/n{of}"));
        told.is_news(
            at(61),
            &Verdict {
                identity,
                ..verdict.clone()
            },
        )
    });
    assert_eq!(many.count(), Refusals::MOST - 2);
}

/// The longest rules that a file can have fit into a leaf of the record.
#[test]
fn the_largest_policy_fits_into_a_leaf() {
    let long = |of: usize| format!("{}{of:03}", "x".repeat(29));
    let rule = |of: usize| Rule {
        site: Some(d(&long(of))),
        identity: format!("{}/{}", long(of), long(of)).parse().unwrap(),
        actions: Action::ALL.into_iter().collect(),
        slices: (0..RULE_SLICES_MAX)
            .map(|of| long(of).parse().unwrap())
            .collect(),
    };
    let leaf = crate::record::Leaf::Policy {
        hash: Hash::default(),
        rules: (0..RULES_MAX).map(rule).collect(),
    };
    assert!(
        leaf.line().len() < crate::record::LEAF_BYTES_MAX,
        "{}",
        leaf.line().len()
    );
    assert_eq!(crate::record::Leaf::parse(&leaf.line()), Ok(leaf));
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let site = prop::option::of((0..3usize).prop_map(|of| d(&format!("d{of}"))));
    let identity = prop_oneof![
        Just(Who::Everyone),
        (0..3usize).prop_map(|of| Who::Domain(d(&format!("d{of}")))),
        (0..3usize, 0..3usize).prop_map(|(of, node)| Who::Node(n(&format!("d{of}/n{node}")))),
    ];
    let actions = prop::collection::btree_set(prop::sample::select(Action::ALL.to_vec()), 1..4);
    let blue: SliceId = "blue".parse().unwrap();
    let slices = prop::collection::btree_set(Just(blue), 0..2);
    (site, identity, actions, slices).prop_map(|(site, identity, actions, slices)| Rule {
        site,
        identity,
        actions,
        slices,
    })
}

/// Every question that can be asked of the plan.
fn verdicts(plan: &Plan) -> Vec<Verdict> {
    let blue: SliceId = "blue".parse().unwrap();
    let mut all = Vec::new();
    for domain in &plan.domains {
        for node in plan.nodes() {
            for action in Action::ALL {
                for slice in [None, Some(&blue)] {
                    all.push(decide(plan, &domain.id, &node.id, action, slice));
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever the rules are: what is granted has a role and a rule that says so, and where a site has a rule nothing else is granted.
    #[test]
    fn a_site_with_rules_denies_by_default(rules in prop::collection::vec(any_rule(), 1..8)) {
        let mut plan = coast();
        let roles: Vec<bool> = verdicts(&plan).iter().map(|verdict| verdict.allowed).collect();
        plan.policy.rules = rules.clone();
        for (verdict, by_role) in verdicts(&plan).into_iter().zip(roles) {
            let at_site = |rule: &Rule| rule.site.as_ref().is_none_or(|site| *site == verdict.site);
            let says = |rule: &Rule| {
                at_site(rule)
                    && rule.identity.includes(&verdict.identity)
                    && rule.actions.contains(&verdict.action)
                    && (rule.slices.is_empty() || verdict.slice.as_ref().is_some_and(|slice| rule.slices.contains(slice)))
            };
            let granted = match rules.iter().any(at_site) {
                true => rules.iter().any(says),
                false => true,
            };
            prop_assert_eq!(verdict.allowed, by_role && granted, "{}", verdict);
            match verdict.by {
                By::Rule(place) => prop_assert!(verdict.allowed && says(&rules[place - 1])),
                By::BuiltIn => prop_assert!(verdict.allowed && !rules.iter().any(at_site)),
                By::Role => prop_assert!(!by_role),
                By::NoRule => prop_assert!(by_role && !verdict.allowed),
            }
        }
    }

    #[test]
    fn one_more_rule_takes_nothing_away_from_a_site_that_has_some(
        rules in prop::collection::vec(any_rule(), 0..6), more in any_rule(), place in 0..7usize,
    ) {
        let mut plan = coast();
        let had = rule("*", "d0/n0", &[Action::Join], &[]);
        plan.policy.rules = rules;
        plan.policy.rules.push(had);
        let before = verdicts(&plan);
        let place = place.min(plan.policy.rules.len());
        plan.policy.rules.insert(place, more);
        for (before, after) in before.into_iter().zip(verdicts(&plan)) {
            prop_assert!(!before.allowed || after.allowed, "{} then {}", before, after);
        }
    }

    #[test]
    fn the_order_of_rules_means_nothing(
        rules in prop::collection::vec(any_rule(), 1..8).prop_flat_map(|rules| (Just(rules.clone()), Just(rules).prop_shuffle())),
    ) {
        let mut plan = coast();
        plan.policy.rules = rules.0;
        let before = verdicts(&plan);
        let view = View::first(&plan);
        let out = |plan: &Plan| plan.nodes().map(|node| left_out(plan, &view, &node.id).is_some()).collect::<Vec<_>>();
        let out_before = out(&plan);
        plan.policy.rules = rules.1;
        for (before, after) in before.into_iter().zip(verdicts(&plan)) {
            prop_assert_eq!(before.allowed, after.allowed);
        }
        prop_assert_eq!(out_before, out(&plan));
    }
}
