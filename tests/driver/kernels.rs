//! Modules, kernels and launches.
