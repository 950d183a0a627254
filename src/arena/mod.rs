//! Room `arena`.
