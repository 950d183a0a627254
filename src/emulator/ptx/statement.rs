//! Kernel bodies: scopes, registers, labels, instructions, operands.

use super::lexer::Token;
use super::parse::{Parser, type_bytes};
use super::{AddressBase, Entry, Literal, Operand, PtxError, RegClass, Statement, VarSpace};
use std::collections::HashMap;

/// What a `{ ... }` block declares.
#[derive(Default)]
struct Scope<'a> {
    parent: Option<usize>,
    /// `.reg .b32 %r<N>`: prefix to (first register number, N)
    ranges: HashMap<&'a str, (u32, u32)>,
    registers: HashMap<&'a str, u32>,
    labels: HashMap<&'a str, usize>,
    tables: HashMap<&'a str, Vec<&'a str>>,
    /// Variables, by the name they have in [`Entry::variables`].
    variables: HashMap<&'a str, String>,
    /// Bytes of `.param` variables in this scope and around it.
    call_bytes: u64,
}

struct Scopes<'a> {
    /// Registers that are parameters of the function.
    parameters: Vec<(String, u32)>,
    all: Vec<Scope<'a>>,
    current: usize,
}

impl<'a> Scopes<'a> {
    fn find<T>(&self, from: usize, get: impl Fn(&Scope<'a>) -> Option<T>) -> Option<T> {
        let mut scope = Some(from);
        while let Some(index) = scope {
            if let Some(found) = get(&self.all[index]) {
                return Some(found);
            }
            scope = self.all[index].parent;
        }
        None
    }

    /// The name that a variable has in [`Entry::variables`]; other names stay.
    fn variable(&self, name: &str) -> String {
        self.find(self.current, |scope| scope.variables.get(name).cloned())
            .unwrap_or_else(|| name.to_string())
    }

    fn register(&self, name: &str) -> Option<u32> {
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let number = name[digits..].parse::<u32>().ok();
        self.find(self.current, |scope| {
            scope.registers.get(name).copied().or_else(|| {
                let &(first, count) = scope.ranges.get(&name[..digits])?;
                number.filter(|&n| n < count).map(|n| first + n)
            })
        })
        .or_else(|| {
            let found = self.parameters.iter().find(|(n, _)| n == name)?;
            Some(found.1)
        })
    }
}

/// A branch target that is resolved once the whole body has been read.
struct Fixup<'a> {
    statement: usize,
    operand: usize,
    scope: usize,
    label: &'a str,
    line: u32,
}

impl<'a> Parser<'a> {
    /// The body of `entry`, after its opening brace.
    pub(super) fn body(&mut self, entry: &mut Entry) -> Result<(), PtxError> {
        let mut scopes = Scopes {
            all: vec![Scope::default()],
            current: 0,
            parameters: entry.register_params.clone(),
        };
        let mut fixups = Vec::new();
        let mut loc = None;
        loop {
            let line = self.line;
            match self.token {
                Token::Mark(b'{') => {
                    self.advance()?;
                    scopes.all.push(Scope {
                        parent: Some(scopes.current),
                        call_bytes: scopes.all[scopes.current].call_bytes,
                        ..Scope::default()
                    });
                    scopes.current = scopes.all.len() - 1;
                }
                Token::Mark(b'}') => {
                    self.advance()?;
                    match scopes.all[scopes.current].parent {
                        Some(parent) => scopes.current = parent,
                        None => break,
                    }
                }
                Token::Mark(b';') => {
                    self.advance()?;
                }
                Token::Name(word) if word.starts_with('.') => {
                    self.advance()?;
                    match word {
                        ".reg" => {
                            let ty = self.name("a register type")?;
                            self.registers(ty, entry, &mut scopes)?;
                        }
                        // `.reg.b32` is one word to the lexer.
                        glued if glued.starts_with(".reg.") => {
                            self.registers(&glued[4..], entry, &mut scopes)?;
                        }
                        ".shared" => self.scoped(VarSpace::Shared, line, entry, &mut scopes)?,
                        ".local" => self.scoped(VarSpace::Local, line, entry, &mut scopes)?,
                        ".param" => self.scoped(VarSpace::Param, line, entry, &mut scopes)?,
                        ".pragma" => self.skip_past(b';')?,
                        ".loc" => loc = Some(self.loc()?),
                        _ => {
                            return Err(PtxError::new(
                                line,
                                format!("unknown directive `{word}` in a kernel"),
                            ));
                        }
                    }
                }
                Token::Name(_) | Token::Mark(b'@') => {
                    let start = self.start;
                    if let Token::Name(name) = self.token {
                        self.advance()?;
                        if self.accept(b':')? {
                            self.label(name, line, entry.statements.len(), &mut scopes)?;
                            continue;
                        }
                        self.statement(
                            name,
                            None,
                            (line, start),
                            entry,
                            &scopes,
                            &mut fixups,
                            loc,
                        )?;
                        continue;
                    }
                    self.advance()?;
                    let negated = self.accept(b'!')?;
                    let name = self.name("a predicate")?;
                    let Some(register) = scopes.register(name) else {
                        return Err(PtxError::new(line, format!("`{name}` is not a register")));
                    };
                    if entry.registers[register as usize] != RegClass::Pred {
                        return Err(PtxError::new(
                            line,
                            format!("the guard `{name}` is not a predicate"),
                        ));
                    }
                    let opcode = self.name("an instruction")?;
                    self.statement(
                        opcode,
                        Some((register, negated)),
                        (line, start),
                        entry,
                        &scopes,
                        &mut fixups,
                        loc,
                    )?;
                }
                _ => return self.unexpected("an instruction"),
            }
        }
        for fixup in fixups {
            let target = |label: &str| {
                scopes
                    .find(fixup.scope, |s| s.labels.get(label).copied())
                    .ok_or_else(|| {
                        PtxError::new(fixup.line, format!("the label `{label}` is not defined"))
                    })
            };
            let operand = match scopes.find(fixup.scope, |s| s.tables.get(fixup.label).cloned()) {
                Some(table) => {
                    Operand::Targets(table.iter().map(|l| target(l)).collect::<Result<_, _>>()?)
                }
                None => Operand::Target(target(fixup.label)?),
            };
            entry.statements[fixup.statement].operands[fixup.operand] = operand;
        }
        Ok(())
    }

    /// Variables that a body declares.
    fn scoped(
        &mut self,
        space: VarSpace,
        line: u32,
        entry: &mut Entry,
        scopes: &mut Scopes<'a>,
    ) -> Result<(), PtxError> {
        for (mut variable, name) in self.named_variables(space, line)? {
            if entry.variables.iter().any(|v| v.name == variable.name)
                || entry.params.iter().any(|v| v.name == variable.name)
            {
                variable.name = format!("{name}#{}", entry.variables.len());
            }
            let scope = &mut scopes.all[scopes.current];
            if scope
                .variables
                .insert(name, variable.name.clone())
                .is_some()
            {
                return Err(PtxError::new(
                    line,
                    format!("the variable `{name}` is defined twice"),
                ));
            }
            if space == VarSpace::Param {
                let align = u64::from(variable.align.max(1));
                let bytes = variable.bytes.unwrap_or(0);
                let end = scope
                    .call_bytes
                    .checked_next_multiple_of(align)
                    .and_then(|start| {
                        variable.call_offset = start;
                        start.checked_add(bytes)
                    })
                    .filter(|&end| end <= 1 << 20);
                let Some(end) = end else {
                    return Err(PtxError::new(
                        line,
                        format!("`{name}` has {bytes} bytes, too many for a parameter"),
                    ));
                };
                scope.call_bytes = end;
                entry.call_bytes = entry.call_bytes.max(end);
            }
            entry.variables.push(variable);
        }
        Ok(())
    }

    fn label(
        &mut self,
        name: &'a str,
        line: u32,
        at: usize,
        scopes: &mut Scopes<'a>,
    ) -> Result<(), PtxError> {
        let current = scopes.current;
        if self.token == Token::Name(".branchtargets") {
            self.advance()?;
            let mut labels = vec![self.name("a label")?];
            while self.accept(b',')? {
                labels.push(self.name("a label")?);
            }
            self.expect(b';')?;
            scopes.all[current].tables.insert(name, labels);
        } else if matches!(self.token, Token::Name(".callprototype" | ".calltargets")) {
            self.skip_past(b';')?;
        } else if scopes.all[current].labels.insert(name, at).is_some() {
            return Err(PtxError::new(
                line,
                format!("the label `{name}` is defined twice"),
            ));
        }
        Ok(())
    }

    fn loc(&mut self) -> Result<(u32, u32), PtxError> {
        let file = self.count("a file number")?;
        let line = self.count("a line number")?;
        self.count("a column number")?;
        // `, function_name $L, inlined_at file line column` may follow, on the same line.
        while self.accept(b',')? {
            if self.name("a location attribute")? == "function_name" {
                self.name("a label")?;
                if self.accept(b'+')? {
                    self.count("an offset")?;
                }
            } else {
                for _ in 0..3 {
                    self.count("a number")?;
                }
            }
        }
        Ok((file, line))
    }

    fn registers(
        &mut self,
        word: &str,
        entry: &mut Entry,
        scopes: &mut Scopes<'a>,
    ) -> Result<(), PtxError> {
        let class = match type_bytes(word) {
            _ if word == ".pred" => RegClass::Pred,
            Some(1 | 2) => RegClass::B16,
            Some(4) => RegClass::B32,
            Some(8) => RegClass::B64,
            Some(16) => RegClass::B128,
            _ => return self.error(format!("unknown register type `{word}`")),
        };
        let current = scopes.current;
        loop {
            let name = self.name("a register name")?;
            let first = entry.registers.len() as u32;
            let mut count = 1;
            if self.accept(b'<')? {
                count = self.count("a register count")?;
                self.expect(b'>')?;
                if count > 1 << 20 {
                    return self.error(format!("{count} registers are too many"));
                }
                scopes.all[current].ranges.insert(name, (first, count));
            } else {
                scopes.all[current].registers.insert(name, first);
            }
            entry
                .registers
                .resize(entry.registers.len() + count as usize, class);
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')
    }

    #[allow(clippy::too_many_arguments)]
    fn statement(
        &mut self,
        opcode: &'a str,
        guard: Option<(u32, bool)>,
        (line, start): (u32, usize),
        entry: &mut Entry,
        scopes: &Scopes<'a>,
        fixups: &mut Vec<Fixup<'a>>,
        loc: Option<(u32, u32)>,
    ) -> Result<(), PtxError> {
        let mut operands = Vec::new();
        if opcode == "call" || opcode.starts_with("call.") {
            operands = self.call_operands(scopes)?;
        } else if !self.is(b';') {
            let branches =
                opcode == "bra" || opcode.starts_with("bra.") || opcode.starts_with("brx.");
            loop {
                let operand = self.operand(scopes)?;
                if branches && matches!(operand, Operand::Symbol(..)) {
                    let Some(label) = self.last_name else {
                        return self.unexpected("a label");
                    };
                    fixups.push(Fixup {
                        statement: entry.statements.len(),
                        operand: operands.len(),
                        scope: scopes.current,
                        label,
                        line,
                    });
                }
                operands.push(operand);
                if !self.accept(b',')? {
                    break;
                }
            }
        }
        if !self.is(b';') {
            return self.unexpected("`,` or `;`");
        }
        let text = start..self.previous_end;
        self.advance()?;
        entry.statements.push(Statement {
            line,
            loc,
            text,
            guard,
            opcode: opcode.to_string(),
            operands,
        });
        Ok(())
    }

    /// `(returns), callee, (arguments), prototype` in this order, empty lists for what is left out, no prototype if there
    /// is none.
    fn call_operands(&mut self, scopes: &Scopes<'a>) -> Result<Vec<Operand>, PtxError> {
        let mut returns = Vec::new();
        if self.is(b'(') {
            returns = self.list(scopes)?;
            self.expect(b',')?;
        }
        let callee = self.simple_operand(scopes)?;
        let mut arguments = Vec::new();
        let mut prototype = None;
        while self.accept(b',')? {
            if self.is(b'(') {
                arguments = self.list(scopes)?;
            } else {
                prototype = Some(self.simple_operand(scopes)?);
            }
        }
        let mut operands = vec![Operand::Vector(returns), callee, Operand::Vector(arguments)];
        operands.extend(prototype);
        Ok(operands)
    }

    /// `(a, b, ...)`
    fn list(&mut self, scopes: &Scopes<'a>) -> Result<Vec<Operand>, PtxError> {
        self.expect(b'(')?;
        let mut elements = Vec::new();
        while !self.accept(b')')? {
            elements.push(self.simple_operand(scopes)?);
            if !self.is(b')') {
                self.expect(b',')?;
            }
        }
        Ok(elements)
    }

    fn operand(&mut self, scopes: &Scopes<'a>) -> Result<Operand, PtxError> {
        let first = self.simple_operand(scopes)?;
        if self.accept(b'|')? {
            let second = self.simple_operand(scopes)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple_operand(&mut self, scopes: &Scopes<'a>) -> Result<Operand, PtxError> {
        match self.token {
            Token::Mark(b'{') => {
                self.advance()?;
                let mut elements = Vec::new();
                while !self.accept(b'}')? {
                    // A vector or address inside of a vector is not PTX, and would let the text dictate the parser's stack.
                    if self.is(b'{') || self.is(b'[') {
                        return self.unexpected("an element");
                    }
                    elements.push(self.simple_operand(scopes)?);
                    if !self.is(b'}') {
                        self.expect(b',')?;
                    }
                }
                Ok(Operand::Vector(elements))
            }
            Token::Mark(b'[') => {
                self.advance()?;
                let base = match self.token {
                    Token::Name(name) if name != "WARP_SZ" => {
                        self.advance()?;
                        match scopes.register(name) {
                            Some(register) => AddressBase::Reg(register),
                            None => AddressBase::Symbol(scopes.variable(name)),
                        }
                    }
                    _ => AddressBase::Absolute,
                };
                let mut offset = 0i64;
                if base == AddressBase::Absolute || self.is(b'+') || self.is(b'-') {
                    if self.is(b'+') {
                        self.advance()?;
                    }
                    match self.literal()? {
                        Some(Literal::Int(value)) => offset = value as i64,
                        _ => return self.unexpected("an address"),
                    }
                }
                // `[map, {x, y}]`: a tensor map and coordinates.
                if self.accept(b',')? {
                    if !self.is(b'{') {
                        return self.unexpected("tensor coordinates");
                    }
                    let Operand::Vector(coordinates) = self.simple_operand(scopes)? else {
                        return self.unexpected("tensor coordinates");
                    };
                    self.expect(b']')?;
                    return Ok(Operand::Tensor(base, offset, coordinates));
                }
                if !self.is(b']') {
                    return self.unexpected("`]` (only register+offset addresses are supported)");
                }
                self.advance()?;
                Ok(Operand::Address(base, offset))
            }
            Token::Mark(b'!') => {
                self.advance()?;
                let name = self.name("a predicate")?;
                match scopes.register(name) {
                    Some(register) => Ok(Operand::NotReg(register)),
                    None => self.error(format!("`{name}` is not a register")),
                }
            }
            Token::Name("_") => {
                self.advance()?;
                Ok(Operand::Sink)
            }
            Token::Name(name) if name != "WARP_SZ" => {
                self.advance()?;
                if let Some(register) = scopes.register(name) {
                    return Ok(Operand::Reg(register));
                }
                if name.starts_with('%') {
                    return Ok(Operand::Special(name.to_string()));
                }
                self.last_name = Some(name);
                let mut offset = 0;
                if self.is(b'+') || self.is(b'-') {
                    match self.literal()? {
                        Some(Literal::Int(value)) => offset = value as i64,
                        _ => return self.unexpected("an offset"),
                    }
                }
                Ok(Operand::Symbol(scopes.variable(name), offset))
            }
            _ => match self.literal()? {
                Some(literal) => Ok(Operand::Literal(literal)),
                None => self.unexpected("an operand"),
            },
        }
    }
}
