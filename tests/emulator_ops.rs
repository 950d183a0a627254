//! The PTX interpreter, instruction by instruction, against scalar models.

#[path = "emulator_ops/compiled.rs"]
mod compiled;
#[path = "emulator_ops/control.rs"]
mod control;
#[path = "emulator_ops/counted.rs"]
mod counted;
#[path = "emulator_ops/damaged.rs"]
mod damaged;
#[path = "emulator_ops/device_runtime.rs"]
mod device_runtime;
#[path = "emulator_ops/elementwise.rs"]
mod elementwise;
#[path = "emulator_ops/float.rs"]
mod float;
#[path = "emulator_ops/float_convert.rs"]
mod float_convert;
#[path = "emulator_ops/float_rare.rs"]
mod float_rare;
#[path = "emulator_ops/float_values.rs"]
mod float_values;
#[path = "emulator_ops/functions.rs"]
mod functions;
#[path = "emulator_ops/fused.rs"]
mod fused;
#[path = "emulator_ops/half_float.rs"]
mod half_float;
#[path = "emulator_ops/harness.rs"]
mod harness;
#[path = "emulator_ops/hopper.rs"]
mod hopper;
#[path = "emulator_ops/integer.rs"]
mod integer;
#[path = "emulator_ops/integer_rare.rs"]
mod integer_rare;
#[path = "emulator_ops/load.rs"]
mod load;
#[path = "emulator_ops/matrix.rs"]
mod matrix;
#[path = "emulator_ops/memory.rs"]
mod memory;
#[path = "emulator_ops/memory_rare.rs"]
mod memory_rare;
#[path = "emulator_ops/probe_models/mod.rs"]
mod probe_models;
#[path = "emulator_ops/probes.rs"]
mod probes;
#[path = "emulator_ops/short_formats.rs"]
mod short_formats;
#[path = "emulator_ops/tensor_types.rs"]
mod tensor_types;
