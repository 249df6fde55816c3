//! Quantities as people write them: `"500ms"`, `"200 Mbit/s"`, `"0.1%"`.
//!
//! Every function says in words what is wrong; the caller adds the place.

use std::time::Duration;

/// The longest span a key may hold: longer ones are typing errors, and sums of a few of them must not overflow anywhere.
const SPAN_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The highest rate a key may hold, 1 Tbit/s.
const RATE_MAX: f64 = 1e12;

/// Reads a duration: a number, an optional space, and one of `us`, `ms`, `s`, `min`, `h`, `d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "" => return Err("has no unit: add \"ms\", \"s\", \"min\" or \"h\"".into()),
        "m" => {
            return Err(
                "has the unit \"m\": write \"min\" for minutes, \"ms\" for milliseconds".into(),
            );
        }
        other => {
            return Err(format!(
                "has the unknown unit {other:?}: use \"ms\", \"s\", \"min\" or \"h\""
            ));
        }
    };
    // In whole microseconds, so that "0.3s" and "300ms" are one value.
    let micros = (number * seconds * 1e6).round();
    if micros > SPAN_MAX.as_micros() as f64 {
        return Err("is longer than a year".into());
    }
    Ok(Duration::from_micros(micros as u64))
}

/// Reads a rate in bits per second.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let bits = match unit {
        "bit/s" => 1.0,
        "kbit/s" => 1e3,
        "Mbit/s" => 1e6,
        "Gbit/s" => 1e9,
        "" => return Err("has no unit: add \"kbit/s\", \"Mbit/s\" or \"Gbit/s\"".into()),
        "B/s" | "kB/s" | "KB/s" | "MB/s" | "GB/s" | "KiB/s" | "MiB/s" | "GiB/s" => {
            return Err("counts bytes: rates are in bits, such as \"200 Mbit/s\"".into());
        }
        other => {
            return Err(format!(
                "has the unknown unit {other:?}: use \"kbit/s\", \"Mbit/s\" or \"Gbit/s\""
            ));
        }
    };
    let rate = (number * bits).round();
    if !(1.0..=RATE_MAX).contains(&rate) {
        return Err("is not between 1 bit/s and 1000 Gbit/s".into());
    }
    Ok(rate as u64)
}

/// Reads a time of day as a minute of it.
pub(crate) fn clock(text: &str) -> Result<u64, String> {
    let two = |part: &str, below: u64| {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        let number = part.parse::<u64>().ok().filter(|_| digits)?;
        (number < below).then_some(number)
    };
    let parts = text.split_once(':');
    let minute = parts.and_then(|(hour, minute)| Some(two(hour, 24)? * 60 + two(minute, 60)?));
    minute.ok_or_else(|| {
        "is no time of day: write it as \"08:30\", from \"00:00\" to \"23:59\"".into()
    })
}

/// Reads a percentage as a share from 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    match split(text)? {
        // Not divided, which would round twice: what is written is read back to the bit.
        (number, "%") if number <= 100.0 => Ok(format!("{number}e-2").parse().unwrap_or(1.0)),
        (_, "%") => Err("is more than 100%".into()),
        _ => Err("has no percent sign at its end".into()),
    }
}

/// Writes a duration in the largest unit that keeps it whole.
pub(crate) fn show_duration(span: Duration) -> String {
    let micros = span.as_micros();
    let units = [(60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")];
    match units
        .iter()
        .find(|(unit, _)| micros.is_multiple_of(*unit) && micros > 0)
    {
        Some((unit, name)) => format!("{}{name}", micros / unit),
        None if micros == 0 => "0s".into(),
        None => format!("{micros}us"),
    }
}

/// Writes a rate in the largest unit that keeps it whole.
pub(crate) fn show_rate(bits: u64) -> String {
    let units = [
        (1_000_000_000, "Gbit/s"),
        (1_000_000, "Mbit/s"),
        (1_000, "kbit/s"),
    ];
    match units.iter().find(|(unit, _)| bits.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bits / unit),
        None => format!("{bits} bit/s"),
    }
}

/// Writes a share from 0 to 1 as a percentage that reads back as the same.
pub(crate) fn show_share(share: f64) -> String {
    let digits = format!("{share}");
    let (whole, part) = digits.split_once('.').unwrap_or((&digits, ""));
    let part = format!("{part:0<2}");
    let (percent, rest) = part.split_at(2);
    let percent = format!("{whole}{percent}");
    let percent = match percent.trim_start_matches('0') {
        "" => "0",
        percent => percent,
    };
    match rest {
        "" => format!("{percent}%"),
        rest => format!("{percent}.{rest}%"),
    }
}

/// Cuts a quantity into its number and its unit.
fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok((number, unit.trim_start())),
        _ if text.starts_with('-') => Err("is negative".into()),
        _ => Err("does not start with a number".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_and_without_a_space() {
        for (text, millis) in [
            ("500ms", 500),
            ("2s", 2_000),
            ("10min", 600_000),
            ("30 min", 1_800_000),
            ("1.5s", 1_500),
            ("1h", 3_600_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "", "s", "5", "5m", "5 weeks", "-2s", "1e3s", "9d9", "400d", "1.2.3s", "é",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        let huge = "9".repeat(400) + "s";
        assert!(duration(&huge).is_err());
    }

    #[test]
    fn rates_are_bits_and_never_bytes() {
        assert_eq!(rate("200 Mbit/s"), Ok(200_000_000));
        assert_eq!(rate("1.5Gbit/s"), Ok(1_500_000_000));
        for text in ["200", "200 MB/s", "0 bit/s", "2000 Gbit/s", "mbit/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(rate("25 MB/s").is_err_and(|why| why.contains("bits")));
    }

    #[test]
    fn percentages_become_shares() {
        assert_eq!(share("0.1%"), Ok(0.001));
        assert_eq!(share("100 %"), Ok(1.0));
        for text in ["0.1", "101%", "%", "-1%"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for text in ["500ms", "2s", "10min", "17us", "0s"] {
            assert_eq!(duration(text).map(show_duration).as_deref(), Ok(text));
        }
        for text in ["200 Mbit/s", "1 Gbit/s", "999 bit/s", "5 kbit/s"] {
            assert_eq!(rate(text).map(show_rate).as_deref(), Ok(text));
        }
        for text in ["0%", "5%", "7%", "0.1%", "100%", "33.333%"] {
            assert_eq!(share(text).map(show_share).as_deref(), Ok(text));
        }
        for part in [1.0 / 3.0, 0.07, 1e-9, 0.999_999_999_999_999_9] {
            assert_eq!(share(&show_share(part)), Ok(part));
        }
    }
}
