//! Result codes: an integer newtype, because a newer driver returns codes an older header lacks.

use std::fmt;

use super::abi;

/// A driver result code (`CUresult`).
///
/// An integer, never a Rust enum: a newer driver may return any value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CuResult(pub i32);

/// Declares the named codes with NVIDIA's names and a short text each.
macro_rules! codes {
    ($( $constant:ident = $name:ident, $text:literal; )*) => {
        impl CuResult {
            $(
                #[doc = concat!("`", stringify!($name), "`: ", $text, ".")]
                pub const $constant: CuResult = CuResult(abi::$name as i32);
            )*

            /// NVIDIA's name of the code, where this build knows it.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $( CuResult::$constant => Some(stringify!($name)), )*
                    _ => None,
                }
            }

            /// What the code means, in a few words, where this build knows it.
            #[must_use]
            pub fn text(self) -> Option<&'static str> {
                match self {
                    $( CuResult::$constant => Some($text), )*
                    _ => None,
                }
            }

            /// [`name`](Self::name) and [`text`](Self::text) as NUL-terminated strings, for the C surface.
            pub(crate) fn c_strings(self) -> Option<(&'static std::ffi::CStr, &'static std::ffi::CStr)> {
                match self {
                    $( CuResult::$constant => Some((
                        const { c_str(concat!(stringify!($name), "\0")) },
                        const { c_str(concat!($text, "\0")) },
                    )), )*
                    _ => None,
                }
            }
        }
    };
}

const fn c_str(text: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text holds a NUL"),
    }
}

codes! {
    SUCCESS = CUDA_SUCCESS, "no error";
    INVALID_VALUE = CUDA_ERROR_INVALID_VALUE, "invalid argument";
    OUT_OF_MEMORY = CUDA_ERROR_OUT_OF_MEMORY, "out of memory";
    NOT_INITIALIZED = CUDA_ERROR_NOT_INITIALIZED, "the driver is not initialised";
    DEINITIALIZED = CUDA_ERROR_DEINITIALIZED, "the driver is shutting down";
    PROFILER_DISABLED = CUDA_ERROR_PROFILER_DISABLED, "the profiler is disabled";
    PROFILER_NOT_INITIALIZED = CUDA_ERROR_PROFILER_NOT_INITIALIZED, "the profiler is not initialised";
    PROFILER_ALREADY_STARTED = CUDA_ERROR_PROFILER_ALREADY_STARTED, "the profiler runs already";
    PROFILER_ALREADY_STOPPED = CUDA_ERROR_PROFILER_ALREADY_STOPPED, "the profiler is stopped already";
    STUB_LIBRARY = CUDA_ERROR_STUB_LIBRARY, "libcuda is a stub library";
    CALL_REQUIRES_NEWER_DRIVER = CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "the call needs a newer driver";
    DEVICE_UNAVAILABLE = CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is busy or unavailable";
    NO_DEVICE = CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected";
    INVALID_DEVICE = CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal";
    DEVICE_NOT_LICENSED = CUDA_ERROR_DEVICE_NOT_LICENSED, "the device is not licensed for compute";
    INVALID_IMAGE = CUDA_ERROR_INVALID_IMAGE, "the device kernel image is invalid";
    INVALID_CONTEXT = CUDA_ERROR_INVALID_CONTEXT, "invalid device context";
    CONTEXT_ALREADY_CURRENT = CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "the context is current already";
    MAP_FAILED = CUDA_ERROR_MAP_FAILED, "mapping failed";
    UNMAP_FAILED = CUDA_ERROR_UNMAP_FAILED, "unmapping failed";
    ARRAY_IS_MAPPED = CUDA_ERROR_ARRAY_IS_MAPPED, "the array is mapped";
    ALREADY_MAPPED = CUDA_ERROR_ALREADY_MAPPED, "already mapped";
    NO_BINARY_FOR_GPU = CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for this device";
    ALREADY_ACQUIRED = CUDA_ERROR_ALREADY_ACQUIRED, "the resource is acquired already";
    NOT_MAPPED = CUDA_ERROR_NOT_MAPPED, "not mapped";
    NOT_MAPPED_AS_ARRAY = CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "not mapped as an array";
    NOT_MAPPED_AS_POINTER = CUDA_ERROR_NOT_MAPPED_AS_POINTER, "not mapped as a pointer";
    ECC_UNCORRECTABLE = CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error";
    UNSUPPORTED_LIMIT = CUDA_ERROR_UNSUPPORTED_LIMIT, "the device has no such limit";
    CONTEXT_ALREADY_IN_USE = CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "the context is current on another thread";
    PEER_ACCESS_UNSUPPORTED = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "the devices cannot access each other";
    INVALID_PTX = CUDA_ERROR_INVALID_PTX, "PTX compilation failed";
    INVALID_GRAPHICS_CONTEXT = CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid graphics context";
    NVLINK_UNCORRECTABLE = CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error";
    JIT_COMPILER_NOT_FOUND = CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "the PTX compiler library is missing";
    UNSUPPORTED_PTX_VERSION = CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the PTX version is newer than the driver";
    JIT_COMPILATION_DISABLED = CUDA_ERROR_JIT_COMPILATION_DISABLED, "the PTX compiler is disabled";
    UNSUPPORTED_EXEC_AFFINITY = CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the execution affinity is not supported";
    UNSUPPORTED_DEVSIDE_SYNC = CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "device-side synchronisation is not supported";
    CONTAINED = CUDA_ERROR_CONTAINED, "an error was contained to this process";
    INVALID_SOURCE = CUDA_ERROR_INVALID_SOURCE, "the device kernel source is invalid";
    FILE_NOT_FOUND = CUDA_ERROR_FILE_NOT_FOUND, "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "a shared object lacks a symbol";
    SHARED_OBJECT_INIT_FAILED = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "a shared object failed to initialise";
    OPERATING_SYSTEM = CUDA_ERROR_OPERATING_SYSTEM, "an operating-system call failed";
    INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE, "invalid resource handle";
    ILLEGAL_STATE = CUDA_ERROR_ILLEGAL_STATE, "the object is not in the state the call needs";
    LOSSY_QUERY = CUDA_ERROR_LOSSY_QUERY, "the answer would lose information";
    NOT_FOUND = CUDA_ERROR_NOT_FOUND, "no symbol of that name";
    NOT_READY = CUDA_ERROR_NOT_READY, "the work is not finished";
    ILLEGAL_ADDRESS = CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch";
    LAUNCH_TIMEOUT = CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out";
    LAUNCH_INCOMPATIBLE_TEXTURING = CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "the launch uses incompatible texturing";
    PEER_ACCESS_ALREADY_ENABLED = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is enabled already";
    PEER_ACCESS_NOT_ENABLED = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled";
    PRIMARY_CONTEXT_ACTIVE = CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is active";
    CONTEXT_IS_DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context is destroyed";
    ASSERT = CUDA_ERROR_ASSERT, "a device-side assertion failed";
    TOO_MANY_PEERS = CUDA_ERROR_TOO_MANY_PEERS, "too many peers";
    HOST_MEMORY_ALREADY_REGISTERED = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the host memory is registered already";
    HOST_MEMORY_NOT_REGISTERED = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the host memory is not registered";
    HARDWARE_STACK_ERROR = CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error";
    ILLEGAL_INSTRUCTION = CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address";
    INVALID_ADDRESS_SPACE = CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on this address space";
    INVALID_PC = CUDA_ERROR_INVALID_PC, "invalid program counter";
    LAUNCH_FAILED = CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "the cooperative launch has more blocks than fit at once";
    TENSOR_MEMORY_LEAK = CUDA_ERROR_TENSOR_MEMORY_LEAK, "a kernel left tensor memory allocated";
    NOT_PERMITTED = CUDA_ERROR_NOT_PERMITTED, "operation not permitted";
    NOT_SUPPORTED = CUDA_ERROR_NOT_SUPPORTED, "operation not supported";
    SYSTEM_NOT_READY = CUDA_ERROR_SYSTEM_NOT_READY, "the system is not yet initialised";
    SYSTEM_DRIVER_MISMATCH = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "the kernel driver and libcuda differ in version";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility is not supported on this device";
    MPS_CONNECTION_FAILED = CUDA_ERROR_MPS_CONNECTION_FAILED, "the MPS server cannot be reached";
    MPS_RPC_FAILURE = CUDA_ERROR_MPS_RPC_FAILURE, "a call to the MPS server failed";
    MPS_SERVER_NOT_READY = CUDA_ERROR_MPS_SERVER_NOT_READY, "the MPS server is not ready";
    MPS_MAX_CLIENTS_REACHED = CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "the MPS server has no room for another client";
    MPS_MAX_CONNECTIONS_REACHED = CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "the MPS client has no connection left";
    MPS_CLIENT_TERMINATED = CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client was terminated";
    CDP_NOT_SUPPORTED = CUDA_ERROR_CDP_NOT_SUPPORTED, "dynamic parallelism is not supported";
    CDP_VERSION_MISMATCH = CUDA_ERROR_CDP_VERSION_MISMATCH, "versions of dynamic parallelism do not match";
    STREAM_CAPTURE_UNSUPPORTED = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when a stream is capturing";
    STREAM_CAPTURE_INVALIDATED = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture failed due to an earlier error";
    STREAM_CAPTURE_MERGE = CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would merge two captures";
    STREAM_CAPTURE_UNMATCHED = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture was not begun in this stream";
    STREAM_CAPTURE_UNJOINED = CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a forked stream was not joined to the capture";
    STREAM_CAPTURE_ISOLATION = CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "operation would cross a capture's boundary";
    STREAM_CAPTURE_IMPLICIT = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capture";
    CAPTURED_EVENT = CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event recorded in a capture";
    STREAM_CAPTURE_WRONG_THREAD = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture was begun by another thread";
    TIMEOUT = CUDA_ERROR_TIMEOUT, "the wait timed out";
    GRAPH_EXEC_UPDATE_FAILURE = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the executable graph cannot be updated that way";
    EXTERNAL_DEVICE = CUDA_ERROR_EXTERNAL_DEVICE, "an external device failed";
    INVALID_CLUSTER_SIZE = CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size";
    FUNCTION_NOT_LOADED = CUDA_ERROR_FUNCTION_NOT_LOADED, "the function is not loaded";
    INVALID_RESOURCE_TYPE = CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type";
    INVALID_RESOURCE_CONFIGURATION = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration";
    KEY_ROTATION = CUDA_ERROR_KEY_ROTATION, "a key rotation is due";
    UNKNOWN = CUDA_ERROR_UNKNOWN, "unknown error";
}

impl CuResult {
    /// True for `CUDA_SUCCESS`.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == CuResult::SUCCESS
    }

    /// True where the code ends the life of its context: every later call returns it again.
    #[must_use]
    pub fn is_sticky(self) -> bool {
        matches!(
            self,
            CuResult::ECC_UNCORRECTABLE
                | CuResult::NVLINK_UNCORRECTABLE
                | CuResult::ILLEGAL_ADDRESS
                | CuResult::LAUNCH_TIMEOUT
                | CuResult::CONTEXT_IS_DESTROYED
                | CuResult::ASSERT
                | CuResult::HARDWARE_STACK_ERROR
                | CuResult::ILLEGAL_INSTRUCTION
                | CuResult::MISALIGNED_ADDRESS
                | CuResult::INVALID_ADDRESS_SPACE
                | CuResult::INVALID_PC
                | CuResult::LAUNCH_FAILED
        )
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY (2)`, or `CUDA_ERROR (code 1234)` for a code this build has no name for.
impl fmt::Display for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUDA error code {}", self.0),
        }
    }
}

impl fmt::Debug for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
