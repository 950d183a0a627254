//! Room `emulator`.
