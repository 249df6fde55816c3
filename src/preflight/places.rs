//! Where the network device of a link, its interrupts and this process sit: on which NUMA nodes. Read from sysfs and procfs, judged elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// Interrupts of one device that are looked at: a queue a processor and some more.
const INTERRUPTS_MAX: usize = 1024;

/// Processors that a list may name; Linux has no more.
const PROCESSORS_MAX: u32 = 8192;

/// Entries of a routing table that are looked at.
const ROUTES_MAX: usize = 4096;

/// The places of one link's parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// NUMA nodes of this machine.
    pub nodes: BTreeSet<u32>,
    /// The network device on the way to the peer, if the routing table tells.
    pub device: Option<String>,
    /// Its node; none if it is nowhere in particular, as virtual devices are.
    pub device_node: Option<u32>,
    /// Nodes of the processors that its interrupts go to.
    pub interrupt_nodes: BTreeSet<u32>,
    /// Nodes of the processors on which this process may run.
    pub own_nodes: BTreeSet<u32>,
}

/// Looks for the places on the way to a peer, below `root`: `/`, or what was recorded of another machine.
pub fn find(root: &Path, peer: IpAddr) -> Places {
    let nodes = nodes(root);
    let nodes_of = |processors: &BTreeSet<u32>| -> BTreeSet<u32> {
        let holding = nodes.iter().filter(|(_, of)| !of.is_disjoint(processors));
        holding.map(|(node, _)| *node).collect()
    };
    let device = match peer.to_canonical() {
        IpAddr::V4(peer) => route(root, peer),
        IpAddr::V6(peer) => route6(root, peer),
    };
    let folder = device
        .as_ref()
        .map(|device| root.join("sys/class/net").join(device).join("device"));
    let device_node = folder.as_ref().and_then(|folder| {
        // It says -1 where the firmware does not.
        read(&folder.join("numa_node"))?.trim().parse().ok()
    });
    let interrupts = folder.as_ref().map(|folder| interrupts(root, folder));
    let own = read(&root.join("proc/self/status")).and_then(|status| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.map(list)
    });
    Places {
        device,
        device_node,
        interrupt_nodes: nodes_of(&interrupts.unwrap_or_default()),
        own_nodes: nodes_of(&own.unwrap_or_default()),
        nodes: nodes.iter().map(|(node, _)| *node).collect(),
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Each NUMA node with its processors.
fn nodes(root: &Path) -> Vec<(u32, BTreeSet<u32>)> {
    let folder = root.join("sys/devices/system/node");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<_> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse();
            let processors = read(&entry.path().join("cpulist"))?;
            Some((number.ok()?, list(&processors)))
        })
        .collect();
    nodes.sort_unstable_by_key(|(node, _)| *node);
    nodes
}

/// The processors that a device's interrupts go to.
fn interrupts(root: &Path, device: &Path) -> BTreeSet<u32> {
    // A virtio device's interrupts belong to the device on the bus behind it.
    let folders: [PathBuf; 2] = [device.join("msi_irqs"), device.join("../msi_irqs")];
    let entries = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .take(INTERRUPTS_MAX);
    let lists = entries.filter_map(|entry| {
        let folder = root.join("proc/irq").join(entry.file_name());
        read(&folder.join("effective_affinity_list"))
            .filter(|list| !list.trim().is_empty())
            .or_else(|| read(&folder.join("smp_affinity_list")))
    });
    lists.flat_map(|text| list(&text)).collect()
}

/// Numbers as the kernel lists them: `0-3,8`.
fn list(text: &str) -> BTreeSet<u32> {
    let spans = text.trim().split(',').filter_map(|span| {
        let (first, last) = span
            .trim()
            .split_once('-')
            .unwrap_or((span.trim(), span.trim()));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (last < PROCESSORS_MAX).then_some(first..=last)
    });
    spans.flatten().collect()
}

/// The device of the narrowest route to an address.
fn route(root: &Path, peer: Ipv4Addr) -> Option<String> {
    if peer.is_loopback() {
        return Some("lo".to_owned());
    }
    let table = read(&root.join("proc/net/route"))?;
    let routes = table.lines().skip(1).take(ROUTES_MAX).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Bytes in the order of the network, printed as a number of this machine.
        let number = |at: usize| {
            u32::from_str_radix(fields.get(at)?, 16)
                .ok()
                .map(u32::to_be)
        };
        let (to, mask) = (number(1)?, number(7)?);
        let metric: u32 = fields.get(6)?.parse().ok()?;
        let device = (*fields.first()?).to_owned();
        (u32::from(peer) & mask == to).then_some((mask.count_ones(), u32::MAX - metric, device))
    });
    routes.max().map(|(_, _, device)| device)
}

/// The same of IPv6.
fn route6(root: &Path, peer: std::net::Ipv6Addr) -> Option<String> {
    if peer.is_loopback() {
        return Some("lo".to_owned());
    }
    let table = read(&root.join("proc/net/ipv6_route"))?;
    let routes = table.lines().take(ROUTES_MAX).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let to = u128::from_str_radix(fields.first()?, 16).ok()?;
        let bits = u32::from_str_radix(fields.get(1)?, 16).ok()?;
        let metric = u32::from_str_radix(fields.get(5)?, 16).ok()?;
        let device = (*fields.get(9)?).to_owned();
        let mask = u128::MAX
            .checked_shl(128_u32.checked_sub(bits)?)
            .unwrap_or(0);
        let is_way = device != "lo" && u128::from(peer) & mask == to;
        is_way.then_some((bits, u32::MAX - metric, device))
    });
    routes.max().map(|(_, _, device)| device)
}
