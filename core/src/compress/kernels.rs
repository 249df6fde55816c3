//! The loops over elements, each once: compiled for the processor's wide registers and for any processor, with the same bits.
//!
//! They are plain Rust that the compiler vectorizes where it may use more instructions. It never contracts a multiplication and an addition
//! into one, so wide and portable agree.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use pulp::{Arch, NullaryFnOnce};

/// The largest finite half.
const HALF_MAX: f32 = 65_504.0;

/// All bits of an `f32` but its sign: ordered as magnitudes are, with what is no number on top.
pub(super) const MAGNITUDE: u32 = 0x7FFF_FFFF;

/// Where the loops run.
#[derive(Debug, Clone, Copy)]
pub struct Kernels(Option<Arch>);

impl Kernels {
    /// Any processor's instructions.
    pub const PORTABLE: Kernels = Kernels(None);

    /// The widest registers of this processor.
    pub fn widest() -> Self {
        Kernels(Some(Arch::new()))
    }

    fn run<O: NullaryFnOnce>(self, operation: O) -> O::Output {
        match self.0 {
            Some(arch) => arch.dispatch(operation),
            None => operation.call(),
        }
    }

    /// The first element that is infinite or no number.
    pub fn first_not_finite(self, values: &[f32]) -> Option<usize> {
        if self.run(AllFinite(values)) {
            return None;
        }
        values.iter().position(|value| !value.is_finite())
    }

    /// Halves, nearest even; what is finite stays so.
    pub(super) fn to_f16(self, values: &[f32], bits: &mut [u16]) {
        self.run(ToHalf(values, bits));
    }

    /// Upper halves, nearest even.
    pub(super) fn to_bf16(self, values: &[f32], bits: &mut [u16]) {
        self.run(ToUpperHalf(values, bits));
    }

    pub(super) fn widen_f16(self, bits: &[u16], values: &mut [f32]) {
        let halves: &[f16] = bits.reinterpret_cast();
        halves.convert_to_f32_slice(values);
    }

    pub(super) fn widen_bf16(self, bits: &[u16], values: &mut [f32]) {
        self.run(FromUpperHalf(bits, values));
    }

    /// The largest magnitude, as bits without sign.
    pub(super) fn largest(self, values: &[f32]) -> u32 {
        self.run(Largest(values))
    }

    /// `round(value * factor)`, ties to even, between -127 and 127.
    pub(super) fn quantize(self, values: &[f32], factor: f32, bytes: &mut [u8]) {
        self.run(Quantize(values, factor, bytes));
    }

    /// `byte * scale`.
    pub(super) fn widen(self, bytes: &[u8], scale: f32, values: &mut [f32]) {
        self.run(Widen(bytes, scale, values));
    }

    /// Appends the position and the bits without sign of every element whose bits without sign are at least `floor`; stops above `most`.
    pub(super) fn above(
        self,
        values: &[f32],
        floor: u32,
        most: usize,
        found: &mut Vec<(u32, u32)>,
    ) {
        self.run(Above(values, floor, most, found));
    }

    /// `values += residual * factor`.
    pub(super) fn add(self, values: &mut [f32], residual: &[f32], factor: f32) {
        self.run(Add(values, residual, factor));
    }

    /// `rest = (values - decoded) * factor`.
    pub(super) fn rest(self, values: &[f32], decoded: &[f32], factor: f32, rest: &mut [f32]) {
        self.run(Rest(values, decoded, factor, rest));
    }
}

struct AllFinite<'a>(&'a [f32]);

impl NullaryFnOnce for AllFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn call(self) -> bool {
        let mut finite = true;
        for value in self.0 {
            finite &= value.is_finite();
        }
        finite
    }
}

struct ToHalf<'a>(&'a [f32], &'a mut [u16]);

impl NullaryFnOnce for ToHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        // In pieces that stay in the nearest cache: bounded first, then rounded by the crate that knows the instructions.
        let mut bounded = [0.0; 256];
        let halves: &mut [f16] = self.1.reinterpret_cast_mut();
        for (values, halves) in self.0.chunks(256).zip(halves.chunks_mut(256)) {
            let bounded = &mut bounded[..values.len()];
            for (bounded, value) in bounded.iter_mut().zip(values) {
                let largest = value.clamp(-HALF_MAX, HALF_MAX);
                *bounded = if value.is_finite() { largest } else { *value };
            }
            halves.convert_from_f32_slice(bounded);
        }
    }
}

struct ToUpperHalf<'a>(&'a [f32], &'a mut [u16]);

impl NullaryFnOnce for ToUpperHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (bits, value) in self.1.iter_mut().zip(self.0) {
            *bits = bf16::from_f32(*value).to_bits();
        }
    }
}

struct FromUpperHalf<'a>(&'a [u16], &'a mut [f32]);

impl NullaryFnOnce for FromUpperHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (value, bits) in self.1.iter_mut().zip(self.0) {
            *value = bf16::from_bits(*bits).to_f32();
        }
    }
}

struct Largest<'a>(&'a [f32]);

impl NullaryFnOnce for Largest<'_> {
    type Output = u32;

    #[inline(always)]
    fn call(self) -> u32 {
        let mut largest = 0;
        for value in self.0 {
            largest = largest.max(value.to_bits() & MAGNITUDE);
        }
        largest
    }
}

struct Quantize<'a>(&'a [f32], f32, &'a mut [u8]);

impl NullaryFnOnce for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        // Added to a small number, 3 * 2^22 leaves its nearest even integer in the lowest bits.
        const TO_INTEGER: f32 = 12_582_912.0;
        for (byte, value) in self.2.iter_mut().zip(self.0) {
            let scaled = (value * self.1).clamp(-127.0, 127.0) + TO_INTEGER;
            *byte = scaled.to_bits() as u8;
        }
    }
}

struct Widen<'a>(&'a [u8], f32, &'a mut [f32]);

impl NullaryFnOnce for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (value, byte) in self.2.iter_mut().zip(self.0) {
            *value = f32::from(*byte as i8) * self.1;
        }
    }
}

struct Above<'a>(&'a [f32], u32, usize, &'a mut Vec<(u32, u32)>);

impl NullaryFnOnce for Above<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Above(values, floor, most, found) = self;
        // Few elements are large: whether one of sixteen is takes one comparison of wide registers.
        for (index, block) in values.chunks(16).enumerate() {
            let mut largest = 0;
            for value in block {
                largest = largest.max(value.to_bits() & MAGNITUDE);
            }
            if largest < floor {
                continue;
            }
            for (offset, value) in block.iter().enumerate() {
                let magnitude = value.to_bits() & MAGNITUDE;
                if magnitude >= floor {
                    found.push(((index * 16 + offset) as u32, magnitude));
                }
            }
            if found.len() > most {
                return;
            }
        }
    }
}

struct Add<'a>(&'a mut [f32], &'a [f32], f32);

impl NullaryFnOnce for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (value, residual) in self.0.iter_mut().zip(self.1) {
            *value += residual * self.2;
        }
    }
}

struct Rest<'a>(&'a [f32], &'a [f32], f32, &'a mut [f32]);

impl NullaryFnOnce for Rest<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rest(values, decoded, factor, rest) = self;
        for ((rest, value), decoded) in rest.iter_mut().zip(values).zip(decoded) {
            *rest = (value - decoded) * factor;
        }
    }
}
