//! The PTX interpreter, instruction by instruction, against scalar models.

#[path = "emulator_ops/harness.rs"]
mod harness;
#[path = "emulator_ops/load.rs"]
mod load;
