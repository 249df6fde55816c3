//! Types of elements, and what sums of them are made in.

use std::fmt;
use std::str::FromStr;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::trainer::Values;

/// The type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// Single precision.
    F32,
    /// Half precision of IEEE 754.
    F16,
    /// Half precision with the range of `f32`.
    Bf16,
    /// Double precision.
    F64,
    /// Whole numbers of 32 bits.
    I32,
    /// Whole numbers of 64 bits.
    I64,
}

impl DType {
    /// Every type.
    pub const ALL: [DType; 6] = [
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::F64,
        DType::I32,
        DType::I64,
    ];

    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            DType::F16 | DType::Bf16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::I64 => "i64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<DType, String> {
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| {
            let names = DType::ALL.map(DType::name).join(", ");
            format!("type {text:?}: expected one of {names}")
        })
    }
}

/// What can be in a buffer.
pub trait Element: Pod + Send + Sync {
    /// Its name.
    const DTYPE: DType;

    /// What folds are made in. Rounded to the element once a [`Move`](super::Move): once in all where the shape is direct.
    type Sum: Number;

    /// The elements as sums.
    fn widen(block: &[Self], sums: &mut [Self::Sum]);

    /// The sums as elements, rounded to the nearest, ties to even.
    fn narrow(sums: &[Self::Sum], block: &mut [Self]);

    /// Elements of this type, as values of any.
    fn values(elements: &mut [Self]) -> Values<'_>;

    /// The same memory as elements, if there is no difference: nothing need be widened or narrowed then.
    fn same(sums: &mut [Self::Sum]) -> Option<&mut [Self]>;
}

/// What folds are made in.
pub trait Number: Pod + Send + Sync {
    /// The sum; of whole numbers, without what overflows.
    fn plus(self, other: Self) -> Self;

    /// The product with a weight; of whole numbers, of its whole part.
    fn times(self, weight: f64) -> Self;

    /// The share of one of so many; of whole numbers, without the remainder.
    fn over(self, count: usize) -> Self;

    /// The least; of equals the first; not a number if one of them is not.
    fn least(self, other: Self) -> Self;

    /// The greatest, likewise.
    fn greatest(self, other: Self) -> Self;
}

macro_rules! same {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Sum = $type;

            fn widen(block: &[$type], sums: &mut [$type]) {
                sums.copy_from_slice(block);
            }

            fn narrow(sums: &[$type], block: &mut [$type]) {
                block.copy_from_slice(sums);
            }

            fn values(elements: &mut [$type]) -> Values<'_> {
                Values::$dtype(elements)
            }

            fn same(sums: &mut [$type]) -> Option<&mut [$type]> {
                Some(sums)
            }
        }
    };
}

macro_rules! half {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Sum = f32;

            fn widen(block: &[$type], sums: &mut [f32]) {
                block.convert_to_f32_slice(sums);
            }

            fn narrow(sums: &[f32], block: &mut [$type]) {
                block.convert_from_f32_slice(sums);
            }

            fn values(elements: &mut [$type]) -> Values<'_> {
                Values::$dtype(elements)
            }

            fn same(_: &mut [f32]) -> Option<&mut [$type]> {
                None
            }
        }
    };
}

macro_rules! float {
    ($type:ty) => {
        impl Number for $type {
            fn plus(self, other: $type) -> $type {
                self + other
            }

            fn times(self, weight: f64) -> $type {
                self * weight as $type
            }

            fn over(self, count: usize) -> $type {
                self / count as $type
            }

            fn least(self, other: $type) -> $type {
                if other < self || other.is_nan() {
                    other
                } else {
                    self
                }
            }

            fn greatest(self, other: $type) -> $type {
                if other > self || other.is_nan() {
                    other
                } else {
                    self
                }
            }
        }
    };
}

macro_rules! whole {
    ($type:ty) => {
        impl Number for $type {
            fn plus(self, other: $type) -> $type {
                self.wrapping_add(other)
            }

            fn times(self, weight: f64) -> $type {
                (self as f64 * weight) as $type
            }

            fn over(self, count: usize) -> $type {
                self / count as $type
            }

            fn least(self, other: $type) -> $type {
                self.min(other)
            }

            fn greatest(self, other: $type) -> $type {
                self.max(other)
            }
        }
    };
}

same!(f32, F32);
same!(f64, F64);
same!(i32, I32);
same!(i64, I64);
half!(f16, F16);
half!(bf16, Bf16);
float!(f32);
float!(f64);
whole!(i32);
whole!(i64);
