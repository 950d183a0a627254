//! Room `driver`.
