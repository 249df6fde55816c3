//! From when until when a certificate counts.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tombolo_actors::identity::IdentityError;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// How far a certificate is dated back, so that a verifier whose clock is behind accepts it at once: twice the tolerated five minutes.
const BACKDATE_S: u64 = 600;

/// A shorter life would be over before its holder has started.
const LIFETIME_MIN: Duration = Duration::from_secs(60);

/// 9999-12-31T23:59:59Z, the last second that a certificate can hold (RFC 5280, 4.1.2.5).
const LAST: u64 = 253_402_300_799;

/// Seconds since 1970, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: u64,
    pub(super) not_after: u64,
}

impl Validity {
    /// What a certificate says of itself.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Validity, String> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let unix = |time: ASN1Time| {
            u64::try_from(time.timestamp()).map_err(|_| format!("{time}, a date before 1970"))
        };
        Ok(Validity {
            not_before: unix(parsed.validity().not_before)?,
            not_after: unix(parsed.validity().not_after)?,
        })
    }

    /// From a little before `now` for `lifetime`.
    pub(super) fn starting(
        now: u64,
        lifetime: Duration,
        lifetime_max: Duration,
    ) -> Result<Validity, IdentityError> {
        if !(LIFETIME_MIN..=lifetime_max).contains(&lifetime) {
            return Err(IdentityError::Configuration(format!(
                "lifetime is {} s, expected {} s to {} s; short lives are what limits a stolen key",
                lifetime.as_secs(),
                LIFETIME_MIN.as_secs(),
                lifetime_max.as_secs()
            )));
        }
        let not_after = now.saturating_add(lifetime.as_secs());
        if not_after > LAST {
            return Err(IdentityError::Configuration(format!(
                "the clock says {}, expected a time before the year 9999; set this machine's clock",
                rfc3339(now)
            )));
        }
        Ok(Validity {
            not_before: now.saturating_sub(BACKDATE_S),
            not_after,
        })
    }

    /// From 1970 to 2049: the longest span whose ends are written in the same number of bytes.
    pub(super) const SIMULATED: Validity = Validity {
        not_before: 0,
        not_after: 2_524_607_999,
    };

    /// Over a day before simulations begin.
    pub(super) const EXPIRED: Validity = Validity {
        not_before: 0,
        not_after: 1_767_139_200,
    };

    /// Until a minute after simulations begin.
    pub(super) const BRIEF: Validity = Validity {
        not_before: 0,
        not_after: 1_767_225_660,
    };

    /// From 2040 on, when no simulation lasts any more.
    pub(super) const NOT_YET: Validity = Validity {
        not_before: 2_208_988_800,
        not_after: 2_524_607_999,
    };

    /// Whether less than a third of its life is left.
    pub(super) fn is_due(self, now: u64) -> bool {
        let life = self.not_after.saturating_sub(self.not_before);
        self.not_after.saturating_sub(now) < life / 3
    }
}

/// RFC 3339 in UTC.
pub(super) fn rfc3339(unix: u64) -> String {
    i64::try_from(unix)
        .ok()
        .and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok())
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("{unix} s after 1970"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_begins_ten_minutes_back_and_is_due_at_a_third() {
        let life = Validity::starting(1_000_000, Duration::from_secs(2_400), Duration::MAX)
            .expect("in bounds");
        assert_eq!((life.not_before, life.not_after), (999_400, 1_002_400));
        assert!(!life.is_due(1_001_400));
        assert!(life.is_due(1_001_401));
        assert!(life.is_due(u64::MAX));
    }

    #[test]
    fn lives_out_of_bounds_are_refused() {
        let max = Duration::from_secs(3_600);
        for (now, lifetime) in [(0, 0), (0, 59), (0, 3_601), (LAST, 60), (u64::MAX, 60)] {
            assert!(
                Validity::starting(now, Duration::from_secs(lifetime), max).is_err(),
                "{now} {lifetime}"
            );
        }
    }

    #[test]
    fn times_are_rfc_3339_or_still_readable() {
        assert_eq!(rfc3339(1_800_000_000), "2027-01-15T08:00:00Z");
        assert_eq!(
            rfc3339(Validity::SIMULATED.not_after),
            "2049-12-31T23:59:59Z"
        );
        assert_eq!(rfc3339(LAST), "9999-12-31T23:59:59Z");
        assert_eq!(rfc3339(u64::MAX), "18446744073709551615 s after 1970");
    }
}
