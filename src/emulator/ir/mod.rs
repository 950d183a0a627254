//! From PTX statements to the flat instructions that the interpreter runs.
//!
//! 1. `lower` picks a handler for each statement and refuses what it does not know;
//! 2. `alias` removes moves whose source can be read instead, and results nobody reads;
//! 3. `fuse` joins instructions that the interpreter runs as one;
//! 4. `cfg` finds basic blocks, dominators and the immediate post-dominators where divergent paths meet again;
//! 5. `slots` packs the registers' live ranges into the warp's register file;
//! 6. `emit` writes the instruction array;
//! 7. `program` puts a kernel and the device functions it may call into one array.

mod alias;
mod cfg;
mod emit;
mod fuse;
mod lower;
mod lower_atomic;
mod lower_call;
mod lower_compare;
mod lower_control;
mod lower_convert;
mod lower_hopper;
mod lower_memory;
mod lower_move;
mod lower_tensor;
mod lower_tensor_map;
mod lower_wmma;
mod names;
mod param_address;
mod program;
mod slots;
mod symbols;

pub(crate) use emit::ConstantSlot;
pub(crate) use program::{CALL_BYTES, Code, Program, compile};
pub(crate) use symbols::{FUNCTION_WINDOW, Symbols};

use super::check::registers::{Background, Carry};
use super::exec::warp::Handler;
use super::ptx::RegClass;

/// A value that no instruction computes: it is in its slot before the kernel starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constant {
    /// The same bits for every lane of every launch.
    Bits(u64),
    /// Part of the parameter block.
    Param {
        /// Offset in bytes.
        offset: u32,
        /// Size in bytes.
        bytes: u8,
        /// Whether to sign-extend it.
        signed: bool,
    },
    /// A special register.
    Special(Special),
    /// An offset from the frame of the function that runs: written at each call.
    Frame(u32),
}

impl Constant {
    /// Whether lanes of a warp see different values.
    pub(crate) fn differs_by_lane(self) -> bool {
        use Special::{LaneId, LaneMaskEq, LaneMaskGe, LaneMaskGt, LaneMaskLe, LaneMaskLt, Tid};
        let Constant::Special(special) = self else {
            return false;
        };
        matches!(
            special,
            Tid(_) | LaneId | LaneMaskEq | LaneMaskLe | LaneMaskLt | LaneMaskGe | LaneMaskGt
        )
    }

    /// Two numbers that tell constants apart.
    fn key(self) -> (u64, u64) {
        match self {
            Constant::Bits(bits) => (0, bits),
            Constant::Param {
                offset,
                bytes,
                signed,
            } => (
                1,
                u64::from(offset) << 32 | u64::from(bytes) << 1 | u64::from(signed),
            ),
            Constant::Frame(offset) => (7, offset.into()),
            Constant::Special(special) => match special {
                Special::Tid(axis) => (2, axis.into()),
                Special::Ntid(axis) => (3, axis.into()),
                Special::Ctaid(axis) => (4, axis.into()),
                Special::Nctaid(axis) => (5, axis.into()),
                Special::LaneId => (6, 0),
                Special::WarpId => (6, 1),
                Special::WarpCount => (6, 2),
                Special::LaneMaskEq => (6, 3),
                Special::LaneMaskLe => (6, 4),
                Special::LaneMaskLt => (6, 5),
                Special::LaneMaskGe => (6, 6),
                Special::LaneMaskGt => (6, 7),
                Special::SmId => (6, 8),
                Special::SmCount => (6, 9),
                Special::GridId => (6, 10),
                Special::DynamicSharedBytes => (6, 11),
                Special::TotalSharedBytes => (6, 12),
                Special::Zero => (6, 13),
                Special::ClusterRank => (6, 15),
                Special::ClusterRanks => (6, 16),
                Special::ExplicitCluster => (6, 17),
                Special::ClusterId(axis) => (8, axis.into()),
                Special::ClusterCount(axis) => (9, axis.into()),
                Special::ClusterBlock(axis) => (10, axis.into()),
                Special::ClusterBlocks(axis) => (11, axis.into()),
                Special::Workspace(half) => (12, half.into()),
            },
        }
    }
}

/// Special registers that do not change while a block runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    SmId,
    SmCount,
    GridId,
    DynamicSharedBytes,
    TotalSharedBytes,
    Zero,
    /// Rank of the block in its cluster, and blocks of the cluster.
    ClusterRank,
    ClusterRanks,
    ExplicitCluster,
    /// Index of the cluster in the grid, and clusters of the grid.
    ClusterId(u8),
    ClusterCount(u8),
    /// Index of the block in its cluster, and blocks of the cluster.
    ClusterBlock(u8),
    ClusterBlocks(u8),
    /// Low and high half of the address of a cooperative launch's workspace.
    Workspace(u8),
}

/// A virtual register: a register of the PTX text, a temporary, or a constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register {
    pub class: RegClass,
    pub constant: Option<Constant>,
}

/// What lanes leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// The kernel.
    Thread,
    /// The function that runs.
    Function,
}

/// What an instruction does to the flow of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Goes on to the next instruction.
    Next,
    /// Goes to the target.
    Jump(usize),
    /// Goes to the target in lanes whose predicate (the first source) holds, or does not hold if `negated`.
    Branch { target: usize, negated: bool },
    /// Ends the thread, or the function.
    Exit(Leave),
    /// Ends the thread, or the function, in lanes whose predicate (the first source) holds, or does not hold if `negated`.
    ExitIf { negated: bool, leave: Leave },
    /// Ends the launch.
    Trap,
}

/// What an instruction computes, of those that `fuse` joins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fusible {
    /// A 64-bit sum.
    Add,
    /// A 32-bit value, zero-extended to 64 bits.
    Widen,
    /// A predicate: `a >= b` of 32-bit integers, after swapping them and before negating it.
    AtLeast {
        signed: bool,
        swapped: bool,
        negated: bool,
    },
    /// Both of two predicates.
    And,
    /// Either of two predicates.
    Or,
    /// A product whose first four sources are A; `pair` runs it and another one.
    Product { pair: Handler },
}

/// An instruction over virtual registers.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub handler: Handler,
    pub guard: Option<(u32, bool)>,
    pub dsts: Vec<u32>,
    pub srcs: Vec<u32>,
    pub imm: i64,
    pub ext: u32,
    /// `imm` and `ext` of the second entry of a two-entry instruction.
    pub second: Option<(i64, u32)>,
    /// Operand positions that hold a plain number.
    pub raw: Vec<(usize, u32)>,
    pub flow: Flow,
    /// Index of the statement it came from.
    pub statement: u32,
    /// Destinations may be written before all sources have been read.
    pub early: bool,
    /// Nothing but the destinations changes, so it may be dropped if they are not read.
    pub pure: bool,
    /// The destination becomes a copy of the source, bit for bit.
    pub copy: bool,
    /// `imm` is the number of a call site.
    pub is_call: bool,
    /// What the checked mode lets pass through it.
    pub carry: Carry,
    /// What of it goes on behind the warp's back.
    pub background: Background,
    /// The operands do not fit the instruction: they go to a list whose number is the last of `ops`.
    pub listed: bool,
    /// What it is to `fuse`.
    pub fusible: Option<Fusible>,
}
