//! Addresses of variables.

use crate::emulator::ptx::{Entry, Init, Module, PtxError, VarSpace, Variable};
use std::collections::HashMap;

/// Where a variable is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub space: VarSpace,
    /// Address (`.global`, `.const`) or offset in its space.
    pub address: u64,
    /// The offset counts from the frame of the function that declares it.
    pub in_frame: bool,
}

/// All variables and functions that a routine can name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbols {
    map: HashMap<String, Symbol>,
    /// Number of each function of the module.
    functions: HashMap<String, u32>,
}

/// Bytes of a kernel's address spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The parameter block.
    pub param: u32,
    /// Shared memory of known size.
    pub shared: u32,
    /// The kernel's own frame on the thread's stack.
    pub frame: u32,
}

/// Where a function's parameters and return values lie in its frame: offset and bytes, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    pub params: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
    pub bytes: u32,
}

/// The address of a function as data: a window of its own above device memory.
pub(crate) fn function_address(number: u32) -> u64 {
    FUNCTION_WINDOW + 16 * (u64::from(number) + 1)
}

/// Generic address from which functions count. As [`SHARED_WINDOW`](crate::emulator::exec::access::SHARED_WINDOW).
pub(crate) const FUNCTION_WINDOW: u64 = 4 << 60;

/// Name, address and bytes of a `.global` or `.const` variable.
pub(crate) type Global = (String, u64, u64);

pub(crate) fn align_up(value: u64, align: u64) -> u64 {
    value.div_ceil(align).saturating_mul(align)
}

impl Symbols {
    /// Gives addresses to the module's `.global` and `.const` variables and writes their initial values.
    pub(crate) fn of_module(
        module: &Module,
        alloc: &mut dyn FnMut(u64, u64) -> Option<u64>,
    ) -> Result<(Symbols, Vec<Global>), PtxError> {
        let numbers = module.functions.iter().zip(0..);
        let mut symbols = Symbols {
            functions: numbers.map(|(f, n)| (f.name.clone(), n)).collect(),
            ..Symbols::default()
        };
        let mut globals = Vec::new();
        let placed = |v: &Variable| matches!(v.space, VarSpace::Global | VarSpace::Const);
        for variable in module.variables.iter().filter(|v| placed(v)) {
            let Some(bytes) = variable.bytes.filter(|_| !variable.external) else {
                return Err(PtxError::new(
                    variable.line,
                    format!(
                        "`{}` is defined in another module; only whole programs can be loaded",
                        variable.name
                    ),
                ));
            };
            let Some(address) = alloc(bytes.max(1), u64::from(variable.align)) else {
                return Err(PtxError::new(
                    variable.line,
                    format!("no memory for the {bytes} bytes of `{}`", variable.name),
                ));
            };
            symbols.map.insert(
                variable.name.clone(),
                Symbol {
                    space: variable.space,
                    address,
                    in_frame: false,
                },
            );
            globals.push((variable.name.clone(), address, bytes));
        }
        for variable in module.variables.iter().filter(|v| placed(v)) {
            symbols.initialise(variable)?;
        }
        Ok((symbols, globals))
    }

    fn initialise(&self, variable: &Variable) -> Result<(), PtxError> {
        let address = self.map[&variable.name].address;
        // SAFETY: the allocator gave out this many writable bytes; PTX variables without initial values are zero.
        unsafe {
            std::ptr::write_bytes(address as *mut u8, 0, variable.bytes.unwrap_or(0) as usize)
        };
        for (index, init) in variable.init.iter().enumerate() {
            let bits = match init {
                Init::Bits(bits) => *bits,
                Init::Address(name, offset) => match self.map.get(name) {
                    Some(symbol) => symbol.address.wrapping_add(*offset as u64),
                    None => match self.function(name) {
                        Some(number) => function_address(number).wrapping_add(*offset as u64),
                        None => {
                            return Err(PtxError::new(
                                variable.line,
                                format!("`{name}` is not a global variable"),
                            ));
                        }
                    },
                },
            };
            let bytes = variable.element_bytes as usize;
            let value = u128::from(bits).to_le_bytes();
            let target = (address as *mut u8).wrapping_add(index * bytes);
            // SAFETY: the parser has checked that the initial values fit the variable.
            unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), target, bytes) };
        }
        Ok(())
    }

    /// Adds a kernel's parameters and variables, and the shared variables of the functions it may call.
    pub(crate) fn add_entry(
        &mut self,
        module: &Module,
        entry: &Entry,
        functions: &[&Entry],
    ) -> Result<Sizes, PtxError> {
        let mut sizes = [0u64; 3];
        for param in &entry.params {
            self.place(param, &mut sizes[0])?;
        }
        let routines = || std::iter::once(&entry).chain(functions);
        // A module-scope variable only counts in kernels that use it.
        let used = |v: &&Variable| {
            v.space == VarSpace::Shared
                && routines().any(|r| r.statements.iter().any(|s| names(s, &v.name)))
        };
        let shared: Vec<&Variable> = module
            .variables
            .iter()
            .filter(used)
            .chain(
                routines()
                    .flat_map(|r| &r.variables)
                    .filter(|v| v.space == VarSpace::Shared),
            )
            .collect();
        let (known, unknown): (Vec<&Variable>, Vec<&Variable>) = shared
            .into_iter()
            .partition(|v| v.bytes.is_some_and(|bytes| bytes > 0));
        for variable in known {
            self.place(variable, &mut sizes[1])?;
        }
        // `extern` arrays all start behind the others.
        let align = unknown.iter().map(|v| u64::from(v.align)).max();
        let start = align_up(sizes[1], align.unwrap_or(1).max(1));
        for variable in unknown {
            self.map.insert(
                variable.name.clone(),
                Symbol {
                    space: VarSpace::Shared,
                    address: start,
                    in_frame: false,
                },
            );
            sizes[1] = start;
        }
        sizes[2] = self.place_frame(entry, 0, false)?;
        let whats = ["parameters", "shared variables", "local variables"];
        for (size, what) in sizes.iter().zip(whats) {
            too_large(entry, *size, what)?;
        }
        Ok(Sizes {
            param: sizes[0] as u32,
            shared: sizes[1] as u32,
            frame: sizes[2] as u32,
        })
    }

    /// Adds a function's parameters, return values and local variables, all of which lie in its frame.
    pub(crate) fn add_function(&mut self, function: &Entry) -> Result<Frame, PtxError> {
        let mut size = 0;
        let mut frame = Frame::default();
        for (list, places) in [
            (&function.params, &mut frame.params),
            (&function.returns, &mut frame.returns),
        ] {
            for variable in list {
                self.place(variable, &mut size)?;
                if let Some(symbol) = self.map.get_mut(&variable.name) {
                    (symbol.space, symbol.in_frame) = (VarSpace::Local, true);
                    let bytes = variable.bytes.unwrap_or(0);
                    places.push((symbol.address as u32, bytes.min(1 << 24) as u32));
                }
            }
        }
        let size = self.place_frame(function, size, true)?;
        too_large(function, size, "local variables")?;
        frame.bytes = size as u32;
        Ok(frame)
    }

    /// Places local variables and the area of call parameters from offset `size` on; returns the frame's bytes.
    fn place_frame(
        &mut self,
        routine: &Entry,
        mut size: u64,
        in_frame: bool,
    ) -> Result<u64, PtxError> {
        let of = |space| routine.variables.iter().filter(move |v| v.space == space);
        for variable in of(VarSpace::Local) {
            self.place(variable, &mut size)?;
            if let Some(symbol) = self.map.get_mut(&variable.name) {
                symbol.in_frame = in_frame;
            }
        }
        let base = align_up(size, 16);
        for variable in of(VarSpace::Param) {
            self.map.insert(
                variable.name.clone(),
                Symbol {
                    space: VarSpace::Local,
                    address: base + variable.call_offset,
                    in_frame,
                },
            );
        }
        if routine.call_bytes > 0 {
            size = base + routine.call_bytes;
        }
        // The stack of each lane begins 16-byte aligned.
        Ok(size.saturating_add(15) & !15)
    }

    /// The number of a function of the module.
    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        self.functions.get(name).copied()
    }

    fn place(&mut self, variable: &Variable, size: &mut u64) -> Result<(), PtxError> {
        let bytes = variable.bytes.unwrap_or(0);
        let align = u64::from(variable.align.max(1));
        let Some(address) = size.checked_next_multiple_of(align) else {
            return Err(PtxError::new(
                variable.line,
                format!("`{}` does not fit its address space", variable.name),
            ));
        };
        *size = address.saturating_add(bytes);
        self.map.insert(
            variable.name.clone(),
            Symbol {
                space: variable.space,
                address,
                in_frame: false,
            },
        );
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Symbol> {
        self.map.get(name).copied()
    }
}

fn too_large(routine: &Entry, size: u64, what: &str) -> Result<(), PtxError> {
    if size > 1 << 24 {
        return Err(PtxError::new(
            routine.line,
            format!("{size} bytes of {what} are too many"),
        ));
    }
    Ok(())
}

fn names(statement: &crate::emulator::ptx::Statement, name: &str) -> bool {
    use crate::emulator::ptx::{AddressBase, Operand};
    fn inside(operand: &Operand, name: &str) -> bool {
        match operand {
            Operand::Symbol(symbol, _) => symbol == name,
            Operand::Address(AddressBase::Symbol(symbol), _)
            | Operand::Tensor(AddressBase::Symbol(symbol), ..) => symbol == name,
            Operand::Vector(elements) => elements.iter().any(|element| inside(element, name)),
            _ => false,
        }
    }
    statement
        .operands
        .iter()
        .any(|operand| inside(operand, name))
}
