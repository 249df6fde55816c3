//! The long proofs: the tests' own code with larger numbers, in release, and their figures in `docs/RESULTS.md`.
//!
//! A proof is a test that prints what it found as lines of JSON. What it is to do comes from variables in its environment; one that is set
//! already wins over what stands here, and is named in the results. A proof that fails changes nothing.
//!
//! What runs other programs beside Tombolo is no test, and stands in a list of its own.

mod allreduce;
mod candle;
mod page;
mod peers;
mod results;
mod rivals;
mod s3;
mod serializers;
mod tools;
mod webdriver;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use results::Section;

/// What a proof found: the fields of one line.
pub type Figures = Map<String, Value>;

/// One long proof.
struct Proof {
    name: &'static str,
    /// What it shows, as a sentence of `docs/RESULTS.md`.
    shows: &'static str,
    /// What `cargo test` is to build.
    target: &'static [&'static str],
    /// The test.
    test: &'static str,
    variables: &'static [(&'static str, &'static str)],
    profiles: Profiles,
}

/// How many seeds, or from which to which.
const SEEDS: &str = "TOMBOLO_SEEDS";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Profiles {
    Release,
    /// In both, and every line must be the same.
    ReleaseAndDebug,
}

const PROOFS: &[Proof] = &[
    Proof {
        name: "core",
        shows: "The machines of `core/` alone, whole federations of them under storms of faults: no invariant is violated and every run ends.",
        target: &["--package", "tombolo-core", "--test", "federation"],
        test: "no_storm_breaks_an_invariant",
        variables: &[(SEEDS, "20000"), ("TOMBOLO_MINUTES", "10")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "actors",
        shows: "Real actors, QUIC and TLS in virtual time, 9 to 16 nodes under faults of every kind: no invariant is violated, every run ends.",
        target: &["--test", "sim"],
        test: "actors::forty_seeds_of_a_minute_under_faults_break_no_invariant",
        variables: &[(SEEDS, "1000..2000"), ("TOMBOLO_MINUTES", "5")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "profiles",
        shows: "SEED-1 across builds: the same seeds take the same course, packet by packet, in the debug and in the release profile.",
        target: &["--test", "sim"],
        test: "actors::five_seeds_tell_the_hash_of_their_course",
        variables: &[],
        profiles: Profiles::ReleaseAndDebug,
    },
    Proof {
        name: "partitions",
        shows: "Six domains cut in two in every way, both ways and one way: at most one commit of a round, and one within two deadlines of healing.",
        target: &["--test", "sim"],
        test: "partitions::however_six_domains_are_cut_no_round_is_committed_twice_and_all_heals",
        variables: &[],
        profiles: Profiles::Release,
    },
    Proof {
        name: "mutants",
        shows: "The test of the tests: bugs planted in the actors and in what writes to disk, and the first seed that finds each.",
        target: &["--test", "sim"],
        test: "mutants::each_planted_bug_is_found_within_two_hundred_seeds",
        variables: &[],
        profiles: Profiles::Release,
    },
    Proof {
        name: "thousand",
        shows: "One federation of a thousand nodes for a virtual minute: real actors, QUIC and TLS on one thread.",
        target: &["--test", "scale"],
        test: "a_large_federation_goes_round_for_a_virtual_minute",
        variables: &[("TOMBOLO_NODES", "1000")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "seeing",
        shows: "What it costs to see a federation: the processor time of telling beside that of the rounds of the same run, the page's picture and a scrape of many simulated nodes, and how late an event is at a page.",
        target: &["--test", "seeing"],
        test: "",
        variables: &[("TOMBOLO_NODES", "200"), ("TOMBOLO_ROUNDS", "50")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "record",
        shows: "A record of a million leaves with real keys: every leaf, the root and the signatures of one copy, from disk.",
        target: &["--test", "identity"],
        test: "record::a_long_record_of_two_domains_is_verified",
        variables: &[("TOMBOLO_LEAVES", "1000000")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "sends",
        shows: "The share of contributions that fail when each send of one fails at random, with the ladder's retries and without.",
        target: &["--test", "sim"],
        test: "sends::retries_bring_failed_contributions_from_the_share_of_failed_sends_to_almost_none",
        variables: &[("TOMBOLO_ROUNDS", "1000")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "evictions",
        shows: "Who is taken for dead though nobody is: 5 % loss and 200 ms of jitter on every path between domains.",
        target: &["--test", "sim"],
        test: "evictions::a_lossy_path_with_jitter_evicts_nobody",
        variables: &[("TOMBOLO_NODE_HOURS", "1000")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "congestion",
        shows: "100 MB over simulated paths under each congestion law, start-up included: shares of the path's rate, mean wait in the queue, drops; then two flows on one path, and eight that begin at once. Seconds are virtual; `meets` says whether what is aimed at is reached, `missed` what is not.",
        target: &["--test", "cli"],
        test: "bench::delay_gradient_fills_paths_with_a_short_queue_and_shares_them",
        variables: &[("TOMBOLO_CELLS", "all --gigabit")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "rotations",
        shows: "Certificates swapped and a root rolled over under a federation of processes at work: rounds that missed anybody, and connections replaced without a gap.",
        target: &["--test", "processes"],
        test: "certificates::rotations_and_a_rollover_drop_no_round",
        variables: &[("TOMBOLO_ROTATIONS", "30")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "kills",
        shows: "Real processes under `kill -9` of nodes, gateways and the coordinator: the model is the one that the recorded `counted` lists give.",
        target: &["--test", "processes"],
        test: "killed_at_random_the_run_ends_with_the_model_that_its_counted_lists_say",
        variables: &[("TOMBOLO_KILLS", "50")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "rounds",
        shows: "Three real processes over tiny rounds: memory and descriptors are flat; what a node holds idle and at work.",
        target: &["--test", "processes"],
        test: "growth::many_tiny_rounds_cost_no_process_memory_or_descriptors",
        variables: &[("TOMBOLO_ROUNDS", "10000")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "connects",
        shows: "A real process that is killed and comes back, again and again: memory and descriptors of those who stay are flat.",
        target: &["--test", "processes"],
        test: "growth::a_node_that_comes_and_goes_costs_the_others_nothing",
        variables: &[("TOMBOLO_CONNECTS", "1000")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "machines",
        shows: "Nine processes in network namespaces, inner nodes reached by nobody outside: moved, killed, cut off and promoted over, cycle by cycle, with the model of one process at the end.",
        target: &["--test", "machines"],
        test: "nine_machines_end_with_the_model_of_one_whatever_befalls_them",
        variables: &[("TOMBOLO_CYCLES", "10")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "freeze",
        shows: "A real process that is stopped for 30 s: no round waits for it, and it is counted again when it goes on.",
        target: &["--test", "processes"],
        test: "a_stopped_node_is_waited_for_by_no_round_and_counted_again_when_it_goes_on",
        variables: &[("TOMBOLO_FREEZE_S", "30")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "clients",
        shows: "Real nodes that lose the coordinator at once: all are back, and its memory stays bounded.",
        target: &["--test", "processes"],
        test: "many_nodes_that_lose_the_coordinator_at_once_are_all_back",
        variables: &[("TOMBOLO_CLIENTS", "500")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "fuzz",
        shows: "Every decoder of what comes from outside, given what it has met and what is made from that: no panic, no hang, no more memory than it states. Memory is what Rust's allocator gave for one input at most.",
        target: &["--test", "fuzz"],
        test: "every_decoder_takes_anything_without_panic_and_within_the_memory_that_it_states",
        variables: &[
            ("TOMBOLO_FUZZ_CASES", "100000000"),
            ("TOMBOLO_FUZZ_SEED", "7"),
        ],
        profiles: Profiles::Release,
    },
    Proof {
        name: "hostile",
        shows: "Honest rounds of two sites over loopback QUIC while strangers begin handshakes from many sources, hold connections that say no hello or dribble one, and flood the coordinator's port with first packets; beside the same rounds without them, in turns, in one run. Medians.",
        target: &["--test", "hostile"],
        test: "floods::slow_and_endless_strangers_cost_honest_rounds_little",
        variables: &[("TOMBOLO_FLOOD_PERCENT", "120")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "bench",
        shows: "Rounds without training over loopback QUIC and TLS, and codecs on one thread, each beside a limit of the same run: every result is right.",
        target: &["--test", "cli"],
        test: "bench::rounds_and_codecs_of_this_machine_are_told_and_all_are_right",
        variables: &[("TOMBOLO_ELEMENTS", "25600000")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "train",
        shows: "Nine nodes in three domains that train the built-in network over loopback QUIC and TLS, beside plain loops of the same steps on as many threads. An operation is a round of all nodes; compute, fabric, WAN and waiting are the mean over nodes, and add up to the mean round. With prefetch off a loop copies each batch before its step, with prefetch on a second thread does; their ratio is to loops that read rows where they lie.",
        target: &["--test", "cli"],
        test: "bench::a_federation_that_trains_stands_beside_plain_loops_and_its_shares_add_up",
        variables: &[("TOMBOLO_TRAIN_ROUNDS", "20")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "collectives",
        shows: "Three processes that reduce in place, one of which is killed at any moment: the others name it, all in the same step, found a new group and finish, and hold nothing of the old one.",
        target: &["--package", "tombolo-actors", "--test", "step"],
        test: "faults::whichever_rank_is_killed_the_others_name_it_regroup_and_finish",
        variables: &[("TOMBOLO_STEP_KILLS", "200")],
        profiles: Profiles::Release,
    },
    Proof {
        name: "study",
        shows: "What rules, codecs and retries do for a model: ten nodes on handwritten digits, accuracies in percent, mean and standard deviation over seeds. [Plots and tables](study/README.md).",
        target: &["--test", "cli"],
        test: "bench::the_default_holds_where_a_mean_that_checks_nothing_does_not",
        variables: &[("TOMBOLO_STUDY_SEEDS", "5")],
        profiles: Profiles::Release,
    },
];

/// A proof that is a function of this program: it runs others beside Tombolo, which a test has no business to need.
struct Comparison {
    name: &'static str,
    shows: &'static str,
    variables: Variables,
    /// Builds and installs what it needs: how long that takes says nothing.
    prepare: fn(&Path) -> Result<()>,
    /// Measures. It fails when a result of ours is wrong; a ratio that is missed is told.
    lines: fn(&Path, &Settings) -> Result<Vec<Figures>>,
}

const COMPARISONS: &[Comparison] = &[
    Comparison {
        name: "candle",
        shows: "Models of the candle library, two nodes at each of two sites, over loopback QUIC: both examples reach their figures, with and without a codec, and a checkpoint gives the same loss where there is no candle.",
        variables: candle::VARIABLES,
        prepare: candle::prepare,
        lines: candle::lines,
    },
    Comparison {
        name: "rivals",
        shows: "A round without training on loopback beside Flower's and NVFlare's: ours with TLS and a durable commit. Then what was aimed at, and whether it holds.",
        variables: rivals::VARIABLES,
        prepare: rivals::prepare,
        lines: rivals::lines,
    },
    Comparison {
        name: "page",
        shows: "The page in headless Chromium: nine processes at three sites train, one is killed, and the page shows its state, why, and the round that closed without it; then by keyboard, dark, narrow, and with many nodes. [Pictures](images/).",
        variables: page::VARIABLES,
        prepare: page::prepare,
        lines: page::lines,
    },
    Comparison {
        name: "tools",
        shows: "What is written for other programs, read by them: `/metrics` by the OpenMetrics parser of Prometheus' Python client, the event file by TensorBoard's own reader.",
        variables: tools::VARIABLES,
        prepare: tools::prepare,
        lines: tools::lines,
    },
    Comparison {
        name: "s3",
        shows: "The coordinator's records on an S3-compatible server (moto), uploads refused in mid-run: no round is lost and the model is that of a run in a folder; a changed object is refused by name, and the state before it is restored.",
        variables: s3::VARIABLES,
        prepare: s3::prepare,
        lines: s3::lines,
    },
    Comparison {
        name: "allreduce",
        shows: "An all-reduce of `f32` among processes of this machine beside OpenMPI, MPICH and Gloo: in memory that all ranks reach, and in private memory; the limit is plain loops of as many threads. Then what was aimed at, and whether it holds.",
        variables: allreduce::VARIABLES,
        prepare: allreduce::prepare,
        lines: allreduce::lines,
    },
    Comparison {
        name: "serializers",
        shows: "A gradient of `f32` into bytes and out again, by what users have in Python and by ours; one thread, and every result is right.",
        variables: serializers::VARIABLES,
        prepare: serializers::prepare,
        lines: serializers::lines,
    },
];

/// Names from the environment, and what they are without it.
type Variables = &'static [(&'static str, &'static str)];

/// The variables of a proof, as set by hand or as usual.
struct Settings(Variables);

impl Settings {
    /// A list of whole numbers above 0.
    ///
    /// # Errors
    /// There is another word in it, or none.
    fn numbers(&self, name: &str) -> Result<Vec<u64>> {
        let usual = self.0.iter().find(|(other, _)| *other == name);
        let usual = usual.map(|(_, usual)| (*usual).to_owned());
        let text = value(name).or(usual).unwrap_or_default();
        let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        match numbers {
            Ok(numbers) if !numbers.is_empty() && !numbers.contains(&0) => Ok(numbers),
            _ => bail!("{name}={text:?}: expected whole numbers above 0"),
        }
    }

    /// One of them.
    ///
    /// # Errors
    /// There are others beside it, or as for many.
    fn number(&self, name: &str) -> Result<u64> {
        match self.numbers(name)?[..] {
            [number] => Ok(number),
            ref numbers => bail!("{name}: expected one number, found {}", numbers.len()),
        }
    }
}

fn every_name() -> Vec<&'static str> {
    let proofs = PROOFS.iter().map(|proof| proof.name);
    let comparisons = COMPARISONS.iter().map(|comparison| comparison.name);
    proofs.chain(comparisons).collect()
}

/// Says what there is.
pub fn list() {
    let proofs = PROOFS.iter().map(|it| (it.name, it.shows, it.variables));
    let comparisons = COMPARISONS.iter();
    let comparisons = comparisons.map(|it| (it.name, it.shows, it.variables));
    for (name, shows, variables) in proofs.chain(comparisons) {
        let numbers = variables.iter();
        let numbers: Vec<String> = numbers
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        println!("{name:<11} {shows} {}", numbers.join(" "));
    }
}

/// Runs the proofs of those names, or all, and writes down what each found as soon as it has.
///
/// # Errors
/// There is no such proof, or one fails; those after it are not begun.
pub fn run(root: &Path, names: &[&str]) -> Result<()> {
    let order = every_name();
    if let Some(unknown) = names.iter().find(|name| !order.contains(name)) {
        bail!("there is no proof {unknown:?}: see cargo xtask soak --list");
    }
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    for proof in PROOFS.iter().filter(|proof| wanted(proof.name)) {
        let section = proof.run(root);
        let section = section.with_context(|| format!("the proof {:?}", proof.name))?;
        results::write(root, &section, &order)?;
    }
    for comparison in COMPARISONS.iter().filter(|it| wanted(it.name)) {
        let section = comparison.run(root);
        let section = section.with_context(|| format!("the proof {:?}", comparison.name))?;
        results::write(root, &section, &order)?;
    }
    Ok(())
}

/// The command that does a proof again, with what was set by hand.
fn command(name: &str, variables: &[(&str, &str)]) -> String {
    let changed = |(name, usual): &&(&str, &str)| value(name).is_some_and(|set| set != *usual);
    let mut command: String = variables
        .iter()
        .filter(changed)
        .map(|(name, _)| assignment(name, &value(name).unwrap_or_default()))
        .collect();
    command.push_str("cargo xtask soak ");
    command.push_str(name);
    command
}

fn assignment(name: &str, value: &str) -> String {
    match value.contains(' ') {
        true => format!("{name}='{value}' "),
        false => format!("{name}={value} "),
    }
}

impl Comparison {
    fn run(&self, root: &Path) -> Result<Section> {
        let commit = results::commit(root)?;
        (self.prepare)(root)?;
        let began = now();
        let lines = (self.lines)(root, &Settings(self.variables))?;
        for line in &lines {
            println!("{}", Value::Object(line.clone()));
        }
        Ok(Section {
            name: self.name.to_owned(),
            shows: self.shows,
            command: command(self.name, self.variables),
            commit,
            elapsed: now().saturating_duration_since(began),
            lines,
        })
    }
}

impl Proof {
    /// Its name; a slice of its seeds is a section of its own, so that a long proof can be done in several sittings.
    fn heading(&self) -> String {
        let usual = self.variables.iter().find(|(name, _)| *name == SEEDS);
        let set = usual.and_then(|(_, usual)| value(SEEDS).filter(|set| set != usual));
        match set.filter(|set| set.contains("..")) {
            Some(range) => format!("{}, seeds {range}", self.name),
            None => self.name.to_owned(),
        }
    }

    fn run(&self, root: &Path) -> Result<Section> {
        let commit = results::commit(root)?;
        let profiles: &[bool] = match self.profiles {
            Profiles::Release => &[true],
            Profiles::ReleaseAndDebug => &[true, false],
        };
        // How long the compiler takes says nothing about the proof.
        for release in profiles {
            self.build(root, *release)?;
        }
        let began = now();
        let lines = self.lines(root, true)?;
        if self.profiles == Profiles::ReleaseAndDebug {
            let debug = self.lines(root, false)?;
            if lines != debug {
                bail!("release says {lines:?}, debug says {debug:?}");
            }
        }
        if lines.is_empty() {
            bail!("it found nothing: is there still a test {:?}?", self.test);
        }
        Ok(Section {
            name: self.heading(),
            shows: self.shows,
            command: command(self.name, self.variables),
            commit,
            elapsed: now().saturating_duration_since(began),
            lines,
        })
    }

    /// `cargo test` of its target in one profile.
    fn cargo(&self, root: &Path, release: bool) -> Command {
        let mut command = Command::new(cargo());
        command.arg("test");
        if release {
            command.arg("--release");
        }
        command.args(self.target).current_dir(root);
        command
    }

    fn build(&self, root: &Path, release: bool) -> Result<()> {
        let mut command = self.cargo(root, release);
        let status = command.arg("--no-run").status();
        match status.context("cargo does not start")?.success() {
            true => Ok(()),
            false => bail!("it does not compile"),
        }
    }

    /// Runs the test in one profile; gives the lines that it printed.
    fn lines(&self, root: &Path, release: bool) -> Result<Vec<Figures>> {
        let mut command = self.cargo(root, release);
        command
            .args([self.test, "--", "--nocapture"])
            .stdout(Stdio::piped());
        for (name, usual) in self.variables {
            command.env(name, value(name).unwrap_or_else(|| (*usual).to_owned()));
        }
        eprintln!("{}: {command:?}", self.name);
        let mut child = command.spawn().context("cargo does not start")?;
        let output = child.stdout.take().expect("it was asked for");
        let mut lines = Vec::new();
        for line in BufReader::new(output).lines() {
            let line = line.context("its output ends in the middle")?;
            println!("{line}");
            lines.extend(figures(&line));
        }
        let status = child.wait()?;
        if !status.success() {
            bail!(
                "{} failed ({status}): its message says how to replay it",
                self.test
            );
        }
        Ok(lines)
    }
}

/// The object of JSON that a line ends with: the test's name may stand before it.
fn figures(line: &str) -> Option<Figures> {
    let begin = line.find('{')?;
    let mut found: Figures = serde_json::from_str(&line[begin..]).ok()?;
    // The section's heading says it.
    found.remove("proof");
    Some(found)
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The fields of what was written as an object.
fn object(value: Value) -> Figures {
    match value {
        Value::Object(object) => object,
        _ => Figures::new(),
    }
}

fn value(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a proof takes is about the real world"
)]
fn now() -> Instant {
    Instant::now()
}

/// A span as people say it.
fn spoken(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_behind_the_name_of_the_test() {
        let found = figures("test core::storm ... {\"seeds\":40,\"violations\":0}").unwrap();
        assert_eq!(found["seeds"], 40);
        assert_eq!(figures("running 1 test"), None);
        assert_eq!(figures("seed 3: Round { number: 2 }"), None);
    }

    #[test]
    fn each_proof_has_a_name_of_its_own() {
        let names = every_name();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name}");
        }
    }

    #[test]
    fn a_setting_is_whole_numbers_and_anything_else_is_refused_by_name() {
        let numbers = |usual| Settings(usual).numbers("TOMBOLO_OF_A_TEST_ALONE");
        let found = numbers(&[("OTHER", "9"), ("TOMBOLO_OF_A_TEST_ALONE", "2 4 8")]);
        assert_eq!(found.unwrap(), [2, 4, 8]);
        let number = |usual| Settings(usual).number("TOMBOLO_OF_A_TEST_ALONE");
        assert_eq!(number(&[("TOMBOLO_OF_A_TEST_ALONE", "3")]).unwrap(), 3);
        assert!(number(&[("TOMBOLO_OF_A_TEST_ALONE", "3 4")]).is_err());
        for bad in [
            &[("TOMBOLO_OF_A_TEST_ALONE", "2 x")] as Variables,
            &[("TOMBOLO_OF_A_TEST_ALONE", "2 0")],
            &[("TOMBOLO_OF_A_TEST_ALONE", "")],
        ] {
            let error = numbers(bad).unwrap_err().to_string();
            assert!(error.starts_with("TOMBOLO_OF_A_TEST_ALONE="), "{error}");
        }
    }
}
