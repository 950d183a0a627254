//! neap runs language models that mix full and sliding-window attention on NVIDIA GPUs, with no framework underneath.
//!
//! It opens `libcuda` at run time, owns every byte of device memory it uses, captures its CUDA graphs first and only
//! then carves what is left into KV pools. On a machine without a GPU the same kernels run on a software CUDA device.
//!
//! ```
//! use neap::{DeviceChoice, Engine, EngineOptions, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gemma3-tiny-kjv");
//! // `auto` takes the first GPU; `emu:tiny` is an emulated device of 512 MiB.
//! let device = "emu:tiny".parse::<DeviceChoice>()?.open()?;
//! let mut engine = Engine::load(&device, model.as_ref(), &EngineOptions::default(), &mut |_| ())?;
//! println!("{}\n{}", engine.ledger(), engine.carve());
//!
//! let request = Request { prompt: vec![2, 264], max_new_tokens: 4, stop_tokens: vec![1] };
//! let tokens = engine.generate(&[request])?;
//! assert_eq!(tokens[0].len(), 4);
//! engine.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! A module uses those above it in this table and none below:
//!
//! | module | what it is |
//! |---|---|
//! | [`driver`] | the CUDA driver API: one table of function pointers, RAII handles over it |
//! | [`emulator`] | a software CUDA device behind the same table, which executes the same PTX |
//! | [`arena`] | address reservations, their physical backing, and the ledger of every byte |
//! | [`kv`] | geometry, sizing, carve, page allocation, block tables: host arithmetic |
//! | [`kernels`] | parameter structs, work lists and launches of the kernels in `csrc/` |
//! | [`model`] | `config.json`, safetensors, tokenizer, the layer program of a family |
//! | [`engine`] | start-up, scheduling, the run loop |
//! | [`capi`] | the C ABI, `include/neap.h` |
//!
//! Features: `cli` (default) builds the `neap` binary; `text`, which it implies, the tokenizer. Without both the
//! library takes and gives token ids. `docs/design.md` has the words and the invariants.

pub mod arena;
pub mod capi;
pub mod driver;
pub mod emulator;
pub mod engine;
pub mod kernels;
pub mod kv;
pub mod model;

mod device_choice;

pub use arena::Ledger;
pub use device_choice::{DeviceChoice, DeviceChoiceError};
pub use driver::Device;
pub use engine::{
    Engine, EngineError, EngineOptions, Event, FinishReason, Progress, Request, RequestId,
};
pub use kv::CarveReport;
