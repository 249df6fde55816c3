//! Keys and certificates in memory.
//!
//! Ed25519 throughout: keys and signatures have constant sizes, so that simulated packets do, too. A certificate's serial number follows from
//! its key and its dates.

use std::time::Duration;

use aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData,
    SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use tombolo_actors::identity::IdentityError;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::rng::Rng;

use super::files::sha256;
use super::spiffe;
use super::validity::Validity;

/// What a root lives if nothing else is said: a year.
pub const ROOT_LIFETIME: Duration = Duration::from_secs(365 * 86_400);

/// What a node's certificate lives if nothing else is said: a week.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

/// The longest life of a root. Changing it takes everyone's hands, so ten years are allowed.
pub(super) const ROOT_LIFETIME_MAX: Duration = Duration::from_secs(3_650 * 86_400);

/// The longest life of a node's certificate: calling it back reaches only whoever hears of it, so it must end.
pub(super) const LEAF_LIFETIME_MAX: Duration = Duration::from_secs(90 * 86_400);

/// A domain's authority: its root and the root's key.
pub(super) struct Authority {
    certificate: CertificateDer<'static>,
    not_after: u64,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new root for `key`, also as it is to be written.
    pub(super) fn create(
        federation: &str,
        domain: &DomainId,
        key: KeyPair,
        validity: Validity,
    ) -> Result<(Authority, Certificate), IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&[
            (DnType::OrganizationName, federation),
            (DnType::OrganizationalUnitName, "tombolo root"),
            (DnType::CommonName, domain.as_str()),
        ]);
        // Zero: it signs nodes, not further authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        date(&mut params, &key, validity)?;
        let certificate = params.self_signed(&key).map_err(library)?;
        let authority = Authority::existing(certificate.der().clone(), validity.not_after, key)?;
        Ok((authority, certificate))
    }

    /// A root that is there already.
    pub(super) fn existing(
        certificate: CertificateDer<'static>,
        not_after: u64,
        key: KeyPair,
    ) -> Result<Authority, IdentityError> {
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(library)?;
        Ok(Authority {
            certificate,
            not_after,
            issuer,
        })
    }

    /// The root.
    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What signs.
    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// Certifies that `key` is `node`'s. The certificate ends with the root at the latest.
    pub(super) fn issue(
        &self,
        federation: &str,
        node: &NodeId,
        key: &impl PublicKeyData,
        validity: Validity,
    ) -> Result<Certificate, IdentityError> {
        let uri = spiffe::uri(federation, node);
        let mut params = CertificateParams::default();
        params.distinguished_name = node_subject(federation, node);
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into().map_err(library)?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let validity = Validity {
            not_after: validity.not_after.min(self.not_after),
            ..validity
        };
        date(&mut params, key, validity)?;
        params.signed_by(key, &self.issuer).map_err(library)
    }
}

/// A new key.
pub(super) fn generate_key() -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(library)
}

/// The authority that follows from a seed.
pub(super) fn seeded_authority(
    federation: &str,
    domain: &DomainId,
    seed: u64,
) -> Result<Authority, IdentityError> {
    let key = seeded_key(seed, &[b"root", domain.as_str().as_bytes()])?;
    Ok(Authority::create(federation, domain, key, Validity::SIMULATED)?.0)
}

/// The certificate and key of a node that follow from a seed.
pub(super) fn seeded_leaf(
    authority: &Authority,
    federation: &str,
    node: &NodeId,
    seed: u64,
    validity: Validity,
) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
    let key = seeded_key(seed, &[b"node", node.as_str().as_bytes()])?;
    let certificate = authority.issue(federation, node, &key, validity)?;
    Ok((certificate.der().clone(), key))
}

fn seeded_key(seed: u64, labels: &[&[u8]]) -> Result<KeyPair, IdentityError> {
    let mut secret = [0; 32];
    let labels: Vec<&[u8]> = [&b"identity"[..]].iter().chain(labels).copied().collect();
    Rng::derive(seed, &labels).fill(&mut secret);
    let document = Ed25519KeyPair::from_seed_unchecked(&secret)
        .map_err(library)?
        .to_pkcs8()
        .map_err(library)?;
    KeyPair::from_pkcs8_der_and_sign_algo(
        &PrivatePkcs8KeyDer::from(document.as_ref()),
        &PKCS_ED25519,
    )
    .map_err(library)
}

/// What a node's certificate is said to be of, for people.
pub(super) fn node_subject(federation: &str, node: &NodeId) -> DistinguishedName {
    subject(&[
        (DnType::OrganizationName, federation),
        (DnType::OrganizationalUnitName, node.domain().as_str()),
        (DnType::CommonName, node.name()),
    ])
}

fn subject(entries: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in entries {
        name.push(kind.clone(), *value);
    }
    name
}

fn date(
    params: &mut CertificateParams,
    key: &impl PublicKeyData,
    validity: Validity,
) -> Result<(), IdentityError> {
    let instant = |unix: u64| {
        i64::try_from(unix)
            .ok()
            .and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok())
            .ok_or_else(|| library(format!("{unix} s after 1970 is no date")))
    };
    params.not_before = instant(validity.not_before)?;
    params.not_after = instant(validity.not_after)?;
    let mut basis = key.der_bytes().to_vec();
    basis.extend(validity.not_before.to_le_bytes());
    basis.extend(validity.not_after.to_le_bytes());
    let mut serial = sha256(&basis)[..16].to_vec();
    // Positive and without a leading zero: always 16 bytes.
    serial[0] = 0x40 | (serial[0] & 0x3f);
    params.serial_number = Some(SerialNumber::from(serial));
    Ok(())
}

pub(super) fn library(error: impl ToString) -> IdentityError {
    IdentityError::Library(error.to_string())
}
