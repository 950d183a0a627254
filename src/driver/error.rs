//! What a driver call can fail with.

use super::CuResult;

/// Why a driver call, or opening the driver, failed. Display is one sentence with the call, the
/// code, the values and, where one is known, the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver library could not be opened.
    #[error(
        "no NVIDIA driver: {library} could not be opened ({reason}); install the NVIDIA driver or use --device emu"
    )]
    NoLibrary {
        /// File name handed to `dlopen`.
        library: String,
        /// What `dlopen` said.
        reason: String,
    },
    /// The driver library has no entry point that neap needs.
    #[error(
        "the NVIDIA driver has no entry point {symbol}; neap needs driver 525 (CUDA 12.0) or newer: update it or use --device emu"
    )]
    MissingSymbol {
        /// Base name of the C function.
        symbol: &'static str,
    },
    /// An ordinal beyond the devices there are.
    #[error("there is no device {ordinal}: the driver lists {count}; `neap devices` names them")]
    NoSuchDevice {
        /// The ordinal asked for.
        ordinal: u32,
        /// Number of devices the driver lists.
        count: u32,
    },
    /// A driver call returned an error code.
    #[error("{call}{values} failed with {code}: {text}{remedy}")]
    Call {
        /// Name of the C function.
        call: &'static str,
        /// The code it returned.
        code: CuResult,
        /// What the code means.
        text: String,
        /// The values of the call, in parentheses, or empty.
        values: String,
        /// What to do about it, with a leading `; `, or empty.
        remedy: String,
    },
    /// The context was poisoned by an earlier error; nothing in it can be used any more.
    #[error(
        "{call} was not called because the context is poisoned by an earlier error ({cause}); close every handle of the context and start again"
    )]
    Poisoned {
        /// Name of the C function that was not called.
        call: &'static str,
        /// The error that poisoned the context.
        cause: Box<DriverError>,
    },
    /// `close` of a context that other handles still use.
    #[error(
        "the context of device {ordinal} is still held by {holders} other handles; close them first"
    )]
    InUse {
        /// Ordinal of the device.
        ordinal: u32,
        /// Handles alive beside the one being closed.
        holders: usize,
    },
    /// A value that the driver would misread was refused before any driver call.
    #[error("{what}")]
    Invalid {
        /// The value, and what it should have been.
        what: String,
    },
}

impl DriverError {
    /// The error of a call that returned `code`.
    pub(crate) fn from_call(call: &'static str, code: CuResult, values: String) -> DriverError {
        DriverError::Call {
            call,
            code,
            text: code
                .text()
                .unwrap_or("a code newer than this build")
                .to_owned(),
            values: if values.is_empty() {
                values
            } else {
                format!(" ({values})")
            },
            remedy: remedy(code).map_or_else(String::new, |remedy| format!("; {remedy}")),
        }
    }

    /// The result code, where the error came from a driver call (or from one that poisoned the context).
    #[must_use]
    pub fn code(&self) -> Option<CuResult> {
        match self {
            DriverError::Call { code, .. } => Some(*code),
            DriverError::Poisoned { cause, .. } => cause.code(),
            _ => None,
        }
    }

    /// True where device memory was exhausted.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(CuResult::OUT_OF_MEMORY)
    }
}

/// What to do about a code, where something is known to help.
fn remedy(code: CuResult) -> Option<&'static str> {
    Some(match code {
        CuResult::OUT_OF_MEMORY => {
            "free device memory (other processes hold some, see nvidia-smi) or ask for less"
        }
        CuResult::NO_DEVICE => "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device emu",
        CuResult::INVALID_DEVICE => "`neap devices` lists the ordinals there are",
        CuResult::DEVICE_UNAVAILABLE => {
            "another process holds the device in exclusive mode, see nvidia-smi"
        }
        CuResult::STUB_LIBRARY => {
            "libcuda.so.1 is the toolkit's link stub: put the driver's library first in the search path"
        }
        CuResult::SYSTEM_NOT_READY => {
            "start the fabric manager service (nvidia-fabricmanager) or wait for it"
        }
        CuResult::SYSTEM_DRIVER_MISMATCH => {
            "reboot, or reload the kernel module, so that it matches the user-mode driver"
        }
        CuResult::UNSUPPORTED_PTX_VERSION => "update the NVIDIA driver",
        CuResult::JIT_COMPILER_NOT_FOUND => "install the driver's libnvidia-ptxjitcompiler library",
        CuResult::NO_BINARY_FOR_GPU => {
            "the image holds neither PTX nor code for this compute capability: rebuild it with either"
        }
        code if code.is_sticky() => "the context cannot be used any more: close it and start again",
        _ => return None,
    })
}
