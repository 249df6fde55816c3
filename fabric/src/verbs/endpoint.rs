//! What an owner gives to a peer so that it can connect.

use std::fmt;

use crate::error::FabricError;

/// Where and with what secret a peer connects. Opaque, small, and its debug form hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    provider: String,
    token: Token,
    address: Vec<u8>,
}

/// 32 bytes that only the owner and one peer know.
pub(crate) type Token = [u8; 32];

impl Endpoint {
    /// The longest wire form.
    pub const LENGTH_MAX: usize = 256;

    const VERSION: u8 = 1;

    pub(crate) fn new(provider: &'static str, token: Token, address: Vec<u8>) -> Endpoint {
        debug_assert!(3 + provider.len() + 32 + address.len() <= Endpoint::LENGTH_MAX);
        Endpoint {
            provider: provider.to_owned(),
            token,
            address,
        }
    }

    /// Who made it.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The wire form: version, length and text of the provider's name, token, length and bytes of the address.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![Endpoint::VERSION, self.provider.len() as u8];
        bytes.extend_from_slice(self.provider.as_bytes());
        bytes.extend_from_slice(&self.token);
        bytes.push(self.address.len() as u8);
        bytes.extend_from_slice(&self.address);
        bytes
    }

    /// Reads the wire form.
    ///
    /// # Errors
    ///
    /// [`FabricError::Malformed`]; the address is checked when it is used.
    pub fn from_bytes(bytes: &[u8]) -> Result<Endpoint, FabricError> {
        let parse = |bytes: &[u8]| {
            let (&[Endpoint::VERSION, length], rest) = bytes.split_first_chunk()? else {
                return None;
            };
            let (provider, rest) = rest.split_at_checked(length.into())?;
            let (token, rest) = rest.split_first_chunk()?;
            let (&length, address) = rest.split_first()?;
            (address.len() == usize::from(length)).then_some(Endpoint {
                provider: std::str::from_utf8(provider).ok()?.to_owned(),
                token: *token,
                address: address.to_vec(),
            })
        };
        Some(bytes)
            .filter(|bytes| bytes.len() <= Endpoint::LENGTH_MAX)
            .and_then(parse)
            .ok_or_else(|| FabricError::Malformed {
                what: "endpoint",
                expected: format!(
                    "version {} and at most {} bytes",
                    Endpoint::VERSION,
                    Endpoint::LENGTH_MAX
                ),
                found: format!(
                    "{} bytes, beginning with {:?}",
                    bytes.len(),
                    bytes.first().copied()
                ),
            })
    }

    /// Token and address, if `provider` made it.
    pub(crate) fn of(
        &self,
        provider: &'static str,
        peer: &str,
    ) -> Result<(&Token, &[u8]), FabricError> {
        if self.provider != provider {
            return Err(FabricError::Incompatible {
                peer: peer.to_owned(),
                expected: format!("provider {provider:?}"),
                found: format!("{:?}", self.provider),
            });
        }
        Ok((&self.token, &self.address))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_survives_the_wire_and_no_prefix_or_addition_is_one() {
        let endpoint = Endpoint::new("shm", [7; 32], b"where".to_vec());
        let bytes = endpoint.to_bytes();
        assert_eq!(Endpoint::from_bytes(&bytes).unwrap(), endpoint);
        for len in 0..bytes.len() {
            assert!(Endpoint::from_bytes(&bytes[..len]).is_err(), "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Endpoint::from_bytes(&longer).is_err());
        assert!(Endpoint::from_bytes(&[1; 4096]).is_err());
        assert!(
            !format!("{endpoint:?}").contains("7, 7"),
            "the secret is not for logs"
        );
    }
}
