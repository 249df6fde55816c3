//! The picture as OpenMetrics, for Prometheus and whatever else reads that.
//!
//! Nothing is counted here: each scrape writes down what the picture holds. So the series of a node end when it leaves or is evicted, and
//! there are never more than a bound, however large the federation is.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::picture::{LinkPicture, NodePicture, Picture, VitalsPicture};
use crate::control::LinkState;
use tombolo_core::ids::NodeId;
use tombolo_core::membership::State;

/// Nodes with series of their own. Beyond that the sums tell, and `tombolo_left_out` how many nodes and links have none.
const NODES_MAX: usize = 1_024;

/// Links between sites with series of their own.
const LINKS_MAX: usize = 1_024;

/// What `Content-Type` says of it.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The picture in the OpenMetrics text format.
pub fn metrics(picture: &Arc<Picture>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(picture.clone())));
    let mut text = String::new();
    // A string takes whatever it is given.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Scrape(Arc<Picture>);

type Nodes<'a> = Vec<(&'a NodeId, &'a NodePicture)>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let picture = &*self.0;
        let mut page = Page(&mut encoder);
        page.federation(picture)?;
        page.rounds(picture)?;
        page.sums(picture)?;
        let here = picture.nodes.iter();
        let here = here.filter(|(_, node)| !matches!(node.state, State::Evicted | State::Left));
        let nodes: Nodes = here.clone().take(NODES_MAX).collect();
        page.nodes(&nodes)?;
        let links: Vec<&LinkPicture> = picture.links.iter().take(LINKS_MAX).collect();
        page.links(&links)?;
        let without = here.count() - nodes.len() + picture.links.len() - links.len();
        let help = "nodes and links that are too many to have series of their own";
        page.gauge("tombolo_left_out", help, without as f64)
    }
}

struct Page<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Page<'_, '_> {
    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.family(name, help, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Gauge)?;
        values
            .into_iter()
            .try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Counter)?;
        values.into_iter().try_for_each(|(labels, value)| {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    fn federation(&mut self, picture: &Picture) -> fmt::Result {
        let labels = [
            ("federation", picture.federation.as_str()),
            ("version", env!("CARGO_PKG_VERSION")),
        ];
        self.gauges("tombolo_build", "what runs", [(labels, 1.0)])?;
        self.gauge(
            "tombolo_epoch",
            "number of the membership view",
            picture.epoch as f64,
        )?;
        let help = "rounds that are planned";
        self.gauge("tombolo_rounds_planned", help, picture.planned as f64)
    }

    fn rounds(&mut self, picture: &Picture) -> fmt::Result {
        let totals = &picture.totals;
        let ended = [
            ("committed", totals.committed),
            ("degraded", totals.degraded),
            ("aborted", totals.aborted),
        ];
        let ended = ended.map(|(state, count)| ([("state", state)], count));
        self.counters("tombolo_rounds", "rounds that ended, by how", ended)?;
        let open = picture.rounds.back().filter(|round| round.state.is_none());
        let number = open.map_or(0, |round| round.round);
        self.gauge(
            "tombolo_round_open",
            "the open round; 0 if none is",
            number as f64,
        )?;
        let Some(last) = picture
            .rounds
            .iter()
            .rev()
            .find(|round| round.state.is_some())
        else {
            return Ok(());
        };
        self.gauge(
            "tombolo_round_ended",
            "the last round that ended",
            last.round as f64,
        )?;
        if let Some(seconds) = last.elapsed_s {
            self.gauge(
                "tombolo_round_seconds",
                "how long the last round took",
                seconds,
            )?;
        }
        if let Some(loss) = last.loss {
            self.gauge("tombolo_model_loss", "the model on the test rows", loss)?;
        }
        match last.accuracy {
            Some(accuracy) => self.gauge(
                "tombolo_model_accuracy",
                "the model on the test rows",
                accuracy,
            ),
            None => Ok(()),
        }
    }

    fn sums(&mut self, picture: &Picture) -> fmt::Result {
        let totals = &picture.totals;
        let updates = [
            ("counted", totals.counted),
            ("late", totals.late),
            ("refused", totals.refused),
        ];
        let updates = updates.map(|(outcome, count)| ([("outcome", outcome)], count));
        self.counters(
            "tombolo_updates",
            "updates of nodes, by what became of them",
            updates,
        )?;
        let words = totals.objections.iter();
        let words = words.map(|(why, count)| (word(why), *count));
        let words: Vec<(String, u64)> = words.collect();
        let objections = words
            .iter()
            .map(|(why, count)| ([("reason", why.as_str())], *count));
        let help = "what arrived and counts for nothing, or not in full";
        self.counters("tombolo_objections", help, objections)?;
        let ways = [("down", totals.bytes_down), ("up", totals.bytes_up)];
        let ways = ways.map(|(way, count)| ([("direction", way)], count));
        let help = "UDP payload of the coordinator with other sites, in rounds that ended";
        self.counters("tombolo_coordinator_bytes", help, ways)?;
        let help = "UDP payload between sites in rounds that ended, both ways";
        self.counter("tombolo_wan_bytes", help, totals.bytes)?;
        self.counter("tombolo_events", "events that were seen", totals.events)?;
        self.counter(
            "tombolo_events_missed",
            "events that were missed",
            totals.missed,
        )?;
        let seen = [
            ("model-diverged", totals.diverged),
            ("deadlock", totals.deadlocks),
            ("stall", totals.stalls),
        ];
        let seen = seen.map(|(what, count)| ([("what", what)], count));
        let help = "what the watch has seen: copies of models that changed, actors that wait for each other, collectives without progress";
        self.counters("tombolo_watch", help, seen)?;
        let help = "actors that panicked and were rebuilt";
        self.counter("tombolo_actor_restarts", help, totals.restarts)?;
        let states = [
            State::Joining,
            State::Active,
            State::Suspect,
            State::Restoring,
            State::Evicted,
            State::Left,
        ];
        let count = |state| {
            picture
                .nodes
                .values()
                .filter(|node| node.state == state)
                .count()
        };
        let states = states.map(|state| (word(&state), count(state)));
        let states = states
            .iter()
            .map(|(state, count)| ([("state", state.as_str())], *count as f64));
        self.gauges("tombolo_nodes", "nodes, by where they stand", states)
    }

    fn nodes(&mut self, nodes: &Nodes) -> fmt::Result {
        let each = |value: fn(&NodePicture) -> f64| {
            let values = nodes.iter();
            values.map(move |(node, picture)| ([("node", node.as_str())], value(picture)))
        };
        let up = |node: &NodePicture| f64::from(u8::from(node.state == State::Active));
        self.gauges(
            "tombolo_node_up",
            "whether a node takes part and is heard",
            each(up),
        )?;
        let help = "the last round that counted a node";
        self.gauges(
            "tombolo_node_round",
            help,
            each(|node| node.counted_in as f64),
        )?;
        let losses = nodes.iter();
        let losses =
            losses.filter_map(|(node, picture)| Some(([("node", node.as_str())], picture.loss?)));
        self.gauges(
            "tombolo_node_loss",
            "the loss of a node's last training, its own word",
            losses,
        )?;
        let vitals = |value: fn(&VitalsPicture) -> u64| {
            let told = nodes.iter();
            told.filter_map(move |(node, picture)| {
                let vitals = picture.vitals.as_ref()?;
                Some(([("node", node.as_str())], value(vitals) as f64))
            })
        };
        self.gauges(
            "tombolo_node_memory_bytes",
            "memory of a node's process",
            vitals(|vitals| vitals.memory),
        )?;
        let help = "messages in the longest queue of a node's actors, which takes 1024";
        self.gauges("tombolo_node_queued", help, vitals(|vitals| vitals.queued))?;
        let help = "bytes that a node keeps for the peer that is furthest behind";
        let behind = vitals(|vitals| vitals.unacknowledged_bytes);
        self.gauges("tombolo_node_unacknowledged_bytes", help, behind)?;
        self.gauges(
            "tombolo_node_certificate_seconds",
            "how long a node's certificate is still good",
            vitals(|vitals| vitals.certificate_s),
        )?;
        let outcomes = nodes.iter().flat_map(|(node, picture)| {
            let counts = [
                ("counted", picture.counted),
                ("late", picture.late),
                ("refused", picture.refused),
                ("clipped", picture.clipped),
                ("failed", picture.failed),
                ("diverged", picture.diverged),
            ];
            counts.map(|(outcome, count)| ([("node", node.as_str()), ("outcome", outcome)], count))
        });
        self.counters(
            "tombolo_node_updates",
            "updates of a node, by what became of them",
            outcomes,
        )
    }

    fn links(&mut self, links: &[&LinkPicture]) -> fmt::Result {
        fn ends(link: &LinkPicture) -> [(&'static str, &str); 2] {
            [("a", link.a.as_str()), ("b", link.b.as_str())]
        }
        let all = links.iter();
        let up = |link: &LinkPicture| f64::from(u8::from(link.state == LinkState::Up));
        let ups = all.clone().map(|link| (ends(link), up(link)));
        self.gauges(
            "tombolo_link_up",
            "whether a link between sites carries frames",
            ups,
        )?;
        let trips = all.clone();
        let trips = trips.filter_map(|link| Some((ends(link), link.round_trip_ms? / 1e3)));
        let help = "how long two heartbeats that crossed were on their way";
        self.gauges("tombolo_link_round_trip_seconds", help, trips)?;
        let losses = all.clone();
        let losses = losses.filter_map(|link| Some((ends(link), link.heartbeat_loss?)));
        let help = "the share of heartbeats that got lost lately";
        self.gauges("tombolo_link_heartbeat_loss_ratio", help, losses)?;
        let bytes = all.clone().flat_map(|link| {
            let (a, b) = (link.a.as_str(), link.b.as_str());
            [(a, b, &link.a_to_b), (b, a, &link.b_to_a)]
                .map(|(from, to, way)| ([("from", from), ("to", to)], way))
        });
        let ways = bytes.clone();
        let bytes = bytes.map(|(ends, way)| (ends, way.bytes));
        self.counters(
            "tombolo_link_bytes",
            "UDP payload over a link between sites",
            bytes,
        )?;
        let shrunk = ways.clone().flat_map(|([from, to], way)| {
            let [plain, travelled] = way.tensors();
            [("plain", plain), ("travelled", travelled)]
                .map(|(form, bytes)| ([from, to, ("form", form)], bytes))
        });
        let help = "sums and models that came through a codec or a lossless stage: their bytes as they are, and as they travelled";
        self.counters("tombolo_link_tensor_bytes", help, shrunk)?;
        let waiting = ways.filter_map(|(ends, way)| Some((ends, way.unacknowledged_bytes? as f64)));
        let help =
            "bytes of messages that the other end has not acknowledged yet; a link keeps 64 MiB";
        self.gauges("tombolo_link_unacknowledged_bytes", help, waiting)?;
        let downs = all.map(|link| (ends(link), link.downs));
        self.counters(
            "tombolo_link_downs",
            "how often a link between sites went down",
            downs,
        )
    }
}

/// A value's name in JSON, which is its name everywhere else, too.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::picture::Bounds;
    use super::*;
    use crate::explain::Past;
    use tombolo_core::event::{Event, Measured, Shrunk, Vitals};
    use tombolo_core::view::{Out, View};

    fn n(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn apply(picture: &mut Picture, event: Event) {
        picture.apply(&Past {
            at: 1.0,
            life: 0,
            event,
        });
    }

    fn started(nodes: impl IntoIterator<Item = String>) -> Picture {
        let mut picture = Picture::new(Bounds::LIVE);
        for node in nodes {
            let (node, address) = (n(&node), String::new());
            apply(
                &mut picture,
                Event::NodeStarted {
                    node,
                    address,
                    life: 1,
                },
            );
        }
        picture
    }

    /// The series by name and labels. Each line must be what the text format says, each sample belong to a family that was announced before
    /// it, no series come twice, and the end be told.
    fn parse(text: &str) -> BTreeMap<String, f64> {
        let mut series = BTreeMap::new();
        let mut families: BTreeMap<&str, &str> = BTreeMap::new();
        let body = text.strip_suffix("# EOF\n").expect("it says where it ends");
        for line in body.lines() {
            if let Some(about) = line.strip_prefix("# TYPE ") {
                let (name, kind) = about.split_once(' ').unwrap();
                assert_eq!(families.insert(name, kind), None, "{line}");
            } else if !line.starts_with("# HELP ") {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let bare = name.split('{').next().unwrap();
                let kind = families.get(bare);
                let counter = bare
                    .strip_suffix("_total")
                    .and_then(|bare| families.get(bare));
                assert!(
                    kind == Some(&"gauge") || counter == Some(&"counter"),
                    "{line}"
                );
                let value: f64 = value.parse().unwrap();
                assert_eq!(series.insert(name.to_owned(), value), None, "{line}");
            }
        }
        series
    }

    fn scrape(picture: Picture) -> BTreeMap<String, f64> {
        parse(&metrics(&Arc::new(picture)))
    }

    #[test]
    fn what_is_known_is_told_in_the_text_format() {
        let mut picture = started(["hq/gate".to_owned(), "plant/c".to_owned()]);
        picture.federation = "coast".to_owned();
        picture.totals.committed = 5;
        picture.totals.bytes_up = 77;
        let measured = Measured {
            node: n("plant/c"),
            peer: n("hq/gate"),
            round_trip_ms: Some(250.0),
            heartbeat_loss: 0.5,
            sent: 3,
            received: 4,
            unacknowledged: 5,
            unacknowledged_bytes: 600,
            models: Shrunk {
                plain: 90,
                travelled: 30,
            },
        };
        apply(&mut picture, Event::LinkMeasured(measured));
        let series = scrape(picture);
        for (name, value) in [
            ("tombolo_rounds_total{state=\"committed\"}", 5.0),
            ("tombolo_coordinator_bytes_total{direction=\"up\"}", 77.0),
            ("tombolo_nodes{state=\"active\"}", 2.0),
            ("tombolo_node_up{node=\"plant/c\"}", 1.0),
            ("tombolo_link_up{a=\"hq/gate\",b=\"plant/c\"}", 1.0),
            (
                "tombolo_link_round_trip_seconds{a=\"hq/gate\",b=\"plant/c\"}",
                0.25,
            ),
            (
                "tombolo_link_bytes_total{from=\"plant/c\",to=\"hq/gate\"}",
                3.0,
            ),
            (
                "tombolo_link_bytes_total{from=\"hq/gate\",to=\"plant/c\"}",
                4.0,
            ),
            (
                "tombolo_link_tensor_bytes_total{from=\"plant/c\",to=\"hq/gate\",form=\"travelled\"}",
                30.0,
            ),
            (
                "tombolo_link_unacknowledged_bytes{from=\"plant/c\",to=\"hq/gate\"}",
                600.0,
            ),
            ("tombolo_left_out", 0.0),
        ] {
            assert_eq!(series.get(name), Some(&value), "{name}: {series:#?}");
        }
    }

    /// Everything that may be told is told.
    fn whole() -> BTreeMap<String, f64> {
        let mut picture = started(["hq/gate".to_owned(), "plant/c".to_owned()]);
        for event in [
            Event::UpdateExported {
                node: n("plant/c"),
                round: 1,
                samples: 5,
                loss: 0.5,
            },
            Event::LinkMeasured(Measured {
                node: n("plant/c"),
                peer: n("hq/gate"),
                round_trip_ms: Some(1.0),
                heartbeat_loss: 0.5,
                sent: 3,
                received: 4,
                unacknowledged: 5,
                unacknowledged_bytes: 600,
                models: Shrunk::default(),
            }),
            Event::LateAnswered {
                round: 1,
                from: "plant/c".to_owned(),
            },
            Event::NodeMeasured(Vitals {
                node: n("plant/c"),
                memory: 1,
                queued: 2,
                unacknowledged: 3,
                unacknowledged_bytes: 4,
                certificate_s: 5,
            }),
            Event::Round(serde_json::from_str(ENDED).unwrap()),
        ] {
            apply(&mut picture, event);
        }
        scrape(picture)
    }

    const ENDED: &str = r#"{"round":1,"epoch":1,"state":"committed","counted":["plant/c"],"late":[],"accuracy":0.5,"loss":1,"weight_norm":1,
        "bytes":1,"bytes_down":1,"bytes_up":1,"model_hash":"0000000000000000000000000000000000000000000000000000000000000000","elapsed_s":1}"#;

    /// The names in a query, and the labels that it groups, chooses or shows by.
    fn named(query: &str) -> (Vec<&str>, Vec<&str>) {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let words = query.split(|letter| !is_name(letter));
        let metrics = words.filter(|word| word.starts_with("tombolo_")).collect();
        let grouped = query.split("by (").skip(1);
        let grouped = grouped.flat_map(|rest| rest.split(')').next().unwrap().split(','));
        let chosen = query.split('{').skip(1).map(|rest| {
            let label = rest.trim_start_matches('{');
            label.split(|letter| !is_name(letter)).next().unwrap()
        });
        (metrics, grouped.map(str::trim).chain(chosen).collect())
    }

    /// The dashboard for Grafana asks for nothing that is not told.
    #[test]
    fn every_query_of_the_dashboard_names_a_metric_and_labels_that_are_told() {
        let series = whole();
        let dashboard = include_str!("../../dashboard/grafana.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let mut queries = 0;
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let (query, legend) = (&target["expr"], &target["legendFormat"]);
                let (query, legend) = (query.as_str().unwrap(), legend.as_str().unwrap());
                queries += 1;
                let (metrics, mut labels) = named(query);
                labels.extend(named(legend).1);
                assert_eq!(metrics.len(), 1, "{query}");
                let of_metric: Vec<&String> = series
                    .keys()
                    .filter(|name| name.split('{').next() == Some(metrics[0]))
                    .collect();
                assert!(!of_metric.is_empty(), "nobody tells {query}");
                for label in labels.iter().filter(|label| !label.is_empty()) {
                    let told = |name: &String| name.contains(&format!("{label}=\""));
                    assert!(
                        of_metric.iter().all(|name| told(name)),
                        "{query} {legend}: {label}"
                    );
                }
            }
        }
        assert!(queries > 20, "{queries}");
    }

    /// "Per-node series end with the node or are capped; scrape time is bounded." client_golang#296, cadence#5398
    #[test]
    fn series_end_with_their_node_and_are_never_too_many() {
        let count = |series: &BTreeMap<String, f64>| {
            let per_node = series.keys().filter(|name| name.contains("{node="));
            per_node.count()
        };
        let nodes = |count: usize| (0..count).map(|node| format!("d{node}/n"));
        let small = scrape(started(nodes(10)));
        let per_node = count(&small) / 10;
        assert_eq!(per_node, 8);
        let mut picture = started(nodes(1_000));
        assert_eq!(count(&scrape(picture.clone())), 1_000 * per_node);
        let view = View {
            epoch: 2,
            coordinator: n("d0/n"),
            gateways: BTreeMap::new(),
            out: [(n("d7/n"), Out::Evicted(1)), (n("d8/n"), Out::Left)].into(),
        };
        apply(&mut picture, Event::EpochChanged { view });
        let series = scrape(picture);
        assert_eq!(count(&series), 998 * per_node);
        assert_eq!(series["tombolo_nodes{state=\"evicted\"}"], 1.0);
        let series = scrape(started(nodes(3_000)));
        assert_eq!(count(&series), NODES_MAX * per_node);
        assert_eq!(series["tombolo_left_out"], (3_000 - NODES_MAX) as f64);
    }
}
