//! The bundle as rustls asks it, in both directions.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible, SignatureScheme,
};
use tombolo_actors::identity::PeerFault;
use tombolo_core::ids::NodeId;

use super::bundle::{Bundle, Role};
use super::spiffe;

/// Accepts nodes of the domains of whatever bundle holds; if one is expected, only that one.
#[derive(Debug)]
pub struct Verifier {
    bundle: Arc<ArcSwap<Bundle>>,
    expected: Option<NodeId>,
}

impl Verifier {
    /// A verifier of any node, or of one.
    pub fn new(bundle: Arc<ArcSwap<Bundle>>, expected: Option<NodeId>) -> Verifier {
        Verifier { bundle, expected }
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        role: Role,
    ) -> Result<(), Error> {
        let bundle = self.bundle.load();
        let found = bundle
            .verify(leaf, intermediates, now, role)
            .map_err(refuse)?;
        match &self.expected {
            Some(expected) => spiffe::expect(bundle.federation(), expected, &found).map_err(refuse),
            None => Ok(()),
        }
    }

    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let bundle = self.bundle.load();
        let algorithms = &bundle.provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.bundle
            .load()
            .provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// `Error::Other` shows our words as they are; `CertificateError::Other` would show them as debug output.
fn refuse(fault: PeerFault) -> Error {
    Error::Other(OtherError(Arc::new(fault)))
}

fn no_tls12() -> Error {
    Error::PeerIncompatible(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig)
}

impl ServerCertVerifier for Verifier {
    /// Ignores the server name: it only routes.
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(leaf, intermediates, now, Role::Server)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Verifier {
    /// None: the client has one certificate, and a list would tell strangers who takes part.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(leaf, intermediates, now, Role::Client)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
