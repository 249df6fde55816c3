//! A peer that is not there: what its silence looks like says why.

use std::net::SocketAddr;
use std::time::Duration;

use tombolo_core::ids::NodeId;

use super::{Finding, finding};
use crate::doctor::{Answer, Verdict};

/// A peer that did not come, or whose link was not measured.
#[derive(Debug, Clone)]
pub struct Absent {
    /// Who has waited.
    pub node: NodeId,
    /// For whom.
    pub peer: NodeId,
    /// Whether `node` is the one that dials.
    pub leads: bool,
    /// Why.
    pub why: Why,
    /// The addresses of `peer`, and what came back from those that were asked; or why there are none.
    pub addresses: Result<Vec<(SocketAddr, Option<Answer>)>, String>,
    /// Handshakes that failed at `node`.
    pub refusals: Vec<String>,
    /// How long it was waited.
    pub waited: Duration,
}

/// Why a peer is absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// It did not come within the time; and what the last attempt said.
    Missed(String),
    /// It takes part in a run.
    AtWork,
    /// Its file is another one.
    AnotherTopology,
    /// A certificate or a policy.
    Refused(String),
    /// It was there, and the measurement failed.
    Broke(String),
}

/// A peer that is not there.
pub fn absent(absent: &Absent) -> Finding {
    let Absent { node, peer, .. } = absent;
    let tried = match &absent.addresses {
        Err(reason) => reason.clone(),
        Ok(addresses) => {
            let each = addresses.iter().map(|(address, answer)| match answer {
                Some(answer) => format!("{address} {answer}"),
                None => address.to_string(),
            });
            each.collect::<Vec<_>>().join(", ")
        }
    };
    let (found, fix) = match &absent.why {
        Why::AtWork => (
            format!("{peer} is at work already ({tried})"),
            format!("measure before the run, or stop it first (`tombolo stop FILE`): a preflight does not disturb {peer}"),
        ),
        Why::AnotherTopology => (
            format!("{peer} is there, with another topology ({tried})"),
            "give both machines the same file".to_owned(),
        ),
        Why::Refused(reason) => (
            format!("{peer} is there, and there is no way in ({tried}): {reason}"),
            "mend the certificate, the pin or the policy that is named: `tombolo certs show FILE`, `tombolo policy explain FILE`".to_owned(),
        ),
        Why::Broke(reason) => (
            format!("{peer} was reached, and the measurement failed ({tried}): {reason}"),
            format!("start both again; if it fails again, see the log of {peer} (TOMBOLO_LOG=debug)"),
        ),
        Why::Missed(last) => missed(absent, &tried, last),
    };
    finding(
        "reached",
        format!("{node} - {peer}"),
        Verdict::Fail,
        format!("{peer} within {:?}", absent.waited),
        found,
        fix,
    )
}

/// Nobody came: what the silence looks like says why.
fn missed(absent: &Absent, tried: &str, last: &str) -> (String, String) {
    let Absent { node, peer, .. } = absent;
    let dialled = match absent.leads {
        true => format!("{node} dialled {tried}"),
        false => format!("{peer} is to dial {node} and did not; {peer} itself is at {tried}"),
    };
    let mut found = format!("{peer} never came: {dialled}");
    if !last.is_empty() {
        found.push_str(&format!("; the last attempt: {last}"));
    }
    if !absent.refusals.is_empty() {
        let refusals = absent.refusals.join("; ");
        found.push_str(&format!("; handshakes refused at {node}: {refusals}"));
    }
    let start = format!(
        "start `tombolo preflight FILE --name {peer}` on its machine at about the same time"
    );
    let answers: Vec<&Answer> = match &absent.addresses {
        Ok(addresses) => addresses
            .iter()
            .filter_map(|(_, answer)| answer.as_ref())
            .collect(),
        Err(_) => Vec::new(),
    };
    let any = |is: fn(&Answer) -> bool| answers.iter().any(|answer| is(answer));
    let fix = if any(|answer| matches!(answer, Answer::Quic(_))) {
        format!(
            "something speaks QUIC there: see that it is {peer}, and that its certificate is of its domain"
        )
    } else if any(|answer| matches!(answer, Answer::Absent)) {
        format!(
            "the machine says (by ICMP) that nothing listens on that port: {start}, or correct its `listen` and `advertise`"
        )
    } else if any(|answer| matches!(answer, Answer::Silent)) {
        format!(
            "nothing comes back, not even ICMP: UDP is blocked on the way, or the machine is off; allow UDP to that port in every firewall on the way, both ways; and {start}"
        )
    } else if !answers.is_empty() {
        "this machine has no way there: see `ip route get`".to_owned()
    } else {
        start
    };
    (found, fix)
}
