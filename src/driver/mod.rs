//! The raw CUDA driver API: one table of function pointers, and thin RAII handles over it.
//!
//! | level | what it is |
//! |---|---|
//! | [`Api`] | every driver entry point neap uses, as one struct of function pointers; the emulator fills the same struct |
//! | [`Driver`] | one loaded table: `libcuda.so.1` opened at run time, or the emulator |
//! | handles | [`Context`], [`Stream`], [`Event`], [`Module`], [`Kernel`], [`Graph`], [`GraphExec`], [`AddressReservation`], [`PhysicalAllocation`], [`PinnedBuffer`] |
//!
//! Every handle owns one driver object and keeps its context alive. `Drop` never panics: what fails
//! there is recorded in the context ([`Context::take_recorded_error`]); `close` reports it instead.
//! Every method makes the context current on the calling thread first. After an error that ends a
//! context's life (an illegal address, ...) the context is *poisoned*: each later call fails with
//! [`DriverError::Poisoned`], which names the call that caused it.
//!
//! ```
//! use neap::driver::{Context, Driver, Stream};
//! use neap::emulator::{self, Profile};
//!
//! let ordinal = emulator::add_device(Profile::named("tiny").expect("a known profile"));
//! let device = Driver::emulator().device(ordinal)?;
//! let context = Context::retain_primary(&device)?;
//! let stream = Stream::new(&context)?;
//! stream.synchronize()?;
//! # Ok::<(), neap::driver::DriverError>(())
//! ```

#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[allow(unused_imports)]
#[rustfmt::skip]
pub(crate) mod abi;
mod api;
mod context;
mod device;
mod error;
mod event;
mod graph;
mod library;
mod module;
mod nvml;
mod pinned;
mod ptr;
mod result;
mod stream;
mod tensor_map;
mod vmm;

pub use api::Api;
pub use context::{Context, MemInfo};
pub use device::{Attribute, Device, Driver, MemoryUse};
pub use error::DriverError;
pub use event::Event;
pub use graph::{Graph, GraphExec, KernelNode, NodeKind};
pub use module::{Kernel, Module};
pub use pinned::PinnedBuffer;
pub use ptr::DevicePtr;
pub use result::CuResult;
pub use stream::{CaptureMode, LaunchConfig, Stream};
pub use tensor_map::{TensorElement, TiledTensor};
pub use vmm::{Access, AddressReservation, PhysicalAllocation};
