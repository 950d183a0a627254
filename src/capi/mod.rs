//! Room `capi`.
