//! Device memory of an emulated device.
//!
//! A device address is a host address: every device owns one window of host address space, reserved
//! without access ([`window`]). Physical memory is a range of one sparse memfd ([`physical`]), so
//! mapping a handle is `mmap` of that range, the same handle at two addresses aliases, and host pages
//! exist only once touched. A byte per grain says what may be accessed ([`space`]).

mod physical;
mod reservations;
mod space;
mod window;

pub(crate) use physical::{MEMORY_FILE_NAME, PhysicalError};
pub(crate) use reservations::{Block, MapError, Memory};
pub(crate) use space::Space;
