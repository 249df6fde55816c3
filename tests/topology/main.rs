//! What a topology file may say, and what is answered when it may not.

mod broken;
mod faults;
mod good;
mod mutated;
