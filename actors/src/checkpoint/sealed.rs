//! JSON files that carry their own hash, so that one that rotted is not believed: their last member, `blake3`, is of every byte before it.
//!
//! Versions before did not write it and pass over it where it is. What they wrote has no member that is not known here, so a seal that is
//! itself damaged does not make a file look like theirs.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use tombolo_core::tensor::Hash;

const SEAL: &str = ",\n  \"blake3\": \"";

/// Adds its hash to an object.
pub(super) fn seal(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("what is written down is plain data");
    let end = bytes.strip_suffix(b"\n}");
    let end = end.expect("what is written down has members").len();
    bytes.truncate(end);
    let tail = tail(&Hash::of_bytes(&bytes).to_string());
    bytes.extend_from_slice(tail.as_bytes());
    bytes
}

/// What was sealed, if every byte is what it was, or what a version before has written; or what is wrong.
pub(super) fn open<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (body, end) = bytes.split_at(bytes.len().saturating_sub(tail(&no_hash()).len()));
    let is_sealed = end.starts_with(SEAL.as_bytes());
    if is_sealed {
        let found = Hash::of_bytes(body).to_string();
        if end != tail(&found).as_bytes() {
            let says = String::from_utf8_lossy(&end[SEAL.len()..]);
            let says = says.trim_end_matches(['}', '\n', '"']);
            return Err(format!("its hash is {found}, it says {says:?}"));
        }
    }
    let value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if !is_sealed {
        let found: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let known = serde_json::to_value(&value).map_err(|error| error.to_string())?;
        let mut names = found.as_object().into_iter().flat_map(|found| found.keys());
        if let Some(name) = names.find(|name| known.get(name).is_none()) {
            return Err(format!("it has no hash at its end, but {name:?}"));
        }
    }
    Ok(value)
}

fn tail(hash: &str) -> String {
    format!("{SEAL}{hash}\"\n}}")
}

fn no_hash() -> String {
    Hash::default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Kept {
        format: u32,
        accuracy: f64,
        counted: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Hash>,
    }

    fn kept() -> Kept {
        Kept {
            format: 1,
            accuracy: 0.1 + 0.2,
            counted: vec!["hq/a".into()],
            run: Some(Hash([7; 32])),
        }
    }

    #[test]
    fn no_bit_of_a_sealed_file_can_change() {
        let bytes = seal(&kept());
        assert_eq!(open::<Kept>(&bytes), Ok(kept()));
        for bit in 0..bytes.len() * 8 {
            let mut rotten = bytes.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            let found = open::<Kept>(&rotten);
            assert!(found.is_err(), "bit {bit}: {found:?}");
        }
        for end in 0..bytes.len() {
            assert!(open::<Kept>(&bytes[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_file_of_a_version_before_is_read_and_a_version_before_reads_ours() {
        let before = serde_json::to_vec_pretty(&kept()).unwrap();
        assert_eq!(open::<Kept>(&before), Ok(kept()));
        assert_eq!(
            serde_json::from_slice::<Kept>(&seal(&kept())).unwrap(),
            kept()
        );
    }
}
