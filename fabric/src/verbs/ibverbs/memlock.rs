//! How much memory this process may lock, which registering does.

use std::fs;

use rustix::process::Resource;

use crate::error::FabricError;

/// The capability to lock memory without a limit, as a bit of `CapEff`.
const IPC_LOCK: u64 = 1 << 14;

/// Checks that `bytes` more may be locked. The kernel's own answer would be "out of memory", which it is not.
pub(super) fn check(bytes: u64) -> Result<(), FabricError> {
    // A capability is a thread's.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    check_against(&status, limit, bytes)
}

fn check_against(status: &str, limit: Option<u64>, bytes: u64) -> Result<(), FabricError> {
    let Some(limit) = limit else {
        return Ok(());
    };
    let capabilities = field(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    if capabilities.is_some_and(|bits| bits & IPC_LOCK != 0) {
        return Ok(());
    }
    let pinned = field(status, "VmPin:")
        .and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok())
        .unwrap_or(0)
        .saturating_mul(1024);
    // The kernel counts whole pages.
    let needed = pinned.saturating_add(bytes.next_multiple_of(4096));
    if needed <= limit {
        return Ok(());
    }
    Err(FabricError::Exhausted {
        what: "registered memory, which is locked (RLIMIT_MEMLOCK)",
        needed,
        limit,
        advice: "raise it: `ulimit -l`, or LimitMEMLOCK= of the service",
    })
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_beyond_the_limit_is_refused_with_limit_and_need() {
        let status = "Name:\tx\nVmPin:\t    1024 kB\nCapEff:\t0000000000000000\n";
        assert!(check_against(status, Some(8 << 20), 7 << 20).is_ok());
        match check_against(status, Some(8 << 20), (7 << 20) + 1) {
            Err(FabricError::Exhausted { needed, limit, .. }) => {
                assert_eq!((needed, limit), ((8 << 20) + 4096, 8 << 20));
            }
            other => panic!("{other:?}"),
        }
        assert!(check_against(status, None, u64::MAX / 2).is_ok());
    }

    #[test]
    fn who_may_lock_everything_has_no_limit() {
        let status = "VmPin:\t0 kB\nCapEff:\t0000000000004000\n";
        assert!(check_against(status, Some(4096), 1 << 30).is_ok());
        let status = "VmPin:\t0 kB\nCapEff:\t000001ffffffbfff\n";
        assert!(check_against(status, Some(4096), 1 << 30).is_err());
    }

    #[test]
    fn the_kernel_tells_what_we_ask_for() {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(field(&status, "CapEff:").is_some());
        assert!(field(&status, "VmPin:").is_some_and(|text| text.ends_with("kB")));
    }
}
