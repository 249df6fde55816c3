//! Looks at a machine. Everything here waits, some of it for seconds, and none of it for ever.

use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

use super::{Bound, Certificate, Facts, Limits, Own, Peer, Port, State, udp};
use crate::control;
use crate::identity::show;
use crate::world::{address, udp_buffers, udp_carries, unix_now};
use tombolo_actors::link::dials;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::{Fabric, NodePlan, Plan};

/// Peers that are asked: of a larger federation the first ones say enough.
const PEERS_MAX: usize = 64;

/// Addresses of one name that are asked.
const ADDRESSES_MAX: usize = 8;

/// Descriptors of a process that hosts no node: the program's own, and room.
const DESCRIPTORS_BASE: u64 = 128;

/// Of one node: its socket, its files, its control socket.
const DESCRIPTORS_NODE: u64 = 32;

/// Of a node and one neighbour that reads its memory: a socket and the regions that it hands out.
const DESCRIPTORS_NEIGHBOUR: u64 = 8;

/// Models that a node holds at once, at most: the one before, the one that is trained, the update, the fold, and what comes and goes.
const MODELS: u64 = 6;

/// What a process needs besides models.
const MEMORY_BASE: u64 = 48 << 20;

/// How long another program may take to answer.
const PROGRAM_LIMIT: Duration = Duration::from_secs(2);

/// What the machine is looked at for.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// The topology, if one is given.
    pub plan: Option<Plan>,
    /// Which of its nodes are to run here.
    pub nodes: Vec<NodeId>,
    /// The state folder.
    pub state: PathBuf,
    /// Elements of its model, as far as they are known.
    pub elements: u64,
}

/// Looks at this machine.
pub fn probe(question: &Question) -> Facts {
    let plan = question.plan.as_ref();
    let (free, sync) = disk(&question.state);
    Facts {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        memfd: memfd().map_err(|error| error.to_string()),
        limits: limits(question),
        synchronized: synchronized(),
        unix: unix_now(),
        made: super::made(),
        certificates: plan.map_or_else(Vec::new, |plan| certificates(plan, &question.nodes)),
        state: State {
            path: question.state.clone(),
            sync,
            free,
        },
        ports: plan.map_or_else(Vec::new, |plan| ports(plan, question)),
        buffers: udp_buffers(),
        segments: udp::segments(),
        own: plan.map_or_else(Vec::new, |plan| own(plan, &question.nodes)),
        peers: plan.map_or_else(Vec::new, |plan| peers(plan, &question.nodes)),
    }
}

/// Looks at what this process may use.
pub fn limits(question: &Question) -> Limits {
    let plan = question.plan.as_ref();
    let descriptors = getrlimit(Resource::Nofile);
    let here = question.nodes.len() as u64;
    Limits {
        shm: rustix::fs::statvfs("/dev/shm")
            .ok()
            .map(|found| found.f_bavail.saturating_mul(found.f_frsize)),
        descriptors: (
            descriptors.current.unwrap_or(u64::MAX),
            descriptors.maximum.unwrap_or(u64::MAX),
        ),
        descriptors_needed: plan.map_or(DESCRIPTORS_BASE, |plan| {
            descriptors_of(plan, &question.nodes)
        }),
        locked: getrlimit(Resource::Memlock).current,
        locked_needed: plan.and_then(|plan| locked_by(plan, &question.nodes, question.elements)),
        memory: memory_limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")),
        memory_needed: MEMORY_BASE + here * question.elements * 4 * MODELS,
    }
}

/// Makes memory as an update is exported in, and seals it.
fn memfd() -> io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = fs::File::from(rustix::fs::memfd_create("tombolo-doctor", flags)?);
    file.set_len(4096)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(())
}

fn descriptors_of(plan: &Plan, nodes: &[NodeId]) -> u64 {
    let of = |node: &NodeId| {
        let neighbours = plan
            .domain(&node.domain())
            .map_or(0, |domain| domain.nodes.len() as u64);
        DESCRIPTORS_NODE + neighbours * DESCRIPTORS_NEIGHBOUR
    };
    DESCRIPTORS_BASE + nodes.iter().map(of).sum::<u64>()
}

/// What a fabric of RDMA would lock: a model and an update of each node.
fn locked_by(plan: &Plan, nodes: &[NodeId], elements: u64) -> Option<u64> {
    let rdma = |node: &&NodeId| {
        plan.domain(&node.domain())
            .is_some_and(|domain| match domain.fabric {
                Fabric::Ibverbs => true,
                Fabric::Shm => false,
                Fabric::Auto => domain.hosts() > 1 && Path::new("/sys/class/infiniband").exists(),
            })
    };
    let count = nodes.iter().filter(rdma).count() as u64;
    (count > 0).then(|| count * elements * 4 * 2)
}

/// The tightest limit of the control groups that this process is in, of the second version; of the first its own.
pub(super) fn memory_limit(own: &Path, root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(own).ok()?;
    let read = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut tightest: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        let (file, base) = match controllers {
            "" => ("memory.max", root.to_owned()),
            "memory" => ("memory.limit_in_bytes", root.join("memory")),
            _ => continue,
        };
        // In a container the path may be that of the host; then its root is what there is.
        for group in Path::new(path).ancestors() {
            let most = read(base.join(group).join(file));
            // The first version says "none" by a number that no machine has.
            let most = most.filter(|most| *most < 1 << 60);
            tightest = tightest.into_iter().chain(most).min();
        }
    }
    tightest
}

/// Whether something keeps the clock: by systemd's word, which has it from the kernel, or by a running chrony.
fn synchronized() -> Option<bool> {
    let said = ask(
        "timedatectl",
        &["show", "--property=NTPSynchronized", "--value"],
    );
    match said.as_deref().map(str::trim) {
        Some("yes") => return Some(true),
        Some("no") => return Some(false),
        _ => {}
    }
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        return Some(true);
    }
    let tracked = ask("chronyc", &["-c", "tracking"])?;
    // The last field: how the leap second stands, or that nothing is synchronized.
    Some(!tracked.contains("Not synchronised"))
}

/// What another program says; none if it is not there, fails, or takes long.
fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(None) if began.elapsed() < PROGRAM_LIMIT => {
                crate::world::pause(Duration::from_millis(10))
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let mut said = String::new();
    let mut out = child.stdout.take()?;
    io::Read::read_to_string(&mut io::Read::take(&mut out, 4096), &mut said).ok()?;
    Some(said)
}

/// Free bytes of a folder's disk, and how long a small file takes to get there. The folder is made if it is not there, as a node would.
fn disk(state: &Path) -> (u64, Result<Duration, String>) {
    let there = state.ancestors().find(|folder| folder.exists());
    let free = there.and_then(|folder| rustix::fs::statvfs(folder).ok());
    let free = free.map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let path = state.join(format!(".doctor.{}", std::process::id()));
    let write = || -> io::Result<Duration> {
        fs::create_dir_all(state)?;
        let mut took = Duration::ZERO;
        // The first may pay for what others have written.
        for _ in 0..2 {
            let mut file = fs::File::create(&path)?;
            file.write_all(&[7; 4096])?;
            let began = Instant::now();
            file.sync_all()?;
            took = began.elapsed();
        }
        Ok(took)
    };
    let written = write().map_err(|error| error.to_string());
    // What is not there need not be removed.
    let _ = fs::remove_file(&path);
    (free, written)
}

fn certificates(plan: &Plan, nodes: &[NodeId]) -> Vec<Certificate> {
    let now = unix_now();
    let roots = plan
        .domains
        .iter()
        .map(|domain| show::show_root(domain, now));
    let leaves = nodes
        .iter()
        .filter_map(|node| show::show_node(plan, node, now));
    let entries = roots.chain(leaves);
    entries
        .map(|entry| Certificate {
            path: entry.path,
            remaining: entry.remaining_s,
            problems: entry.problems,
        })
        .collect()
}

fn planned<'a>(plan: &'a Plan, nodes: &'a [NodeId]) -> impl Iterator<Item = &'a NodePlan> {
    nodes.iter().filter_map(|node| plan.node(node))
}

fn ports(plan: &Plan, question: &Question) -> Vec<Port> {
    let running: Vec<NodeId> = control::processes(&question.state)
        .into_iter()
        .flatten()
        .flat_map(|status| status.nodes)
        .map(|node| node.node)
        .collect();
    let listening = planned(plan, &question.nodes).filter_map(|node| Some((node, node.listen?)));
    listening
        .map(|(node, address)| Port {
            node: node.id.to_string(),
            address,
            bound: match UdpSocket::bind(address) {
                Ok(_) => Bound::Free,
                Err(_) if running.contains(&node.id) => Bound::Running,
                Err(error) => Bound::Refused(error.to_string()),
            },
        })
        .collect()
}

/// `host:port`, looked up as a dial does it.
fn look_up(host: &str) -> Result<Vec<SocketAddr>, String> {
    let found = host.to_socket_addrs();
    let found = found.map_err(|error| format!("the name cannot be looked up: {error}"))?;
    let mut found: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
    found.sort_unstable();
    found.dedup();
    match found.is_empty() {
        true => Err("the name stands for no address".to_owned()),
        false => Ok(found),
    }
}

fn own(plan: &Plan, nodes: &[NodeId]) -> Vec<Own> {
    let told = planned(plan, nodes).filter_map(|node| Some((node, address::host_of(node)?)));
    told.map(|(node, host)| Own {
        node: node.id.to_string(),
        addresses: look_up(&host).map(|addresses| {
            let each = addresses.into_iter();
            each.map(|address| (address, comes_back(node, address)))
                .collect()
        }),
        host,
    })
    .collect()
}

/// Whether what is sent to a node's address comes here: to a socket on its port, or to the node itself if it runs.
fn comes_back(node: &NodePlan, address: SocketAddr) -> bool {
    let listen = node.listen.filter(|listen| listen.port() != 0);
    let bound = listen.and_then(|listen| UdpSocket::bind(listen).ok());
    match bound {
        Some(socket) => udp::comes_back(&socket, address).unwrap_or(false),
        None => udp::ask(address, udp_carries(address)).payload().is_some(),
    }
}

fn peers(plan: &Plan, nodes: &[NodeId]) -> Vec<Peer> {
    let mut asked: Vec<NodeId> = nodes
        .iter()
        .flat_map(|node| {
            plan.peers(node)
                .into_iter()
                .filter(|peer| dials(plan, node, peer))
        })
        .filter(|peer| !nodes.contains(peer))
        .collect();
    asked.sort();
    asked.dedup();
    asked.truncate(PEERS_MAX);
    // All at once: each may take seconds to say nothing.
    let asking = asked.iter().filter_map(|node| {
        let host = address::host_of(plan.node(node)?)?;
        let name = node.to_string();
        let work = move || Peer {
            node: name,
            is_elsewhere: !address::is_this_machine(&host),
            addresses: look_up(&host).map(|addresses| {
                let each = addresses.into_iter();
                each.map(|address| (address, udp::ask(address, udp_carries(address))))
                    .collect()
            }),
            host,
        };
        crate::world::thread("tombolo-doctor", work).ok()
    });
    let asking: Vec<_> = asking.collect();
    asking
        .into_iter()
        .filter_map(|asking| asking.join().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_of_the_groups_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("own", "0::/site/node\n");
        assert_eq!(memory_limit(&root.join("own"), &root.join("cg")), None);
        write("cg/site/node/memory.max", "max\n");
        write("cg/site/memory.max", "1048576\n");
        write("cg/memory.max", "9000000\n");
        assert_eq!(
            memory_limit(&root.join("own"), &root.join("cg")),
            Some(1_048_576)
        );
        write("own", "3:cpu:/x\n2:memory:/site\n");
        write("cg/memory/site/memory.limit_in_bytes", "4096\n");
        write("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(
            memory_limit(&root.join("own"), &root.join("cg")),
            Some(4096)
        );
        assert_eq!(memory_limit(&root.join("none"), &root.join("cg")), None);
    }

    #[test]
    fn a_folder_that_is_a_file_and_one_that_is_made_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (free, sync) = disk(&folder.path().join("new/state"));
        assert!(free > 0 && sync.is_ok(), "{sync:?}");
        let left = fs::read_dir(folder.path().join("new/state")).unwrap();
        assert_eq!(left.count(), 0, "it leaves nothing behind");
        fs::write(folder.path().join("file"), "").unwrap();
        let (_, sync) = disk(&folder.path().join("file"));
        assert!(sync.unwrap_err().contains("os error"));
    }
}
