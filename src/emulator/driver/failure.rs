//! Why an emulated driver call failed: the code the caller gets, and a sentence for people.

use crate::driver::CuResult;
use crate::emulator::mem::{MapError, PhysicalError};

/// A result code with what the code alone does not say.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: CuResult,
    pub(super) detail: Option<String>,
}

impl Failure {
    pub(super) fn new(code: CuResult, detail: impl Into<String>) -> Failure {
        Failure {
            code,
            detail: Some(detail.into()),
        }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Failure {
        Failure::new(CuResult::INVALID_VALUE, detail)
    }

    /// A pointer argument that must not be null.
    pub(super) fn null(what: &str) -> Failure {
        Failure::invalid(format!("{what} is a null pointer"))
    }

    /// A handle that does not name a live object.
    pub(super) fn handle(what: &str) -> Failure {
        Failure::new(
            CuResult::INVALID_HANDLE,
            format!("the {what} handle names no live {what} of this device"),
        )
    }

    fn host(error: &std::io::Error) -> Failure {
        if error.raw_os_error() == Some(libc::ENOMEM) {
            return Failure::new(
                CuResult::OPERATING_SYSTEM,
                format!(
                    "the host has no room for another mapping ({error}): raise vm.max_map_count or map fewer, larger pieces"
                ),
            );
        }
        Failure::new(
            CuResult::OPERATING_SYSTEM,
            format!("a host system call failed: {error}"),
        )
    }
}

impl From<CuResult> for Failure {
    fn from(code: CuResult) -> Self {
        Failure { code, detail: None }
    }
}

impl From<MapError> for Failure {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Invalid(detail) => Failure::invalid(detail),
            MapError::NoAddresses => Failure::new(
                CuResult::OUT_OF_MEMORY,
                "the device has no gap of so many addresses",
            ),
            MapError::AlreadyMapped => Failure::new(
                CuResult::ALREADY_MAPPED,
                "part of the range is mapped already",
            ),
            MapError::NoSuchAllocation => Failure::handle("physical allocation"),
            MapError::Host(error) => Failure::host(&error),
        }
    }
}

impl From<PhysicalError> for Failure {
    fn from(error: PhysicalError) -> Self {
        MapError::from(error).into()
    }
}
