//! What a domain has called back: X.509 lists, signed by its root.
//!
//! A list holds serial numbers and a number of its own, which only grows; of two lists of one root the one with the higher number counts. A list
//! says of itself whose it is: whoever passes it on need not be trusted. Its dates are not looked at: what was revoked stays revoked, and who
//! holds back a newer list could as well hold back every one.

use std::collections::BTreeSet;
use std::fmt;

use rustls::pki_types::CertificateDer;
use tombolo_core::wire::LIST_BYTES_MAX;
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

/// One list.
pub(super) struct List {
    der: Vec<u8>,
    number: u64,
    revoked: Vec<Revoked>,
    /// Of those, without the zeros in front that a number may or may not have.
    serials: BTreeSet<Vec<u8>>,
    checked: CertRevocationList<'static>,
}

/// A certificate on a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revoked {
    /// As it stands in the certificate.
    pub serial: Vec<u8>,
    /// Seconds since 1970.
    pub at: i64,
}

impl List {
    /// Reads one. Whose it is, [`List::is_signed_by`] says.
    pub fn read(der: &[u8]) -> Result<List, String> {
        if der.len() > LIST_BYTES_MAX {
            return Err(format!(
                "a list of {} bytes, at most {LIST_BYTES_MAX} are allowed",
                der.len()
            ));
        }
        let parsed = parse(der)?;
        // Of one that holds for some certificates only, nobody here could tell which (RFC 5280, 5.2.5).
        let scope = x509_parser::oid_registry::OID_X509_EXT_ISSUER_DISTRIBUTION_POINT;
        if parsed
            .extensions()
            .iter()
            .any(|extension| extension.oid == scope)
        {
            return Err("a list that holds for some of its root's certificates only; expected one for all of them".into());
        }
        let number = parsed.crl_number().map(|number| number.to_u64_digits());
        let number = match number.as_deref() {
            Some([]) => 0,
            Some([number]) => *number,
            _ => return Err("a list without a number, or with one that is too large".into()),
        };
        let revoked = parsed.iter_revoked_certificates().map(|revoked| Revoked {
            serial: revoked.raw_serial().to_vec(),
            at: revoked.revocation_date.timestamp(),
        });
        let revoked: Vec<Revoked> = revoked.collect();
        let serials = revoked.iter().map(|it| bare(&it.serial).to_vec());
        let checked = OwnedCertRevocationList::from_der(der)
            .map_err(|error| format!("no list of revoked certificates: {error}"))?;
        Ok(List {
            der: der.to_vec(),
            number,
            serials: serials.collect(),
            revoked,
            checked: checked.into(),
        })
    }

    /// Whether that root has signed it.
    pub fn is_signed_by(&self, root: &CertificateDer<'_>) -> bool {
        let (Ok(parsed), Ok((_, root))) = (parse(&self.der), X509Certificate::from_der(root))
        else {
            return false;
        };
        parsed.issuer().as_raw() == root.subject().as_raw()
            && parsed.verify_signature(root.public_key()).is_ok()
    }

    pub fn der(&self) -> &[u8] {
        &self.der
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether a serial number is on it.
    pub fn names(&self, serial: &[u8]) -> bool {
        self.serials.contains(bare(serial))
    }

    pub fn revoked(&self) -> &[Revoked] {
        &self.revoked
    }

    /// For webpki.
    pub fn checked(&self) -> &CertRevocationList<'static> {
        &self.checked
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List")
            .field("number", &self.number)
            .field("revoked", &self.revoked.len())
            .finish_non_exhaustive()
    }
}

/// A number's digits without zeros in front.
fn bare(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|digit| **digit == 0).count();
    &serial[zeros..]
}

fn parse(der: &[u8]) -> Result<CertificateRevocationList<'_>, String> {
    let (rest, parsed) = CertificateRevocationList::from_der(der)
        .map_err(|error| format!("no list of revoked certificates: {error}"))?;
    match rest.is_empty() {
        true => Ok(parsed),
        false => Err("bytes follow the list of revoked certificates".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_are_no_list() {
        let mut rng = tombolo_core::rng::Rng::new(7);
        for length in 0..300 {
            let mut bytes = vec![0; length];
            rng.fill(&mut bytes);
            assert!(List::read(&bytes).is_err());
        }
        let long = List::read(&vec![0x30; LIST_BYTES_MAX + 1]).unwrap_err();
        assert!(long.contains("at most"), "{long}");
    }
}
