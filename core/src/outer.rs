//! Outer optimizers.
