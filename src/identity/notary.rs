//! Signatures of the record, and the certificates that prove them; see [`tombolo_core::record`].

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SignatureScheme};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::record::{PublicKey, Signature, Verifier};
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::bundle::{Bundle, Role};
use super::provider;
use super::revocation::List;

/// Checks certificates and signatures, and holds no key: what anybody needs who looks at a record.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notary;

impl Verifier for Notary {
    fn holder(
        &self,
        federation: &str,
        roots: &BTreeMap<DomainId, Vec<Vec<u8>>>,
        certificate: &[u8],
    ) -> Result<(NodeId, PublicKey), String> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|error| format!("the certificate cannot be parsed: {error}"))?;
        let roots = roots.iter().map(|(domain, roots)| {
            let roots = roots.iter().map(|root| CertificateDer::from(root.clone()));
            (domain.clone(), roots.collect())
        });
        let bundle = Bundle::new(federation, provider(false), roots.collect())
            .map_err(|error| error.to_string())?;
        // What was signed while the certificate was valid stays signed.
        let issued = u64::try_from(parsed.validity().not_before.timestamp()).unwrap_or_default();
        let issued = UnixTime::since_unix_epoch(Duration::from_secs(issued));
        let leaf = CertificateDer::from(certificate);
        let node = bundle
            .verify(&leaf, &[], issued, Role::Client)
            .map_err(|fault| fault.to_string())?;
        let key = parsed.public_key();
        let bytes = <PublicKey>::try_from(&*key.subject_public_key.data).ok();
        let bytes = bytes.filter(|_| key.algorithm.algorithm == OID_SIG_ED25519);
        let bytes = bytes.ok_or_else(|| {
            format!("the key of {node} is none for Ed25519, which the record is signed with")
        })?;
        Ok((node, bytes))
    }

    fn list(&self, roots: &[Vec<u8>], list: &[u8]) -> Result<(), String> {
        let list = List::read(list)?;
        let mut roots = roots.iter();
        let is_signed = |root: &Vec<u8>| list.is_signed_by(&CertificateDer::from(root.as_slice()));
        match roots.any(is_signed) {
            true => Ok(()),
            false => Err("no root of its domain has signed the list".to_owned()),
        }
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        UnparsedPublicKey::new(&ED25519, key)
            .verify(message, signature)
            .is_ok()
    }
}

/// Signs with a node's key.
pub(super) fn sign(pair: &CertifiedKey, message: &[u8]) -> Result<(PublicKey, Signature), String> {
    let wrong = || "the node's key is none for Ed25519, which the record is signed with".to_owned();
    let signer = pair.key.choose_scheme(&[SignatureScheme::ED25519]);
    let signer = signer
        .filter(|_| pair.key.algorithm() == SignatureAlgorithm::ED25519)
        .ok_or_else(wrong)?;
    let signature = signer.sign(message).map_err(|error| error.to_string())?;
    let signature = <Signature>::try_from(signature.as_slice()).map_err(|_| wrong())?;
    let leaf = pair.cert.first().ok_or_else(wrong)?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| error.to_string())?;
    let key = <PublicKey>::try_from(&*parsed.public_key().subject_public_key.data)
        .map_err(|_| wrong())?;
    Ok((key, signature))
}
