//! Versions that are too old: the bans of `deny.toml` against `Cargo.lock`, without a network or another program.

use semver::{Version, VersionReq};

use super::{Fault, Tree};

const BANS: &str = "deny.toml";
const LOCK: &str = "Cargo.lock";

/// A locked version that a ban names, or files that cannot be understood.
pub fn check(tree: &Tree) -> Vec<Fault> {
    let text = |file: &str| tree.get(file).map_or("", String::as_str);
    let fault = |file: &str, message: String| Fault {
        file: file.to_owned(),
        line: 0,
        message,
    };
    let bans = match bans(text(BANS)) {
        Ok(bans) if bans.is_empty() => {
            return vec![fault(
                BANS,
                "holds no [bans] deny with a version: the floors are gone".into(),
            )];
        }
        Ok(bans) => bans,
        Err(reason) => return vec![fault(BANS, reason)],
    };
    let locked = match locked(text(LOCK)) {
        Ok(locked) => locked,
        Err(reason) => return vec![fault(LOCK, reason)],
    };
    let mut faults = Vec::new();
    for (name, version) in &locked {
        for ban in &bans {
            if ban.name == *name && ban.versions.matches(version) {
                let message = format!(
                    "{name} {version} is banned ({}): {}",
                    ban.versions, ban.reason
                );
                faults.push(fault(LOCK, message));
            }
        }
    }
    faults
}

#[derive(Debug)]
struct Ban {
    name: String,
    versions: VersionReq,
    reason: String,
}

/// The entries `{ crate = "name@versions", reason = "..." }`.
fn bans(text: &str) -> Result<Vec<Ban>, String> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let entries = table
        .get("bans")
        .and_then(|bans| bans.get("deny"))
        .and_then(toml::Value::as_array);
    let mut bans = Vec::new();
    for entry in entries.into_iter().flatten() {
        let field = |name| entry.get(name).and_then(toml::Value::as_str);
        let spec = field("crate").ok_or_else(|| format!("a ban without a crate: {entry}"))?;
        let (name, versions) = spec.split_once('@').unwrap_or((spec, "*"));
        let versions = VersionReq::parse(versions).map_err(|error| format!("{spec}: {error}"))?;
        bans.push(Ban {
            name: name.to_owned(),
            versions,
            reason: field("reason").unwrap_or("no reason given").to_owned(),
        });
    }
    Ok(bans)
}

fn locked(text: &str) -> Result<Vec<(String, Version)>, String> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let packages = table.get("package").and_then(toml::Value::as_array);
    let mut locked = Vec::new();
    for package in packages.ok_or("locks no package")? {
        let field = |name| package.get(name).and_then(toml::Value::as_str);
        let (Some(name), Some(version)) = (field("name"), field("version")) else {
            return Err(format!("a package without name or version: {package}"));
        };
        let version = Version::parse(version).map_err(|error| format!("{name}: {error}"))?;
        locked.push((name.to_owned(), version));
    }
    Ok(locked)
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    const DENY: &str = "[bans]\ndeny = [{ crate = \"quinn-proto@<0.11.17\", reason = \"old\" }]\n";

    fn found(lock: &str) -> Vec<Fault> {
        check(&tree(&[(BANS, DENY), (LOCK, lock)]))
    }

    #[test]
    fn a_version_below_its_floor_is_a_fault() {
        let old = "[[package]]\nname = \"quinn-proto\"\nversion = \"0.11.16\"\n";
        let faults = found(old);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(
            faults[0].message.contains("quinn-proto 0.11.16"),
            "{faults:?}"
        );
        assert!(found(&old.replace("0.11.16", "0.11.17")).is_empty());
        assert!(found(&old.replace("quinn-proto", "another")).is_empty());
    }

    #[test]
    fn a_gate_that_cannot_see_is_a_fault() {
        assert_eq!(found("not a lock file").len(), 1);
        assert_eq!(found("").len(), 1);
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n";
        assert_eq!(check(&tree(&[(BANS, "[bans]\n"), (LOCK, lock)])).len(), 1);
        let unreadable = "[bans]\ndeny = [{ crate = \"a@older\" }]\n";
        assert_eq!(check(&tree(&[(BANS, unreadable), (LOCK, lock)])).len(), 1);
    }

    /// The floors that the project decided on; a ban may be raised, never dropped.
    #[test]
    fn the_floors_stand_in_this_workspace() {
        let text = std::fs::read_to_string(crate::root().join(BANS)).unwrap_or_default();
        let bans = bans(&text).unwrap_or_default();
        for (name, old) in [
            ("quinn-proto", "0.11.16"),
            ("rustls-webpki", "0.103.12"),
            ("memmap2", "0.9.10"),
        ] {
            let old = Version::parse(old).expect("a version");
            let banned = |ban: &Ban| ban.name == name && ban.versions.matches(&old);
            assert!(bans.iter().any(banned), "{name} {old} is not banned");
        }
    }
}
