//! Machines that are network namespaces: a site is a switch of its own, and gateways have a second line to the wide area.
//!
//! ```text
//!  hq: gate a b ── bridge          wide area: 10.77.0.0/24, fd77::/64
//!          │                          hq .1   plant .2   lab .3
//!          └── uplink ───────────────────┴────────┴─────────┘
//! ```
//!
//! Nothing forwards between the two: an inner node is reached by nobody outside its site. Each machine has a host file of its own, so that a name
//! stands for what is right where it is asked, and may stand for something else later.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const SITES: [(&str, [&str; 3]); 3] = [
    ("hq", ["gate", "a", "b"]),
    ("plant", ["gate", "c", "d"]),
    ("lab", ["gate", "e", "f"]),
];

/// The machines of one test; gone when it is dropped.
pub struct Net {
    prefix: String,
    folder: PathBuf,
    /// The host part of each inner address, by node: a machine may move.
    hosts: BTreeMap<String, u8>,
}

impl Net {
    /// Makes them, or says why they cannot be had here.
    pub fn new(folder: &Path) -> Result<Net, String> {
        let prefix = format!("tb{}", std::process::id());
        let mut net = Net {
            prefix,
            folder: folder.to_owned(),
            hosts: BTreeMap::new(),
        };
        let switch = net.space("switch");
        ip(&["netns", "add", &switch])?;
        // Where a namespace can be had and these cannot, the kernel has no bridges or no pairs.
        net.inside("switch", &["link", "add", "wan", "type", "bridge"])?;
        net.inside("switch", &["link", "set", "wan", "up"])?;
        for (nth, (site, nodes)) in (1..).zip(SITES) {
            net.inside("switch", &["link", "add", site, "type", "bridge"])?;
            net.inside("switch", &["link", "set", site, "up"])?;
            for (host, name) in (1..).zip(nodes) {
                let node = format!("{site}/{name}");
                ip(&["netns", "add", &net.space(&node)])?;
                net.hosts.insert(node.clone(), host);
                net.inside(&node, &["link", "set", "lo", "up"])?;
                net.plug(&node, "site", site, &format!("{site}-{name}"))?;
                net.inside(
                    &node,
                    &[
                        "addr",
                        "add",
                        &format!("10.77.{nth}.{host}/24"),
                        "dev",
                        "site",
                    ],
                )?;
                if name == "gate" {
                    net.plug(&node, "wan", "wan", &format!("up-{site}"))?;
                    net.inside(
                        &node,
                        &["addr", "add", &format!("10.77.0.{nth}/24"), "dev", "wan"],
                    )?;
                    let six = format!("fd77::{nth}/64");
                    net.inside(&node, &["addr", "add", &six, "dev", "wan", "nodad"])?;
                }
            }
        }
        net.write_hosts();
        Ok(net)
    }

    fn space(&self, node: &str) -> String {
        format!("{}-{}", self.prefix, node.replace('/', "-"))
    }

    /// `ip` in the namespace of a node.
    fn inside(&self, node: &str, arguments: &[&str]) -> Result<(), String> {
        let space = self.space(node);
        ip(&[&["-n", space.as_str()], arguments].concat())
    }

    /// A cable from a device of a machine to a port of a bridge.
    fn plug(&self, node: &str, device: &str, bridge: &str, port: &str) -> Result<(), String> {
        let (switch, space) = (self.space("switch"), self.space(node));
        ip(&[
            "-n", &switch, "link", "add", port, "type", "veth", "peer", "name", device, "netns",
            &space,
        ])?;
        self.inside("switch", &["link", "set", port, "master", bridge, "up"])?;
        self.inside(node, &["link", "set", device, "up"])
    }

    /// The line of a site to all others.
    pub fn uplink(&self, site: &str, state: &str) {
        let port = format!("up-{site}");
        self.inside("switch", &["link", "set", &port, state])
            .unwrap();
    }

    /// An inner machine is at another address of its site from now on; whoever looks its name up finds it there.
    pub fn moves(&mut self, node: &str, host: u8) {
        let nth = nth(node);
        let before = self.hosts.insert(node.to_owned(), host).unwrap();
        let address = |host: u8| format!("10.77.{nth}.{host}/24");
        self.inside(node, &["addr", "del", &address(before), "dev", "site"])
            .unwrap();
        self.inside(node, &["addr", "add", &address(host), "dev", "site"])
            .unwrap();
        self.write_hosts();
    }

    /// Where a node is found from inside its site.
    pub fn address(&self, node: &str) -> String {
        format!("10.77.{}.{}", nth(node), self.hosts[node])
    }

    fn hosts_file(&self, node: &str) -> PathBuf {
        self.folder
            .join(format!("hosts-{}", node.replace('/', "-")))
    }

    /// What every machine knows of the others: its site by inner addresses, other gateways by those of the wide area. A lab's gateway has an old
    /// address that swallows everything, and one of IPv6.
    fn write_hosts(&self) {
        for (site, nodes) in SITES {
            for name in nodes {
                let mut text = "127.0.0.1 localhost\n".to_owned();
                for (nth, (other, theirs)) in (1..).zip(SITES) {
                    let lines = match (other == site, other) {
                        (true, _) => theirs
                            .map(|inner| {
                                let address = self.address(&format!("{other}/{inner}"));
                                format!("{address} {other}-{inner}\n")
                            })
                            .concat(),
                        (false, "lab") => {
                            format!("10.77.0.99 lab-gate\nfd77::{nth} lab-gate\n")
                        }
                        (false, _) => format!("10.77.0.{nth} {other}-gate\n"),
                    };
                    text.push_str(&lines);
                }
                // In place: processes have this very file for theirs.
                std::fs::write(self.hosts_file(&format!("{site}/{name}")), text).unwrap();
            }
        }
    }

    /// A command on a node's machine, where `mounts` of what is elsewhere are made first, each from and to.
    pub fn on(&self, node: &str, mounts: &[(PathBuf, PathBuf)], program: &[OsString]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(node)]);
        command.args(["unshare", "--mount", "--propagation", "private", "sh", "-c"]);
        let mut script = String::from("set -e; ");
        let hosts = (self.hosts_file(node), PathBuf::from("/etc/hosts"));
        let mut arguments = Vec::new();
        for (from, to) in mounts.iter().chain([&hosts]) {
            let nth = arguments.len();
            script.push_str(&format!(
                "mount --bind \"${{{}}}\" \"${{{}}}\"; ",
                nth + 1,
                nth + 2
            ));
            arguments.extend([from.clone().into_os_string(), to.clone().into_os_string()]);
        }
        script.push_str(&format!("shift {}; exec \"$@\"", arguments.len()));
        command.arg(script).arg("sh").args(arguments).args(program);
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Bridges and cables go with their namespaces.
        let nodes = self.hosts.keys().map(String::as_str).chain(["switch"]);
        for node in nodes {
            let _ = ip(&["netns", "del", &self.space(node)]);
        }
    }
}

fn nth(node: &str) -> usize {
    let (site, _) = node.split_once('/').unwrap();
    1 + SITES.iter().position(|(name, _)| *name == site).unwrap()
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let said = |text: String| format!("ip {}: {}", arguments.join(" "), text.trim());
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| said(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(said(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}
