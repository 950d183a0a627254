//! Addresses of variables.

use crate::emulator::ptx::{Entry, Init, Module, PtxError, VarSpace, Variable};
use std::collections::HashMap;

/// Where a variable is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub space: VarSpace,
    /// Address (`.global`, `.const`) or offset in its space.
    pub address: u64,
}

/// All variables that a kernel can name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbols {
    map: HashMap<String, Symbol>,
}

/// Name, address and bytes of a `.global` or `.const` variable.
pub(crate) type Global = (String, u64, u64);

pub(crate) fn align_up(value: u64, align: u64) -> u64 {
    value.div_ceil(align) * align
}

impl Symbols {
    /// Gives addresses to the module's `.global` and `.const` variables and writes their initial values.
    pub(crate) fn of_module(
        module: &Module,
        alloc: &mut dyn FnMut(u64, u64) -> Option<u64>,
    ) -> Result<(Symbols, Vec<Global>), PtxError> {
        let mut symbols = Symbols::default();
        let mut globals = Vec::new();
        let placed = |v: &Variable| matches!(v.space, VarSpace::Global | VarSpace::Const);
        for variable in module.variables.iter().filter(|v| placed(v)) {
            let Some(bytes) = variable.bytes else {
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
                    None => {
                        return Err(PtxError::new(
                            variable.line,
                            format!("`{name}` is not a global variable"),
                        ));
                    }
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

    /// Adds a kernel's parameters, shared and local variables. Returns the bytes of the parameter block, of shared memory
    /// of known size, and of the thread's stack.
    pub(crate) fn add_entry(
        &mut self,
        module: &Module,
        entry: &Entry,
    ) -> Result<(u32, u32, u32), PtxError> {
        let mut sizes = [0u64; 3];
        for param in &entry.params {
            self.place(param, &mut sizes[0])?;
        }
        let shared = module
            .variables
            .iter()
            .filter(|v| v.space == VarSpace::Shared);
        let variables: Vec<&Variable> = shared.chain(&entry.variables).collect();
        let named = |v: &&&Variable| {
            // A module-scope variable only counts in kernels that use it.
            entry.variables.iter().any(|e| std::ptr::eq(e, **v))
                || entry.statements.iter().any(|s| names(s, &v.name))
        };
        let variables: Vec<&&Variable> = variables.iter().filter(named).collect();
        for variable in variables
            .iter()
            .filter(|v| v.bytes.is_some_and(|bytes| bytes > 0))
        {
            let size = if variable.space == VarSpace::Shared {
                &mut sizes[1]
            } else {
                &mut sizes[2]
            };
            self.place(variable, size)?;
        }
        // `extern` arrays all start behind the others.
        let unsized_variables = || {
            variables
                .iter()
                .filter(|v| v.bytes.is_none_or(|bytes| bytes == 0))
        };
        let align = unsized_variables()
            .map(|v| u64::from(v.align))
            .max()
            .unwrap_or(1);
        let start = align_up(sizes[1], align);
        for variable in unsized_variables() {
            self.map.insert(
                variable.name.clone(),
                Symbol {
                    space: VarSpace::Shared,
                    address: start,
                },
            );
            sizes[1] = start;
        }
        // The stack of each lane begins 16-byte aligned.
        sizes[2] = align_up(sizes[2], 16);
        for (size, what) in sizes
            .iter()
            .zip(["parameters", "shared variables", "local variables"])
        {
            if *size > 1 << 24 {
                return Err(PtxError::new(
                    entry.line,
                    format!("{size} bytes of {what} are too many"),
                ));
            }
        }
        Ok((sizes[0] as u32, sizes[1] as u32, sizes[2] as u32))
    }

    fn place(&mut self, variable: &Variable, size: &mut u64) -> Result<(), PtxError> {
        let bytes = variable.bytes.unwrap_or(0);
        let address = align_up(*size, u64::from(variable.align.max(1)));
        *size = address.saturating_add(bytes);
        self.map.insert(
            variable.name.clone(),
            Symbol {
                space: variable.space,
                address,
            },
        );
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Symbol> {
        self.map.get(name).copied()
    }
}

fn names(statement: &crate::emulator::ptx::Statement, name: &str) -> bool {
    use crate::emulator::ptx::{AddressBase, Operand};
    statement.operands.iter().any(|operand| match operand {
        Operand::Symbol(symbol, _) => symbol == name,
        Operand::Address(AddressBase::Symbol(symbol), _) => symbol == name,
        _ => false,
    })
}
