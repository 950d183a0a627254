//! Room `emulator`.
pub mod exec;
pub mod ir;
pub mod ptx;
