//! Ranks that die or stop in the middle: all others learn the same, found a new group and go on, and keep nothing of the old one.

use std::time::Duration;

use rustix::process::{Signal, WaitOptions};

use super::ranks::Ranks;

/// How many ranks are killed.
const KILLS: &str = "TOMBOLO_STEP_KILLS";

const RANKS: usize = 3;

/// So many steps that no run ends before its fault.
const ENDLESS: &str = "steps 1000000000";

/// Only the dead are waited for less.
const WAIT: Duration = Duration::from_secs(60);

/// Field fault: when a member dies in a collective the others get a typed error, keep no partial sums, regroup and redo (torchft#164,
/// pytorch#111646, ucx#5027, pccl#13); segments of dead owners are reclaimed (nccl#342).
#[test]
fn whichever_rank_is_killed_the_others_name_it_regroup_and_finish() {
    let kills = match std::env::var(KILLS) {
        Ok(count) => count.parse().unwrap(),
        Err(_) => 20,
    };
    let ranks = Ranks::start(RANKS);
    let mut steps_before = Vec::new();
    for kill in 0..kills {
        ranks.found(WAIT);
        for index in 0..RANKS {
            ranks.tell(index, ENDLESS);
        }
        for index in 0..RANKS {
            assert_eq!(ranks.hear(index), "ready");
        }
        // Anywhere in a step, which takes about a millisecond.
        std::thread::sleep(Duration::from_micros(1000 + 1371 * kill % 20_011));
        let killed = ranks.kill(kill as usize % RANKS);
        let told: Vec<String> = (0..RANKS - 1).map(|index| ranks.hear(index)).collect();
        assert!(
            told[0].contains(&format!("({killed}) died")),
            "kill {kill}: {}",
            told[0]
        );
        assert!(
            told.iter().all(|other| *other == told[0]),
            "a step is done by all or by none: {told:?}"
        );
        steps_before.push(told[0].split([' ', ':']).nth(2).unwrap().to_owned());
        for index in 0..RANKS - 1 {
            ranks.tell(index, "held");
            assert_eq!(ranks.hear(index), "nothing more than before");
        }
        finish(&ranks, RANKS - 1);
        // The youngest never founds, unless the others take turns.
        ranks.add(&format!("hq/after-{kill}"));
        ranks.rotate();
    }
    println!(
        "{{\"proof\":\"collectives\",\"kills\":{kills},\"survivors_finished\":{kills},\"leaks\":0}}"
    );
}

/// The same where memory is handed from one to the others.
#[test]
fn a_rank_that_is_killed_while_memory_is_handed_out_is_named_by_the_others() {
    let ranks = Ranks::start(RANKS);
    for kill in 0..30 {
        ranks.found(WAIT);
        for index in 0..RANKS {
            ranks.tell(index, "allocations");
        }
        for index in 0..RANKS {
            assert_eq!(ranks.hear(index), "ready");
        }
        std::thread::sleep(Duration::from_micros(1000 + 617 * kill % 4001));
        let killed = ranks.kill(kill as usize % RANKS);
        for index in 0..RANKS - 1 {
            let told = ranks.hear(index);
            assert!(
                told.contains(&format!("({killed}) died")),
                "kill {kill}: {told}"
            );
            ranks.tell(index, "held");
            assert_eq!(ranks.hear(index), "nothing more than before");
        }
        ranks.add(&format!("hq/after-{kill}"));
        ranks.rotate();
    }
}

/// Field fault: when a member hangs in a collective the others get a typed error within the limit (pytorch#97191). And what it does when it goes on
/// reaches nobody.
#[test]
fn a_stopped_rank_is_named_at_the_deadline_and_can_do_no_harm_when_it_goes_on() {
    let ranks = Ranks::start(RANKS);
    ranks.found(Duration::from_secs(4));
    for index in 0..RANKS {
        ranks.tell(index, ENDLESS);
    }
    for index in 0..RANKS {
        assert_eq!(ranks.hear(index), "ready");
    }
    let stopped = ranks.process(RANKS - 1);
    rustix::process::kill_process(stopped, Signal::STOP).unwrap();
    // It has stopped only when the kernel says so.
    rustix::process::waitpid(Some(stopped), WaitOptions::UNTRACED).unwrap();
    let named = format!("({}) did not come within 4s", ranks.name(RANKS - 1));
    for index in 0..RANKS - 1 {
        let told = ranks.hear(index);
        assert!(told.contains(&named), "{told}");
        ranks.tell(index, "held");
        assert_eq!(ranks.hear(index), "nothing more than before");
    }
    // The others in a new group, while the one that was stopped goes on in the old one.
    let outsider = ranks.take(RANKS - 1);
    ranks.found(WAIT);
    for index in 0..RANKS - 1 {
        ranks.tell(index, "steps 200");
    }
    rustix::process::kill_process(stopped, Signal::CONT).unwrap();
    for index in 0..RANKS - 1 {
        assert_eq!(ranks.hear(index), "ready");
        assert_eq!(ranks.hear(index), "done");
    }
    let told = outsider.hear();
    assert!(told.contains(&named), "{told}");
}

fn finish(ranks: &Ranks, count: usize) {
    ranks.found(WAIT);
    for index in 0..count {
        ranks.tell(index, "steps 12");
    }
    for index in 0..count {
        assert_eq!(ranks.hear(index), "ready");
        assert_eq!(ranks.hear(index), "done");
        ranks.tell(index, "held");
        assert_eq!(ranks.hear(index), "nothing more than before");
    }
}
