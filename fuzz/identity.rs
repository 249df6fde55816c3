//! Certificates, roots, lists of revoked certificates, names.

use std::sync::LazyLock;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, UnixTime};
use tombolo::identity::bundle::{Bundle, Role};
use tombolo::identity::notary::Notary;
use tombolo::identity::spiffe;
use tombolo_core::record::Verifier;

/// The name under which everything in the corpus was issued, and when.
pub const FEDERATION: &str = "harbour";
/// 2027-01-15T08:00:00Z.
pub const NOW: u64 = 1_800_000_000;

/// The authority of `hq`, as it lies in the corpus.
static ROOT: &[u8] = include_bytes!("corpus/root/good-hq.der");

static BUNDLE: LazyLock<Bundle> = LazyLock::new(|| bundle(ROOT).unwrap());

/// Extensions and names become values of their own, and errors repeat a part of them.
pub fn room(len: usize) -> usize {
    (32 << 10) + 64 * len
}

fn bundle(root: &[u8]) -> Option<Bundle> {
    let domain = "hq".parse().unwrap();
    let roots = vec![(domain, vec![CertificateDer::from(root.to_vec())])];
    static PROVIDER: LazyLock<std::sync::Arc<rustls::crypto::CryptoProvider>> =
        LazyLock::new(|| std::sync::Arc::new(aws_lc_rs::default_provider()));
    Bundle::new(FEDERATION, PROVIDER.clone(), roots).ok()
}

/// A peer's certificate: whoever it names is of the domain whose root signed it.
pub fn certificate(bytes: &[u8]) -> bool {
    let leaf = CertificateDer::from(bytes);
    let named = spiffe::node_of(FEDERATION, &leaf);
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    BUNDLE
        .verify(&leaf, &[], now, Role::Client)
        .is_ok_and(|node| {
            assert_eq!(node.domain().as_str(), "hq");
            assert_eq!(named.ok(), Some(node));
            true
        })
}

pub fn root(bytes: &[u8]) -> bool {
    bundle(bytes).is_some()
}

pub fn revocation_list(bytes: &[u8]) -> bool {
    Notary.list(&[ROOT.to_vec()], bytes).is_ok()
}

pub fn spiffe_name(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    spiffe::parse(FEDERATION, text).is_ok_and(|node| {
        assert_eq!(spiffe::uri(FEDERATION, &node), text);
        true
    })
}
