//! Module level: directives, variables, parameters, entries.

use super::lexer::{Lexer, Token};
use super::{Entry, Init, Literal, Module, PtxError, RegClass, VarSpace, Variable};

/// Parses a PTX translation unit.
///
/// # Errors
/// The first construct that is not PTX, or that needs something the emulator lacks, with its line.
pub fn parse(text: &str) -> Result<Module, PtxError> {
    let mut parser = Parser::new(text)?;
    parser.module()
}

pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    /// Current token and where it stands.
    pub(super) token: Token<'a>,
    pub(super) line: u32,
    pub(super) start: usize,
    /// End in bytes of the token before the current one.
    pub(super) previous_end: usize,
    end: usize,
    /// The symbol that the last operand named, if it named one.
    pub(super) last_name: Option<&'a str>,
    /// Name of the last variable declared.
    variable_name: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Parser<'a>, PtxError> {
        let mut lexer = Lexer::new(text);
        let (token, line, start, end) = lexer.next()?;
        Ok(Parser {
            lexer,
            token,
            line,
            start,
            previous_end: 0,
            end,
            last_name: None,
            variable_name: "",
        })
    }

    pub(super) fn advance(&mut self) -> Result<Token<'a>, PtxError> {
        let old = self.token;
        self.previous_end = self.end;
        (self.token, self.line, self.start, self.end) = self.lexer.next()?;
        Ok(old)
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError::new(self.line, message))
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> Result<T, PtxError> {
        let found = match self.token {
            Token::Name(s) | Token::Number(s) => format!("`{s}`"),
            Token::Text(s) => format!("\"{s}\""),
            Token::Mark(b) => format!("`{}`", b as char),
            Token::End => "the end of the text".into(),
        };
        self.error(format!("expected {wanted}, found {found}"))
    }

    pub(super) fn is(&self, mark: u8) -> bool {
        self.token == Token::Mark(mark)
    }

    pub(super) fn accept(&mut self, mark: u8) -> Result<bool, PtxError> {
        let found = self.is(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(super) fn expect(&mut self, mark: u8) -> Result<(), PtxError> {
        if self.accept(mark)? {
            Ok(())
        } else {
            self.unexpected(&format!("`{}`", mark as char))
        }
    }

    pub(super) fn name(&mut self, what: &str) -> Result<&'a str, PtxError> {
        match self.token {
            Token::Name(name) => {
                self.advance()?;
                Ok(name)
            }
            _ => self.unexpected(what),
        }
    }

    /// An unsigned integer that fits 32 bits.
    pub(super) fn count(&mut self, what: &str) -> Result<u32, PtxError> {
        match self.literal()? {
            Some(Literal::Int(value)) if value <= u64::from(u32::MAX) => Ok(value as u32),
            _ => self.unexpected(what),
        }
    }

    /// One to three numbers; those left out are 1.
    fn dimensions(&mut self, what: &str) -> Result<[u32; 3], PtxError> {
        let mut dims = [self.count(what)?, 1, 1];
        for dim in &mut dims[1..] {
            if !self.accept(b',')? {
                break;
            }
            *dim = self.count(what)?;
        }
        Ok(dims)
    }

    /// A literal with an optional sign, if one comes next.
    pub(super) fn literal(&mut self) -> Result<Option<Literal>, PtxError> {
        let negative = self.is(b'-');
        if negative || self.is(b'+') {
            self.advance()?;
        } else if self.token == Token::Name("WARP_SZ") {
            self.advance()?;
            return Ok(Some(Literal::Int(32)));
        }
        let Token::Number(text) = self.token else {
            return if negative {
                self.unexpected("a number")
            } else {
                Ok(None)
            };
        };
        let Some(value) = number(text) else {
            return self.error(format!("`{text}` is not a number"));
        };
        self.advance()?;
        Ok(Some(match value {
            Literal::Int(v) if negative => Literal::Int(v.wrapping_neg()),
            Literal::F32(v) if negative => Literal::F32(v ^ 1 << 31),
            Literal::F64(v) if negative => Literal::F64(v ^ 1 << 63),
            other => other,
        }))
    }

    fn skip_braces(&mut self) -> Result<(), PtxError> {
        self.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.advance()? {
                Token::Mark(b'{') => depth += 1,
                Token::Mark(b'}') => depth -= 1,
                Token::End => return self.unexpected("`}`"),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn skip_past(&mut self, mark: u8) -> Result<(), PtxError> {
        loop {
            match self.advance()? {
                Token::Mark(m) if m == mark => return Ok(()),
                Token::End => return self.unexpected(&format!("`{}`", mark as char)),
                _ => {}
            }
        }
    }

    fn module(&mut self) -> Result<Module, PtxError> {
        let mut module = Module::default();
        let mut has_version = false;
        // Of the variable that is declared: defined elsewhere, or perhaps elsewhere as well.
        let (mut external, mut repeats) = (false, false);
        loop {
            let line = self.line;
            let name = match self.token {
                Token::End => break,
                Token::Name(name) => name,
                _ => return self.unexpected("a directive"),
            };
            self.advance()?;
            match name {
                ".version" => {
                    has_version = true;
                    self.advance()?;
                }
                ".target" => {
                    self.name("a target")?;
                    while self.accept(b',')? {
                        self.name("a target")?;
                    }
                }
                ".address_size" => {
                    if self.count("32 or 64")? != 64 {
                        return Err(PtxError::new(line, "only `.address_size 64` is supported"));
                    }
                }
                ".file" => module.files.push(self.file()?),
                ".section" => {
                    self.name("a section name")?;
                    self.skip_braces()?;
                }
                ".extern" => {
                    external = true;
                    continue;
                }
                ".weak" | ".common" => {
                    repeats = true;
                    continue;
                }
                ".visible" => {}
                ".pragma" | ".alias" => self.skip_past(b';')?,
                ".entry" => {
                    let entry = self.entry(line)?;
                    if module.entries.iter().any(|e| e.name == entry.name) {
                        return Err(PtxError::new(
                            line,
                            format!("kernel `{}` is defined twice", entry.name),
                        ));
                    }
                    module.entries.push(entry);
                }
                ".func" => self.function(line, &mut module)?,
                ".global" | ".const" | ".shared" => {
                    let space = match name {
                        ".global" => VarSpace::Global,
                        ".const" => VarSpace::Const,
                        _ => VarSpace::Shared,
                    };
                    for mut variable in self.variables(space, line)? {
                        variable.external = external;
                        add_variable(&mut module.variables, variable, repeats)?;
                    }
                }
                _ => return Err(PtxError::new(line, format!("unknown directive `{name}`"))),
            }
            (external, repeats) = (false, false);
        }
        if !has_version {
            return self.error("the text has no `.version` directive, so it is not PTX");
        }
        Ok(module)
    }

    pub(super) fn file(&mut self) -> Result<(u32, String), PtxError> {
        let number = self.count("a file number")?;
        let Token::Text(name) = self.advance()? else {
            return self.error("`.file` needs a quoted name");
        };
        while self.accept(b',')? {
            self.count("a number")?;
        }
        Ok((number, name.to_string()))
    }

    /// A device function or its declaration, after `.func`. A function that is defined again (`.weak` code of several
    /// modules) keeps its first definition.
    fn function(&mut self, line: u32, module: &mut Module) -> Result<(), PtxError> {
        let mut function = Entry {
            line,
            ..Entry::default()
        };
        if self.token == Token::Name(".attribute") {
            self.advance()?;
            self.expect(b'(')?;
            self.skip_past(b')')?;
        }
        if self.is(b'(') {
            function.returns = self.parameters(&mut function)?;
        }
        function.name = self.name("a function name")?.to_string();
        if self.is(b'(') {
            function.params = self.parameters(&mut function)?;
        }
        while let Token::Name(directive) = self.token {
            self.advance()?;
            match directive {
                ".noreturn" => {}
                ".abi_preserve" | ".abi_preserve_control" => {
                    self.count("a number")?;
                }
                ".pragma" => self.skip_past(b';')?,
                _ => return self.error(format!("unknown function directive `{directive}`")),
            }
        }
        if !module.declared.contains(&function.name) {
            module.declared.push(function.name.clone());
        }
        if self.accept(b';')? {
            return Ok(());
        }
        self.expect(b'{')?;
        self.body(&mut function)?;
        if !module.functions.iter().any(|f| f.name == function.name) {
            module.functions.push(function);
        }
        Ok(())
    }

    /// `(.param .b32 a, .reg .b64 %b, ...)`
    fn parameters(&mut self, routine: &mut Entry) -> Result<Vec<Variable>, PtxError> {
        let mut params = Vec::new();
        self.expect(b'(')?;
        while !self.accept(b')')? {
            let line = self.line;
            match self.token {
                Token::Name(".param") => {
                    self.advance()?;
                    params.push(self.declarator(VarSpace::Param, line)?);
                }
                Token::Name(".reg") => {
                    self.advance()?;
                    let variable = self.declarator(VarSpace::Param, line)?;
                    let class = match variable.element_bytes {
                        1 | 2 => RegClass::B16,
                        4 => RegClass::B32,
                        8 => RegClass::B64,
                        bytes => {
                            return self.error(format!(
                                "a register of {bytes} bytes cannot be a parameter"
                            ));
                        }
                    };
                    let register = routine.registers.len() as u32;
                    routine.registers.push(class);
                    routine
                        .register_params
                        .push((variable.name.clone(), register));
                    params.push(variable);
                }
                Token::Mark(b',') => {
                    self.advance()?;
                }
                _ => return self.unexpected("`.param`"),
            }
        }
        Ok(params)
    }

    fn entry(&mut self, line: u32) -> Result<Entry, PtxError> {
        let mut entry = Entry {
            name: self.name("a kernel name")?.to_string(),
            line,
            ..Entry::default()
        };
        if self.is(b'(') {
            entry.params = self.parameters(&mut entry)?;
            if let Some((name, _)) = entry.register_params.first() {
                return self.error(format!("the kernel parameter `{name}` is a register"));
            }
        }
        while let Token::Name(directive) = self.token {
            self.advance()?;
            match directive {
                ".maxntid" | ".reqntid" => {
                    let block = self.dimensions("a thread count")?;
                    let threads = block.iter().fold(1, |all: u32, n| all.saturating_mul(*n));
                    entry.max_threads = Some(threads);
                    if directive == ".reqntid" {
                        entry.required_block = Some(block);
                    }
                }
                ".reqnctapercluster" => {
                    entry.cluster = Some(self.dimensions("a block count")?);
                }
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                    self.count("a number")?;
                    while self.accept(b',')? {
                        self.count("a number")?;
                    }
                }
                ".explicitcluster" | ".noreturn" | ".blocksareclusters" => {}
                ".pragma" => self.skip_past(b';')?,
                _ => return self.error(format!("unknown kernel directive `{directive}`")),
            }
        }
        self.expect(b'{')?;
        self.body(&mut entry)?;
        Ok(entry)
    }

    /// `.align N .type name[size] = init, ...;` after the state space.
    fn variables(&mut self, space: VarSpace, line: u32) -> Result<Vec<Variable>, PtxError> {
        let named = self.named_variables(space, line)?;
        Ok(named.into_iter().map(|(variable, _)| variable).collect())
    }

    /// [`Parser::variables`], with their names as they stand in the text.
    pub(super) fn named_variables(
        &mut self,
        space: VarSpace,
        line: u32,
    ) -> Result<Vec<(Variable, &'a str)>, PtxError> {
        let first = self.declarator(space, line)?;
        let mut variables = vec![(first, self.variable_name)];
        while self.accept(b',')? {
            let mut next = Variable {
                init: Vec::new(),
                ..variables[0].0.clone()
            };
            next.bytes = Some(u64::from(next.element_bytes));
            self.declarator_tail(&mut next)?;
            variables.push((next, self.variable_name));
        }
        self.expect(b';')?;
        Ok(variables)
    }

    fn declarator(&mut self, space: VarSpace, line: u32) -> Result<Variable, PtxError> {
        let mut variable = Variable {
            name: String::new(),
            space,
            align: 0,
            element_bytes: 0,
            bytes: None,
            call_offset: 0,
            external: false,
            init: Vec::new(),
            line,
        };
        let mut vector = 1;
        let mut align = None;
        while let Token::Name(word) = self.token {
            if !word.starts_with('.') {
                break;
            }
            self.advance()?;
            match word {
                ".align" => {
                    let bytes = self.count("an alignment")?;
                    if !bytes.is_power_of_two() || bytes > 1 << 16 {
                        return self.error(format!("an alignment of {bytes} bytes"));
                    }
                    align = Some(bytes);
                }
                ".ptr" | ".global" | ".const" | ".shared" | ".local" | ".generic" => {}
                ".attribute" => {
                    self.expect(b'(')?;
                    self.skip_past(b')')?;
                }
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                _ => match type_bytes(word) {
                    Some(bytes) => variable.element_bytes = bytes,
                    None => return self.error(format!("unknown type `{word}`")),
                },
            }
        }
        if variable.element_bytes == 0 {
            return self.unexpected("a type");
        }
        let total = variable.element_bytes * vector;
        // `.ptr ... .align` of a parameter speaks of what it points to.
        variable.align = match align {
            Some(align) if space != VarSpace::Param || variable.element_bytes == 1 => align.max(1),
            _ => total,
        };
        variable.bytes = Some(u64::from(total));
        self.declarator_tail(&mut variable)?;
        Ok(variable)
    }

    fn declarator_tail(&mut self, variable: &mut Variable) -> Result<(), PtxError> {
        self.variable_name = self.name("a variable name")?;
        variable.name = self.variable_name.to_string();
        let mut extent: Option<u64> = variable.bytes;
        while self.accept(b'[')? {
            if self.accept(b']')? {
                extent = None;
                continue;
            }
            let count = self.count("an array size")?;
            self.expect(b']')?;
            extent = match extent.map(|bytes| bytes.checked_mul(u64::from(count))) {
                Some(None) => return self.error(format!("`{}` is too large", variable.name)),
                known => known.flatten(),
            };
        }
        variable.bytes = extent;
        if self.accept(b'=')? {
            self.initialiser(variable, 0)?;
            let bytes = variable.init.len() as u64 * u64::from(variable.element_bytes);
            match variable.bytes {
                None => variable.bytes = Some(bytes),
                Some(limit) if bytes > limit => {
                    return self.error(format!(
                        "`{}` has {bytes} bytes of initial values for {limit} bytes",
                        variable.name
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn initialiser(&mut self, variable: &mut Variable, depth: u32) -> Result<(), PtxError> {
        if depth > 16 {
            return self.error("an array of more than 16 dimensions");
        }
        if self.accept(b'{')? {
            while !self.accept(b'}')? {
                self.initialiser(variable, depth + 1)?;
                if !self.is(b'}') {
                    self.expect(b',')?;
                }
            }
            return Ok(());
        }
        let value = match self.literal()? {
            Some(literal) => Init::Bits(literal.bits(variable.element_bytes)),
            None => {
                let mut symbol = self.name("an initial value")?;
                if symbol == "generic" {
                    self.expect(b'(')?;
                    symbol = self.name("a variable")?;
                    self.expect(b')')?;
                }
                if variable.element_bytes != 8 {
                    return self.error("an address can only initialise a 64-bit element");
                }
                let offset = match self.token {
                    Token::Mark(b'+' | b'-') => match self.literal()? {
                        Some(Literal::Int(value)) => value as i64,
                        _ => return self.unexpected("an offset"),
                    },
                    _ => 0,
                };
                Init::Address(symbol.to_string(), offset)
            }
        };
        variable.init.push(value);
        Ok(())
    }
}

/// Adds a module-scope variable; a definition takes the place of an `.extern` declaration of the same name, and one that
/// `repeats` (`.weak`, `.common`) of a definition that there is leaves that alone.
fn add_variable(
    all: &mut Vec<Variable>,
    variable: Variable,
    repeats: bool,
) -> Result<(), PtxError> {
    let twin = all.iter().position(|v| v.name == variable.name);
    match twin {
        None => all.push(variable),
        Some(_) if variable.external => {}
        Some(index) if repeats && !all[index].external => {}
        Some(index) if all[index].external => all[index] = variable,
        Some(_) => {
            return Err(PtxError::new(
                variable.line,
                format!("the variable `{}` is defined twice", variable.name),
            ));
        }
    }
    Ok(())
}

impl Literal {
    /// The literal as the bits of a value of `bytes` bytes: integers are truncated, floats converted if need be.
    pub fn bits(self, bytes: u32) -> u64 {
        match (self, bytes) {
            (Literal::Int(value), 8..) => value,
            (Literal::Int(value), _) => value & ((1 << (8 * bytes)) - 1),
            (Literal::F32(bits), 8..) => f64::from(f32::from_bits(bits)).to_bits(),
            (Literal::F32(bits), _) => u64::from(bits),
            (Literal::F64(bits), 8..) => bits,
            (Literal::F64(bits), _) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        }
    }
}

/// Bytes of a value of a PTX type.
pub(super) fn type_bytes(word: &str) -> Option<u32> {
    Some(match word.strip_prefix('.')? {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}

fn number(text: &str) -> Option<Literal> {
    let digits = text.trim_end_matches(['u', 'U']);
    if let Some(hex) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(hex, 16).ok().map(Literal::F32);
    }
    if let Some(hex) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return u64::from_str_radix(hex, 16).ok().map(Literal::F64);
    }
    let radix = |prefixes: [&str; 2]| prefixes.iter().find_map(|p| digits.strip_prefix(p));
    if let Some(hex) = radix(["0x", "0X"]) {
        return u64::from_str_radix(hex, 16).ok().map(Literal::Int);
    }
    if let Some(binary) = radix(["0b", "0B"]) {
        return u64::from_str_radix(binary, 2).ok().map(Literal::Int);
    }
    if text.contains('.') {
        return text.parse::<f64>().ok().map(|v| Literal::F64(v.to_bits()));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return u64::from_str_radix(digits, 8).ok().map(Literal::Int);
    }
    digits.parse::<u64>().ok().map(Literal::Int)
}
