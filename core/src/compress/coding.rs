//! What the two ends of a link agree on: a codec, and a lossless stage behind it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::lossless::{Lossless, Packer};
use super::{Codec, CodecError, Compressor, Decoder, Encoded, Kernels};

/// A codec, and what makes its chunks shorter still.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coding {
    /// The codec.
    pub codec: Codec,
    /// What its chunks are packed with, each on its own.
    pub lossless: Lossless,
}

impl Coding {
    /// The elements as they are.
    pub const PLAIN: Coding = Coding {
        codec: Codec::None,
        lossless: Lossless::None,
    };

    /// Whether the elements travel as they are.
    pub fn is_plain(self) -> bool {
        self == Coding::PLAIN
    }

    /// Whether nothing is lost, so that nothing is owed.
    pub fn is_lossless(self) -> bool {
        self.codec.is_lossless()
    }

    /// What does it.
    pub fn compressor(self) -> Box<dyn Compressor> {
        match self.lossless {
            Lossless::None => self.codec.compressor(),
            lossless => Box::new(Packed {
                codec: self.codec.compressor(),
                lossless,
            }),
        }
    }
}

impl From<Codec> for Coding {
    fn from(codec: Codec) -> Self {
        Coding {
            codec,
            ..Coding::PLAIN
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lossless {
            Lossless::None => self.codec.fmt(f),
            lossless => write!(f, "{}+{lossless}", self.codec),
        }
    }
}

/// The names of the topology file: `topk+fp16+zstd`. A stage that stands alone packs the elements as they are: `lz4` is `none+lz4`.
impl FromStr for Coding {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let (codec, last) = name.rsplit_once('+').unwrap_or(("none", name));
        match last.parse() {
            Ok(lossless) if lossless != Lossless::None => Ok(Coding {
                codec: codec.parse()?,
                lossless,
            }),
            _ => Ok(name.parse::<Codec>()?.into()),
        }
    }
}

/// A codec whose chunks are packed.
struct Packed {
    codec: Box<dyn Compressor>,
    lossless: Lossless,
}

impl Compressor for Packed {
    fn encode(&self, kernels: Kernels, values: &[f32], encoded: &mut Encoded) {
        let mut plain = Encoded::default();
        self.codec.encode(kernels, values, &mut plain);
        encoded.clear();
        let mut packer = Packer::new(self.lossless);
        for chunk in plain.chunks() {
            packer.pack(chunk, encoded.buffer());
            encoded.end_chunk();
        }
    }

    fn bytes_max(&self, elements: usize) -> usize {
        self.lossless.bytes_max(self.codec.bytes_max(elements))
    }

    fn unpack<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], CodecError> {
        let most = self.codec.bytes_max(elements);
        Ok(self.lossless.unpack(bytes, most, room)?)
    }

    fn decoder<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
    ) -> Result<Box<dyn Decoder + 'a>, CodecError> {
        self.codec.decoder(bytes, elements)
    }
}
