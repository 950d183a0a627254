//! PTX text to an abstract syntax tree.

/// Why a PTX module was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct PtxError {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// What is wrong there, with the statement.
    pub message: String,
}
