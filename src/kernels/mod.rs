//! Room `kernels`.
