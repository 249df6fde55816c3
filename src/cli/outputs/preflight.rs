//! The lines of `preflight`.

use super::Kind::{Number, Object, Text, Whole, Word};
use super::{Output, is, line, may};

const PREFLIGHT_WAY: &str = "From `from` to `to`: probes, came (of those), bits_per_s, flow_bytes and flow_us (what that was measured with), packet_bytes (the largest payload that gets through), black_holes, buffer_send and buffer_receive (bytes granted to the sockets).";

pub(super) const OUTPUTS: &[Output] = &[
    line(
        "preflight-link",
        "preflight_link",
        "`preflight`: the numbers of a link between sites.",
        &[
            is("from", Text, "Who dialled and measured."),
            is("to", Text, "The other."),
            is("address", Text, "Where that one was reached."),
            is("round_trip_us", Whole, "The median, microseconds."),
            is("round_trip_p99_us", Whole, "What 99 of 100 do not exceed."),
            is(
                "clock_offset_us",
                Number,
                "The wall clock of `to` less that of `from`.",
            ),
            is("clock_bound_us", Whole, "That is off by no more."),
            is("there", Object, PREFLIGHT_WAY),
            is("back", Object, "From `to` to `from`; as `there`."),
        ],
    ),
    line(
        "preflight-check",
        "preflight_check",
        "`preflight`: one thing that was measured or looked at.",
        &[
            is("check", Text, "What."),
            is("verdict", Word(&["pass", "warn", "fail"]), "How it is."),
            is(
                "subject",
                Text,
                "A node, a link `A - B`, a direction `A -> B`, a domain.",
            ),
            may("expected", Text, "What it should be."),
            is("found", Text, "What was found."),
            may("fix", Text, "What to do."),
        ],
    ),
    line(
        "preflight",
        "preflight",
        "`preflight`: the last line.",
        &[
            is("links", Whole, "Links that were measured."),
            is("pass", Whole, "How many checks are well."),
            is("warn", Whole, "How many may hurt."),
            is("fail", Whole, "How many would keep a run from going well."),
        ],
    ),
];
