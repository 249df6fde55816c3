//! Names in certificates: `spiffe://<domain>.<federation>/node/<name>`.
//!
//! Neither names nor federations hold a dot or a slash, so each part is found again without doubt. Whatever else a certificate says (common
//! name, DNS names, addresses) names nobody here.

use rustls::pki_types::CertificateDer;
use tombolo_actors::identity::PeerFault;
use tombolo_core::ids::{DomainId, NodeId, is_name};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How much of a stranger's certificate an error may repeat: as long as the longest good name (110 bytes) and then some.
const PRESENTED_LENGTH_MAX: usize = 160;

/// How many of its names.
const PRESENTED_MAX: usize = 4;

/// A node's URI.
pub fn uri(federation: &str, node: &NodeId) -> String {
    format!(
        "spiffe://{}/node/{}",
        trust_domain(federation, &node.domain()),
        node.name()
    )
}

/// A domain's trust domain.
pub fn trust_domain(federation: &str, domain: &DomainId) -> String {
    format!("{domain}.{federation}")
}

/// What is sent as the server name. It only routes. The last label keeps a name of digits from being read as an address.
pub fn server_name(federation: &str, node: &NodeId) -> String {
    format!(
        "{}.{}.tombolo",
        node.name(),
        trust_domain(federation, &node.domain())
    )
}

/// The node that a URI names.
///
/// # Errors
///
/// [`PeerFault::Federation`] or [`PeerFault::Form`].
pub fn parse(federation: &str, presented: &str) -> Result<NodeId, PeerFault> {
    let form = || PeerFault::Form {
        federation: federation.into(),
        presented: clip(presented),
    };
    let (domain, found, name) = split(presented).ok_or_else(form)?;
    if found != federation {
        return Err(PeerFault::Federation {
            expected: federation.into(),
            found: clip(found),
            presented: clip(presented),
        });
    }
    format!("{domain}/{name}").parse().map_err(|_| form())
}

/// Domain, federation and node name of a URI that has the right form.
pub(super) fn split(uri: &str) -> Option<(&str, &str, &str)> {
    let (authority, path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
    let (domain, federation) = authority.split_once('.')?;
    let name = path.strip_prefix("node/")?;
    [domain, federation, name]
        .into_iter()
        .all(is_name)
        .then_some((domain, federation, name))
}

/// The node that a certificate names by its only URI. Nothing is verified here.
///
/// # Errors
///
/// [`PeerFault::Malformed`], [`PeerFault::Names`] or those of [`parse`].
pub fn node_of(federation: &str, certificate: &CertificateDer<'_>) -> Result<NodeId, PeerFault> {
    let names = uris(certificate)?;
    match &names[..] {
        [name] => parse(federation, name),
        _ => Err(PeerFault::Names {
            federation: federation.into(),
            count: names.len(),
            presented: names
                .iter()
                .take(PRESENTED_MAX)
                .map(|name| clip(name))
                .collect(),
        }),
    }
}

/// Refuses `found` unless it is `expected`.
pub(super) fn expect(federation: &str, expected: &NodeId, found: &NodeId) -> Result<(), PeerFault> {
    if expected == found {
        return Ok(());
    }
    Err(PeerFault::Unexpected {
        expected: uri(federation, expected),
        presented: uri(federation, found),
    })
}

/// All URI names of a certificate.
pub(super) fn uris(certificate: &CertificateDer<'_>) -> Result<Vec<String>, PeerFault> {
    let malformed = |reason: String| PeerFault::Malformed {
        reason: clip(&reason),
    };
    let (rest, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(malformed("trailing bytes".into()));
    }
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| malformed(error.to_string()))?;
    let mut uris = Vec::new();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            // An entry that one parser cannot read may mean something to another.
            GeneralName::Invalid(..) => return Err(malformed("unreadable subject name".into())),
            _ => {}
        }
    }
    Ok(uris)
}

fn clip(text: &str) -> String {
    text.chars().take(PRESENTED_LENGTH_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_one_node_and_comes_back() {
        let node: NodeId = "hq/gate".parse().expect("a legal id");
        let text = uri("harbour", &node);
        assert_eq!(text, "spiffe://hq.harbour/node/gate");
        assert_eq!(parse("harbour", &text), Ok(node));
    }

    #[test]
    fn what_is_not_exactly_that_form_is_refused() {
        for bad in [
            "",
            "spiffe://",
            "spiffe://hq.harbour",
            "spiffe://hq.harbour/gate",
            "spiffe://hq.harbour/node/",
            "spiffe://hq.harbour/node/gate/",
            "spiffe://hq.harbour/node/gate/x",
            "spiffe://hq.harbour/node/Gate",
            "spiffe://hq.harbour/node/g%61te",
            "spiffe://hq.harbour/node/gate?x",
            "spiffe://hq.harbour:1/node/gate",
            "spiffe://u@hq.harbour/node/gate",
            "spiffe://hq.x.harbour/node/gate",
            "spiffe://.harbour/node/gate",
            "SPIFFE://hq.harbour/node/gate",
            "https://hq.harbour/node/gate",
            " spiffe://hq.harbour/node/gate",
        ] {
            assert!(
                matches!(parse("harbour", bad), Err(PeerFault::Form { .. })),
                "{bad}"
            );
        }
        assert!(matches!(
            parse("harbour", "spiffe://hq.port/node/gate"),
            Err(PeerFault::Federation { found, .. }) if found == "port"
        ));
    }

    #[test]
    fn every_legal_name_gives_a_legal_server_name() {
        let long = "x".repeat(32);
        for (federation, node) in [
            ("7", "1/2"),
            ("0", "0/0"),
            ("a-b", "hq/gate-1"),
            (long.as_str(), &*format!("{long}/{long}")),
        ] {
            let name = server_name(federation, &node.parse().expect("a legal id"));
            assert!(
                matches!(
                    rustls::pki_types::ServerName::try_from(name.as_str()),
                    Ok(rustls::pki_types::ServerName::DnsName(_))
                ),
                "{name}"
            );
        }
    }

    #[test]
    fn random_bytes_are_no_certificate() {
        let mut rng = tombolo_core::rng::Rng::new(7);
        for length in 0..300 {
            let mut bytes = vec![0; length];
            rng.fill(&mut bytes);
            assert!(matches!(
                node_of("harbour", &CertificateDer::from(bytes)),
                Err(PeerFault::Malformed { .. })
            ));
        }
    }
}
