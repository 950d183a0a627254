//! The PTX interpreter, instruction by instruction, against scalar models.

#[path = "emulator_ops/compiled.rs"]
mod compiled;
#[path = "emulator_ops/control.rs"]
mod control;
#[path = "emulator_ops/elementwise.rs"]
mod elementwise;
#[path = "emulator_ops/float.rs"]
mod float;
#[path = "emulator_ops/functions.rs"]
mod functions;
#[path = "emulator_ops/harness.rs"]
mod harness;
#[path = "emulator_ops/integer.rs"]
mod integer;
#[path = "emulator_ops/load.rs"]
mod load;
#[path = "emulator_ops/matrix.rs"]
mod matrix;
#[path = "emulator_ops/memory.rs"]
mod memory;
