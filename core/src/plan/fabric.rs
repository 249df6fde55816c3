//! What carries tensors inside a domain, and what decides it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{DomainPlan, NodePlan};

/// A domain's fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// The best one that works here.
    Auto,
    /// Shared memory.
    Shm,
    /// RDMA devices.
    Ibverbs,
}

impl Fabric {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Fabric::Auto => "auto",
            Fabric::Shm => "shm",
            Fabric::Ibverbs => "ibverbs",
        }
    }
}

impl DomainPlan {
    /// On how many machines its nodes are, as far as their addresses tell: at least one. Nodes without an address, or with one that only
    /// their own machine knows, are all on one.
    pub fn hosts(&self) -> usize {
        let hosts: BTreeSet<String> = self.nodes.iter().map(NodePlan::host).collect();
        hosts.len().max(1)
    }
}

impl NodePlan {
    /// The machine that peers are sent to; empty for the one that the node itself is on.
    fn host(&self) -> String {
        let advertised = self.advertise.as_deref();
        let host = advertised.and_then(|text| Some(text.rsplit_once(':')?.0.to_owned()));
        let host = host.or_else(|| Some(self.listen?.ip().to_string()));
        let host = host.unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let only_here = bare == "localhost"
            || bare
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback() || address.is_unspecified());
        match only_here {
            true => String::new(),
            false => bare.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::plan;
    use super::*;

    #[test]
    fn hosts_are_counted_by_what_peers_are_told_to_dial() {
        let mut domain = plan(&[1]).domains.remove(0);
        let mut hosts = |addresses: &[(Option<&str>, Option<&str>)]| {
            let node = domain.nodes[0].clone();
            let nodes = addresses.iter().map(|(listen, advertise)| NodePlan {
                listen: listen.map(|text| text.parse().unwrap()),
                advertise: advertise.map(str::to_owned),
                ..node.clone()
            });
            domain.nodes = nodes.collect();
            domain.hosts()
        };
        assert_eq!(hosts(&[(None, None), (None, None)]), 1);
        assert_eq!(
            hosts(&[
                (None, None),
                (Some("127.0.0.1:1"), None),
                (Some("[::1]:1"), Some("localhost:2")),
                (Some("0.0.0.0:3"), None),
            ]),
            1
        );
        assert_eq!(
            hosts(&[(Some("10.0.0.1:1"), None), (Some("10.0.0.1:2"), None)]),
            1
        );
        assert_eq!(
            hosts(&[
                (Some("10.0.0.1:1"), None),
                (Some("10.0.0.2:1"), None),
                (Some("0.0.0.0:1"), Some("c.example:7000")),
                (Some("[2001:db8::1]:1"), Some("[2001:db8::1]:7")),
            ]),
            4
        );
    }
}
