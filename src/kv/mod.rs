//! Room `kv`.
