//! PTX text to an abstract syntax tree.
//!
//! The parser knows PTX's grammar and no instruction: opcodes stay text, and whether one exists is for the lowering in
//! [`ir`](super::ir) to say. Registers are resolved to numbers here, because `{ .reg ... }` scopes (which inline assembly
//! makes) are a matter of syntax.

mod lexer;
mod linkage;
mod parse;
mod statement;

pub(crate) use linkage::tell_private_names_apart;
pub use parse::parse;

/// Why a PTX module was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct PtxError {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// What is wrong there, with the statement.
    pub message: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> PtxError {
        PtxError {
            line,
            message: message.into(),
        }
    }
}

/// A translation unit.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Kernels, in order.
    pub entries: Vec<Entry>,
    /// Device functions that have a body, in order.
    pub functions: Vec<Entry>,
    /// Device functions that are declared, defined here or not.
    pub declared: Vec<String>,
    /// Module-scope variables, in order.
    pub variables: Vec<Variable>,
    /// `.file` numbers and names, for line information.
    pub files: Vec<(u32, String)>,
}

/// A kernel (`.entry`) or a device function (`.func`).
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Line of the `.entry` or `.func` directive.
    pub line: u32,
    /// Parameters, in order.
    pub params: Vec<Variable>,
    /// Return values of a function, in order.
    pub returns: Vec<Variable>,
    /// Parameters and return values that are registers (`.func (.reg .b32 r) f(.reg .b32 a)`): variable's name and register.
    pub register_params: Vec<(String, u32)>,
    /// Bytes of the area where the body's `.param` variables lie.
    pub call_bytes: u64,
    /// `.reqnctapercluster`: blocks of a cluster in x, y, z.
    pub cluster: Option<[u32; 3]>,
    /// Product of `.maxntid` or `.reqntid`.
    pub max_threads: Option<u32>,
    /// `.reqntid`: threads of a block in x, y, z, which every launch has to have.
    pub required_block: Option<[u32; 3]>,
    /// Class of each register, by register number.
    pub registers: Vec<RegClass>,
    /// `.shared`, `.local` and `.param` variables of the body. A name that an inner scope declares again is made unique by
    /// a `#` and a number.
    pub variables: Vec<Variable>,
    /// The body.
    pub statements: Vec<Statement>,
}

/// Storage class of a register: its width, or predicate. PTX's `.f32`, `.s32`, `.b32` registers are all 32 bits wide, and
/// what an instruction does with them is said by its opcode alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegClass {
    /// `.pred`
    Pred,
    /// 8- or 16-bit register
    B16,
    /// 32-bit register
    B32,
    /// 64-bit register
    B64,
    /// 128-bit register
    B128,
}

impl RegClass {
    /// Width in bytes of a value (1 for a predicate).
    pub fn bytes(self) -> u32 {
        match self {
            RegClass::Pred => 1,
            RegClass::B16 => 2,
            RegClass::B32 => 4,
            RegClass::B64 => 8,
            RegClass::B128 => 16,
        }
    }
}

/// State space of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarSpace {
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.param`
    Param,
}

/// A variable or parameter.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// State space.
    pub space: VarSpace,
    /// Alignment in bytes.
    pub align: u32,
    /// Bytes of one element (of the base type, vectors apart).
    pub element_bytes: u32,
    /// Bytes in all; `None` for `extern` arrays without a size.
    pub bytes: Option<u64>,
    /// Offset in [`Entry::call_bytes`] of a `.param` variable of a body: variables of scopes that are never open at the
    /// same time share memory.
    pub call_offset: u64,
    /// Declared `.extern`: defined elsewhere, or (shared arrays) sized by the launch.
    pub external: bool,
    /// Initial values, one an element, from the first element on.
    pub init: Vec<Init>,
    /// Line of the declaration.
    pub line: u32,
}

/// One element of an initialiser.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// A number, as the bits of its element.
    Bits(u64),
    /// The address of a variable plus an offset.
    Address(String, i64),
}

/// One instruction of a kernel's body.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// `.loc` file number and line in force.
    pub loc: Option<(u32, u32)>,
    /// Byte range of the statement in the PTX text.
    pub text: std::ops::Range<usize>,
    /// Guard predicate register, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// Opcode with its modifiers, such as `ld.global.nc.v4.u32`.
    pub opcode: String,
    /// Operands, destination first.
    pub operands: Vec<Operand>,
}

/// A numeric literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Literal {
    /// Integer, sign extended or zero extended to 64 bits.
    Int(u64),
    /// `0f` literal: f32 bits.
    F32(u32),
    /// `0d` or decimal literal: f64 bits.
    F64(u64),
}

/// What an address operand is relative to.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressBase {
    /// A register.
    Reg(u32),
    /// A variable or parameter.
    Symbol(String),
    /// Nothing: the offset is the address.
    Absolute,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, by number.
    Reg(u32),
    /// A negated predicate register.
    NotReg(u32),
    /// A special register such as `%tid.x`.
    Special(String),
    /// A number.
    Literal(Literal),
    /// A variable's address plus an offset.
    Symbol(String, i64),
    /// `[base + offset]`
    Address(AddressBase, i64),
    /// `[base + offset, {x, y, ...}]`: a tensor map and coordinates.
    Tensor(AddressBase, i64, Vec<Operand>),
    /// `{a, b, ...}`
    Vector(Vec<Operand>),
    /// `a|b`
    Pair(Box<Operand>, Box<Operand>),
    /// `_`
    Sink,
    /// Branch target: index into [`Entry::statements`] (may be one past the end).
    Target(usize),
    /// Branch table of `brx.idx`: indices into [`Entry::statements`].
    Targets(Vec<usize>),
}

impl Operand {
    /// The elements of a vector, or the operand itself.
    pub fn elements(&self) -> Vec<Operand> {
        match self {
            Operand::Vector(elements) => elements.clone(),
            single => vec![single.clone()],
        }
    }
}
