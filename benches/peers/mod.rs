//! What other servers do to hand out pages, translated straightforwardly: their algorithm, our code. They are models to compare
//! costs with; both originals run in Python, so their own cost is higher than what is measured here.

pub mod sglang;
pub mod vllm;
