//! neap: a no-framework CUDA engine for language models that mix full and sliding-window attention.

pub mod arena;
pub mod capi;
pub mod driver;
pub mod emulator;
pub mod engine;
pub mod kernels;
pub mod kv;
pub mod model;

mod device_choice;

pub use device_choice::{DeviceChoice, DeviceChoiceError};
