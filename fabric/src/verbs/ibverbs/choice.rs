//! Which device, port and address: what sysfs says, judged.
//!
//! RoCE version 2 only: it goes through routers, and both sides can tell its addresses from those of version 1. Of the ports that can be
//! used the one with the best address is taken, then the first by name. A port keeps its other addresses, since a reader must answer an
//! IPv4 address with one of its own, and an IPv6 address likewise.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use crate::error::NoRdma;

/// Where the kernel shows RDMA devices.
pub(super) const SYSFS: &str = "/sys/class/infiniband";

/// Entries of an address table that are looked at: the index has eight bits.
const GIDS_MAX: usize = 256;

/// One address of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gid {
    /// In the port's table.
    pub(super) index: u8,
    /// As it goes over the wire.
    pub(super) bytes: [u8; 16],
    /// Of the network interface, which addresses of one link need.
    pub(super) scope: u32,
}

impl Gid {
    /// The same as an address of the Internet.
    pub(super) fn ip(&self) -> IpAddr {
        ip(&self.bytes)
    }

    /// Where a socket that goes with it listens.
    pub(super) fn listen(&self) -> SocketAddr {
        socket(&self.bytes, self.scope, 0)
    }

    fn reach(&self) -> Reach {
        match self.ip() {
            IpAddr::V4(address) if !address.is_link_local() => Reach::Routed4,
            IpAddr::V6(address) if !address.is_unicast_link_local() => Reach::Routed6,
            IpAddr::V4(_) => Reach::Link4,
            IpAddr::V6(_) => Reach::Link6,
        }
    }
}

/// An address and a port for a socket; `scope` matters to addresses of one link only.
pub(super) fn socket(gid: &[u8; 16], scope: u32, port: u16) -> SocketAddr {
    match ip(gid) {
        IpAddr::V4(address) => (address, port).into(),
        IpAddr::V6(address) => {
            let scope = if address.is_unicast_link_local() {
                scope
            } else {
                0
            };
            SocketAddrV6::new(address, port, 0, scope).into()
        }
    }
}

/// A GID is an IPv6 address, or an IPv4 address in IPv6's clothes.
pub(super) fn ip(gid: &[u8; 16]) -> IpAddr {
    let address = Ipv6Addr::from(*gid);
    address
        .to_ipv4_mapped()
        .map_or(IpAddr::V6(address), IpAddr::V4)
}

/// How far an address reaches, the farthest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Routed4,
    Routed6,
    Link4,
    Link6,
}

/// A port that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) device: String,
    pub(super) number: u8,
    /// The best first; never empty.
    pub(super) gids: Vec<Gid>,
}

impl Port {
    /// The one that peers connect to.
    pub(super) fn gid(&self) -> &Gid {
        &self.gids[0]
    }

    /// Our best address of the same kind as a peer's.
    pub(super) fn gid_towards(&self, peer: &[u8; 16]) -> Option<&Gid> {
        let is_ipv4 = ip(peer).is_ipv4();
        self.gids.iter().find(|gid| gid.ip().is_ipv4() == is_ipv4)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} port {}, address {} (RoCE v2, index {})",
            self.device,
            self.number,
            self.gid().ip(),
            self.gid().index
        )
    }
}

/// The best port of the devices of these names.
pub(super) fn choose(sysfs: &Path, devices: &[String]) -> Result<Port, NoRdma> {
    let mut reasons = Vec::new();
    let mut ports = Vec::new();
    for device in devices {
        let folder = sysfs.join(device).join("ports");
        for number in numbers(&folder) {
            match port(&folder.join(number.to_string()), device, number) {
                Ok(port) => ports.push(port),
                Err(reason) => reasons.push(format!("{device} port {number}: {reason}")),
            }
        }
    }
    ports.sort_by_key(|port| (port.gid().reach(), port.device.clone(), port.number));
    match ports.into_iter().next() {
        Some(port) => Ok(port),
        None if reasons.is_empty() => Err(NoRdma::NoDevice),
        None => Err(NoRdma::Unusable { reasons }),
    }
}

fn port(folder: &Path, device: &str, number: u8) -> Result<Port, String> {
    let layer = text(&folder.join("link_layer")).unwrap_or_default();
    if layer != "Ethernet" {
        return Err(format!(
            "its link layer is {layer:?}, expected \"Ethernet\" (RoCE)"
        ));
    }
    let state = text(&folder.join("state")).unwrap_or_default();
    if !state.starts_with("4:") {
        return Err(format!(
            "its state is {state:?}, expected \"4: ACTIVE\"; set its network interface up"
        ));
    }
    let mut gids: Vec<Gid> = (0..GIDS_MAX)
        .filter_map(|index| gid(folder, u8::try_from(index).ok()?))
        .collect();
    gids.sort_by_key(|gid| (gid.reach(), gid.index));
    if gids.is_empty() {
        return Err(
            "it has no address (GID) of type \"RoCE v2\"; give its network interface an IP address"
                .to_owned(),
        );
    }
    Ok(Port {
        device: device.to_owned(),
        number,
        gids,
    })
}

/// An entry of the address table; empty ones cannot be read or are all zero.
fn gid(folder: &Path, index: u8) -> Option<Gid> {
    let kind = text(&folder.join("gid_attrs/types").join(index.to_string()))?;
    let shown = text(&folder.join("gids").join(index.to_string()))?;
    let address: Ipv6Addr = shown.parse().ok()?;
    if kind != "RoCE v2" || address.is_unspecified() {
        return None;
    }
    let interface = text(&folder.join("gid_attrs/ndevs").join(index.to_string()));
    let scope = interface
        .filter(|name| !name.contains('/'))
        .and_then(|name| text(&Path::new("/sys/class/net").join(name).join("ifindex")))
        .and_then(|number| number.parse().ok());
    Some(Gid {
        index,
        bytes: address.octets(),
        scope: scope.unwrap_or(0),
    })
}

/// Of the ports, in order.
fn numbers(folder: &Path) -> Vec<u8> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<u8> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file)
        .ok()
        .map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTED4: &str = "0000:0000:0000:0000:0000:ffff:0a62:0001";
    const LINK4: &str = "0000:0000:0000:0000:0000:ffff:a9fe:0001";
    const ROUTED6: &str = "2001:0db8:0000:0000:0000:0000:0000:0001";
    const LINK6: &str = "fe80:0000:0000:0000:0000:98ff:fe00:0001";
    const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

    /// A tree as the kernel shows it.
    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        fn new() -> Sysfs {
            Sysfs(tempfile::tempdir().unwrap())
        }

        fn port(&self, device: &str, layer: &str, state: &str, gids: &[(&str, &str)]) -> &Sysfs {
            let folder = self.0.path().join(device).join("ports/1");
            for part in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
                fs::create_dir_all(folder.join(part)).unwrap();
            }
            let write = |name: &str, text: &str| {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            };
            write("link_layer", layer);
            write("state", state);
            for (index, (kind, gid)) in gids.iter().enumerate() {
                write(&format!("gids/{index}"), gid);
                write(&format!("gid_attrs/types/{index}"), kind);
                write(&format!("gid_attrs/ndevs/{index}"), "lo");
            }
            self
        }

        fn choose(&self, devices: &[&str]) -> Result<Port, String> {
            let devices: Vec<String> = devices.iter().map(|&name| name.to_owned()).collect();
            choose(self.0.path(), &devices).map_err(|error| error.to_string())
        }
    }

    // nccl#426: an address that reaches only its own link was taken, or one of another type than the peer's.
    #[test]
    fn a_routable_address_of_version_2_comes_first_whatever_its_index() {
        let sysfs = Sysfs::new();
        let gids = [
            ("IB/RoCE v1", LINK6),
            ("RoCE v2", LINK6),
            ("IB/RoCE v1", ROUTED4),
            ("RoCE v2", LINK4),
            ("RoCE v2", ROUTED6),
            ("RoCE v2", ROUTED4),
            ("RoCE v2", EMPTY),
        ];
        sysfs.port("mlx5_0", "Ethernet", "4: ACTIVE", &gids);
        let port = sysfs.choose(&["mlx5_0"]).unwrap();
        let order: Vec<u8> = port.gids.iter().map(|gid| gid.index).collect();
        assert_eq!(order, [5, 4, 3, 1]);
        assert_eq!(port.gid().listen(), "10.98.0.1:0".parse().unwrap());
        assert_eq!(
            port.to_string(),
            "mlx5_0 port 1, address 10.98.0.1 (RoCE v2, index 5)"
        );
    }

    #[test]
    fn a_peer_is_answered_with_an_address_of_its_kind() {
        let sysfs = Sysfs::new();
        let gids = [("RoCE v2", LINK6), ("RoCE v2", ROUTED4)];
        sysfs.port("rxe0", "Ethernet", "4: ACTIVE", &gids);
        let port = sysfs.choose(&["rxe0"]).unwrap();
        let of = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let towards = |text: &str| port.gid_towards(&of(text)).map(|gid| gid.index);
        assert_eq!(
            (towards(ROUTED4), towards(LINK4), towards(ROUTED6)),
            (Some(1), Some(1), Some(0))
        );
        let only4 = Port {
            gids: port.gids[..1].to_vec(),
            ..port
        };
        assert_eq!(only4.gid_towards(&of(ROUTED6)), None);
    }

    #[test]
    fn the_device_with_the_farthest_address_is_taken_then_the_first_by_name() {
        let sysfs = Sysfs::new();
        sysfs
            .port("rxe0", "Ethernet", "4: ACTIVE", &[("RoCE v2", LINK6)])
            .port("rxe1", "Ethernet", "1: DOWN", &[("RoCE v2", ROUTED4)])
            .port("rxe3", "Ethernet", "4: ACTIVE", &[("RoCE v2", ROUTED4)])
            .port("rxe2", "Ethernet", "4: ACTIVE", &[("RoCE v2", ROUTED4)]);
        let all = ["rxe3", "rxe2", "rxe1", "rxe0"];
        assert_eq!(sysfs.choose(&all).unwrap().device, "rxe2");
        assert_eq!(sysfs.choose(&["rxe0"]).unwrap().device, "rxe0");
    }

    #[test]
    fn a_port_that_cannot_be_used_is_told_with_what_was_expected() {
        let sysfs = Sysfs::new();
        sysfs
            .port("ib0", "InfiniBand", "4: ACTIVE", &[])
            .port("rxe0", "Ethernet", "1: DOWN", &[])
            .port("rxe1", "Ethernet", "4: ACTIVE", &[("IB/RoCE v1", ROUTED4)]);
        let said = sysfs.choose(&["ib0", "rxe0", "rxe1"]).unwrap_err();
        for part in [
            "ib0 port 1: its link layer is \"InfiniBand\", expected \"Ethernet\"",
            "rxe0 port 1: its state is \"1: DOWN\", expected \"4: ACTIVE\"",
            "rxe1 port 1: it has no address (GID) of type \"RoCE v2\"",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(sysfs.choose(&[]).unwrap_err(), NoRdma::NoDevice.to_string());
    }
}
