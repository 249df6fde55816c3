//! Certificates and keys on disk.
//!
//! A root is public (0644) but only its owner may write it; keys and nodes' certificates are their owner's alone (0600). Files appear whole or
//! not at all, and are not replaced unless that is asked for.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{Certificate, KeyPair, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tombolo_actors::identity::{IdentityError, MaterialFault};
use tombolo_core::ids::DomainId;
use tombolo_core::plan::DomainPlan;
use tombolo_core::wire::LIST_BYTES_MAX;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::revocation::List;
use crate::bounded::{self, ReadError};

/// The largest file read: some dozens of certificates.
const FILE_LENGTH_MAX: usize = 64 * 1024;

/// The most roots of one domain: the present one, the next one, and room.
const ROOTS_MAX: usize = 8;

/// The most certificates of a node's file: its own, and what leads from it to a root.
const CHAIN_MAX: usize = 5;

/// How often a pair is looked at whose halves do not fit: one of them may just be changing.
const PAIR_LOOKS: u32 = 3;

/// The largest file of lists: one for each root.
const LISTS_LENGTH_MAX: usize = ROOTS_MAX * LIST_BYTES_MAX * 3 / 2;

const ROOT_MODE: u32 = 0o644;
pub(super) const PRIVATE_MODE: u32 = 0o600;

/// Where one domain's certificates and keys lie: the root, its key beside it, and a folder with the domain's name for its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainFiles {
    domain: DomainId,
    root: PathBuf,
}

impl DomainFiles {
    /// The root that the plan names and what belongs to it.
    pub fn of_plan(domain: &DomainPlan) -> DomainFiles {
        DomainFiles {
            domain: domain.id.clone(),
            root: domain.root.clone(),
        }
    }

    /// The domain.
    pub fn domain(&self) -> &DomainId {
        &self.domain
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The root's key.
    pub fn root_key(&self) -> PathBuf {
        key_beside(&self.root)
    }

    /// The key of the root that is to sign next.
    pub fn next_root_key(&self) -> PathBuf {
        self.root.with_extension("next.key")
    }

    /// The key of the root that has signed before, and signs lists until it is retired.
    pub fn old_root_key(&self) -> PathBuf {
        self.root.with_extension("old.key")
    }

    /// Where whoever changes lists or roots is alone, until the file is dropped.
    pub(super) fn lock(&self) -> Result<File, IdentityError> {
        let path = self.root.with_extension("lock");
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true);
        let file = bounded::open_regular(&path, options.mode(PRIVATE_MODE));
        let locked = file.and_then(|file| file.lock().map(|()| file));
        locked.map_err(|error| files_fault("lock", &path, error))
    }

    /// A node's certificate.
    pub fn leaf(&self, name: &str) -> PathBuf {
        self.root
            .with_file_name(self.domain.as_str())
            .join(format!("{name}.pem"))
    }

    /// A node's key.
    pub fn leaf_key(&self, name: &str) -> PathBuf {
        key_beside(&self.leaf(name))
    }

    /// The key that takes the place of a node's key together with a new certificate: it lies there from before until after that.
    pub fn next_leaf_key(&self, name: &str) -> PathBuf {
        self.leaf(name).with_file_name(format!("{name}.next.key"))
    }

    /// The domain's lists of revoked certificates, one behind the other.
    pub fn lists(&self) -> PathBuf {
        self.root.with_extension("crl.pem")
    }

    /// The domain's roots; with pins, those that they name.
    pub(super) fn read_roots(
        &self,
        pins: &[[u8; 32]],
    ) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        let fail = |fault| material(&self.root, fault);
        let bytes = read(&self.root, Access::Public, || {
            MaterialFault::Missing {
            what: format!("the root certificate of domain {}", self.domain),
            next: "copy it from the domain's administration, or make the domain with `tombolo certs init`".into(),
        }
        })?;
        let mut roots = certificates(&self.root, &bytes)?;
        if roots.is_empty() || roots.len() > ROOTS_MAX {
            return Err(fail(MaterialFault::Malformed {
                expected: format!("1 to {ROOTS_MAX} certificates in PEM"),
                found: roots.len().to_string(),
            }));
        }
        if !pins.is_empty() {
            let found: Vec<String> = roots.iter().map(|root| hex(&sha256(root))).collect();
            roots.retain(|root| pins.contains(&sha256(root)));
            if roots.is_empty() {
                let expected: Vec<String> = pins.iter().map(|pin| hex(pin)).collect();
                return Err(fail(MaterialFault::Pin {
                    expected: expected.join(" or "),
                    found: found.join(", "),
                }));
            }
        }
        Ok(roots)
    }

    /// The root's key, and which of `roots` it is the key of.
    pub(super) fn read_root_key(
        &self,
        roots: &[CertificateDer<'static>],
    ) -> Result<(KeyPair, CertificateDer<'static>), IdentityError> {
        let path = self.root_key();
        let key = read_key(&path, || {
            MaterialFault::Missing {
            what: format!("the key of domain {}'s root", self.domain),
            next: "issue where that key is kept and copy the result here, or remove the root to make the domain anew".into(),
        }
        })?;
        match roots.iter().find(|root| is_key_of(&key, root)) {
            Some(root) => Ok((key, root.clone())),
            None => Err(mismatch(&path, &self.root)),
        }
    }

    /// A node's certificate, and behind it those that lead from it to a root, if it takes any.
    pub(super) fn read_leaf(
        &self,
        name: &str,
    ) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        let path = self.leaf(name);
        let bytes = read(&path, Access::Public, || MaterialFault::Missing {
            what: format!("the certificate of node {}/{name}", self.domain),
            next: "issue it with `tombolo certs issue`, or ask for it with `tombolo certs request`"
                .into(),
        })?;
        let found = certificates(&path, &bytes)?;
        match found.len() {
            1..=CHAIN_MAX => Ok(found),
            count => Err(material(
                &path,
                MaterialFault::Malformed {
                    expected: format!(
                        "the node's certificate in PEM, and at most {} that lead from it to a root",
                        CHAIN_MAX - 1
                    ),
                    found: count.to_string(),
                },
            )),
        }
    }

    /// A node's key, which must be that of `certificate`; or the next one, if it is.
    pub(super) fn read_leaf_key(
        &self,
        name: &str,
        certificate: &CertificateDer<'static>,
    ) -> Result<KeyPair, IdentityError> {
        let path = self.leaf_key(name);
        let missing = || MaterialFault::Missing {
            what: format!("the private key of node {}/{name}", self.domain),
            next: "restore it, or issue the pair anew with `tombolo certs issue`".into(),
        };
        let key = match read_key(&path, missing) {
            Ok(key) if is_key_of(&key, certificate) => return Ok(key),
            Ok(_) => Err(mismatch(&path, &self.leaf(name))),
            Err(error) => Err(error),
        };
        match read_key(&self.next_leaf_key(name), missing) {
            Ok(next) if is_key_of(&next, certificate) => Ok(next),
            _ => key,
        }
    }

    /// A node's certificate with its key. While one pair takes the place of another this is the one or the other.
    pub(super) fn read_pair(
        &self,
        name: &str,
    ) -> Result<(Vec<CertificateDer<'static>>, KeyPair), IdentityError> {
        let mut looks = 0;
        loop {
            looks += 1;
            let chain = self.read_leaf(name)?;
            match self.read_leaf_key(name, &chain[0]) {
                // The certificate, or its key's name, may have changed since it was read.
                Err(_) if looks < PAIR_LOOKS => {}
                key => return Ok((chain, key?)),
            }
        }
    }

    /// Gives the next key its place, if it is that of the certificate which is there.
    pub(super) fn settle_key(&self, name: &str) -> Result<(), IdentityError> {
        let next = self.next_leaf_key(name);
        if !exists(&next)? || !exists(&self.leaf(name))? {
            return Ok(());
        }
        let chain = self.read_leaf(name)?;
        let key = read_key(&next, || MaterialFault::Missing {
            what: "a private key".into(),
            next: "run this again".into(),
        })?;
        if !is_key_of(&key, &chain[0]) {
            return Ok(());
        }
        rename(&next, &self.leaf_key(name))
    }

    /// The lists of revoked certificates that are there; none if there is no file.
    pub(super) fn read_lists(&self) -> Result<Vec<List>, IdentityError> {
        let path = self.lists();
        if !exists(&path)? {
            return Ok(Vec::new());
        }
        let bytes = read_bounded(&path, Access::Public, LISTS_LENGTH_MAX, || {
            MaterialFault::Missing {
                what: "a list of revoked certificates".into(),
                next: "run this again".into(),
            }
        })?;
        let fail =
            |found: String| malformed(&path, "lists of revoked certificates in PEM".into(), &found);
        let lists = CertificateRevocationListDer::pem_slice_iter(&bytes);
        let lists: Result<Vec<_>, _> = lists.collect();
        let lists = lists.map_err(|error| fail(error.to_string()))?;
        if lists.is_empty() {
            return Err(fail("none".into()));
        }
        let lists = lists.iter().map(|list| List::read(list).map_err(fail));
        lists.collect()
    }

    /// Writes the lists of revoked certificates for all to read.
    pub(super) fn write_lists(&self, pem: &str) -> Result<(), IdentityError> {
        write(&self.lists(), pem.as_bytes(), ROOT_MODE, true)
    }

    /// Writes the root for all to read.
    pub(super) fn write_root(
        &self,
        root: &Certificate,
        replace: bool,
    ) -> Result<(), IdentityError> {
        write(&self.root, root.pem().as_bytes(), ROOT_MODE, replace)
    }

    /// Writes a node's certificate for its owner only.
    pub(super) fn write_leaf(
        &self,
        name: &str,
        pem: &str,
        replace: bool,
    ) -> Result<(), IdentityError> {
        write(&self.leaf(name), pem.as_bytes(), PRIVATE_MODE, replace)
    }

    /// Writes several roots for all to read.
    pub(super) fn write_roots(
        &self,
        roots: &[CertificateDer<'static>],
    ) -> Result<(), IdentityError> {
        write(&self.root, pem(roots).as_bytes(), ROOT_MODE, true)
    }

    /// Whether one of a node's keys is that of a certificate.
    pub(super) fn has_key_of(
        &self,
        name: &str,
        certificate: &CertificateDer<'_>,
    ) -> Result<bool, IdentityError> {
        for path in [self.leaf_key(name), self.next_leaf_key(name)] {
            if !exists(&path)? {
                continue;
            }
            let key = read_key(&path, || MaterialFault::Missing {
                what: "a private key".into(),
                next: "run this again".into(),
            })?;
            if is_key_of(&key, certificate) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A node's certificate in any file, and what leads from it to a root.
pub(super) fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let bytes = read(path, Access::Public, || MaterialFault::Missing {
        what: "a certificate".into(),
        next: "name the file that the domain's administration has sent".into(),
    })?;
    let chain = certificates(path, &bytes)?;
    match chain.len() {
        1..=CHAIN_MAX => Ok(chain),
        count => Err(malformed(
            path,
            format!("1 to {CHAIN_MAX} certificates in PEM"),
            &count.to_string(),
        )),
    }
}

/// A request for a certificate.
pub(super) fn read_request(path: &Path) -> Result<Vec<u8>, IdentityError> {
    read(path, Access::Public, || MaterialFault::Missing {
        what: "a request for a certificate".into(),
        next: "make it with `tombolo certs request` on the node".into(),
    })
}

/// Certificates in PEM, one behind the other.
pub(super) fn pem(certificates: &[CertificateDer<'_>]) -> String {
    let each = certificates.iter();
    each.map(|certificate| armoured("CERTIFICATE", certificate))
        .collect()
}

/// A list of revoked certificates in PEM.
pub(super) fn list_pem(list: &[u8]) -> String {
    armoured("X509 CRL", list)
}

fn armoured(what: &str, bytes: &[u8]) -> String {
    let text = STANDARD.encode(bytes);
    let lines = text.as_bytes().chunks(64);
    let lines = lines.map(|line| String::from_utf8_lossy(line) + "\n");
    let lines: String = lines.collect();
    format!("-----BEGIN {what}-----\n{lines}-----END {what}-----\n")
}

/// Gives a file another name beside its own; no error if it has it already.
pub(super) fn link(from: &Path, to: &Path) -> Result<(), IdentityError> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(|error| files_fault("link", from, error)),
    }
}

/// Removes a file; no error if there is none.
pub(super) fn remove(path: &Path) -> Result<(), IdentityError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| files_fault("remove", path, error)),
    }
}

/// Reads a private key that only its owner can read.
pub(super) fn read_key(
    path: &Path,
    missing: impl FnOnce() -> MaterialFault,
) -> Result<KeyPair, IdentityError> {
    let bytes = read(path, Access::Secret, missing)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| no_key(path))?;
    KeyPair::try_from(&key).map_err(|_| no_key(path))
}

/// Writes a private key for its owner only.
pub(super) fn write_key(path: &Path, key: &KeyPair, replace: bool) -> Result<(), IdentityError> {
    write(path, key.serialize_pem().as_bytes(), PRIVATE_MODE, replace)
}

pub(super) fn is_key_of(key: &KeyPair, certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, parsed)| parsed.public_key().raw == key.subject_public_key_info())
}

/// Whether there is something at `path`.
pub(super) fn exists(path: &Path) -> Result<bool, IdentityError> {
    path.try_exists()
        .map_err(|error| files_fault("find", path, error))
}

/// Who may do what with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Everyone may read it, not everyone write it.
    Public,
    /// Its owner alone.
    Secret,
}

/// Reads a small file after a look at its mode.
fn read(
    path: &Path,
    access: Access,
    missing: impl FnOnce() -> MaterialFault,
) -> Result<Vec<u8>, IdentityError> {
    read_bounded(path, access, FILE_LENGTH_MAX, missing)
}

fn read_bounded(
    path: &Path,
    access: Access,
    length_max: usize,
    missing: impl FnOnce() -> MaterialFault,
) -> Result<Vec<u8>, IdentityError> {
    let file = match bounded::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(material(path, missing()));
        }
        other => other.map_err(|error| files_fault("open", path, error))?,
    };
    let mode = file
        .metadata()
        .map_err(|error| files_fault("read the mode of", path, error))?
        .permissions()
        .mode()
        & 0o7777;
    let (forbidden, expected, danger) = match access {
        Access::Public => (0o002, ROOT_MODE, "replace"),
        Access::Secret => (0o077, PRIVATE_MODE, "read or replace"),
    };
    if mode & forbidden != 0 {
        return Err(material(
            path,
            MaterialFault::Exposed {
                mode,
                expected,
                danger,
            },
        ));
    }
    bounded::read_open(&file, length_max).map_err(|error| match error {
        ReadError::Io(error) => files_fault("read", path, error),
        ReadError::TooLarge(_) => malformed(path, format!("at most {length_max} bytes"), "more"),
        ReadError::Silent(_) => malformed(path, "a file".into(), "a silent pipe"),
    })
}

/// All certificates of a PEM file.
fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    CertificateDer::pem_slice_iter(bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| {
            material(
                path,
                MaterialFault::Malformed {
                    expected: "certificates in PEM".into(),
                    found: error.to_string(),
                },
            )
        })
}

/// Puts a whole file in place, durably. The mode is never wider than `mode`, not even for a moment.
pub(super) fn write(
    path: &Path,
    contents: &[u8],
    mode: u32,
    replace: bool,
) -> Result<(), IdentityError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(|error| files_fault("make", folder, error))?;
    let fail = |error| files_fault("write", path, error);
    let mut file = tempfile::Builder::new()
        .prefix(".")
        .suffix(".part")
        .permissions(Permissions::from_mode(PRIVATE_MODE))
        .tempfile_in(folder)
        .map_err(fail)?;
    file.write_all(contents).map_err(fail)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(mode))
        .map_err(fail)?;
    file.as_file().sync_all().map_err(fail)?;
    if replace {
        file.persist(path).map_err(|error| fail(error.error))?;
    } else {
        file.persist_noclobber(path)
            .map_err(|error| match error.error.kind() {
                io::ErrorKind::AlreadyExists => material(path, MaterialFault::Exists),
                _ => fail(error.error),
            })?;
    }
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| files_fault("sync", folder, error))
}

/// Gives a file another's name, durably.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), IdentityError> {
    fs::rename(from, to).map_err(|error| files_fault("rename", from, error))?;
    let folder = to.parent().unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| files_fault("sync", folder, error))
}

pub(super) fn material(path: &Path, fault: MaterialFault) -> IdentityError {
    IdentityError::Material {
        path: path.to_owned(),
        fault,
    }
}

pub(super) fn files_fault(action: &'static str, path: &Path, source: io::Error) -> IdentityError {
    IdentityError::Files {
        action,
        path: path.to_owned(),
        source: Arc::new(source),
    }
}

fn mismatch(key: &Path, certificate: &Path) -> IdentityError {
    material(
        key,
        MaterialFault::KeyMismatch {
            certificate: certificate.to_owned(),
        },
    )
}

fn malformed(path: &Path, expected: String, found: &str) -> IdentityError {
    let found = found.to_owned();
    material(path, MaterialFault::Malformed { expected, found })
}

/// Says nothing of what was found: it may be a key after all.
fn no_key(path: &Path) -> IdentityError {
    material(
        path,
        MaterialFault::Malformed {
            expected: "a private key in PEM (PKCS #8)".into(),
            found: "something else".into(),
        },
    )
}

/// `x.pem` -> `x.key`.
fn key_beside(certificate: &Path) -> PathBuf {
    if certificate.extension().is_some_and(|it| it == "key") {
        certificate.with_extension("key.key")
    } else {
        certificate.with_extension("key")
    }
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest
        .as_ref()
        .try_into()
        .expect("a SHA-256 digest has 32 bytes")
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all that is written");
        text
    })
}
