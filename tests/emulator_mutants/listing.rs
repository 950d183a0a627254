//! A kernel's PTX as lines that a mutation can ask about.

/// The text of one kernel, line by line.
pub struct Listing<'a> {
    lines: Vec<Line<'a>>,
}

/// One line. Lines that hold no instruction (directives, comments, labels, braces) have an opcode nothing looks for.
pub struct Line<'a> {
    /// As it stands in the text.
    pub text: &'a str,
    /// Predicate of the guard, `!` included where it is negated.
    pub guard: Option<&'a str>,
    /// The instruction with its modifiers, or the line's first word.
    pub opcode: &'a str,
    /// Operands; those in braces are one.
    pub operands: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn of(text: &'a str) -> Line<'a> {
        let mut code = text.trim();
        let mut guard = None;
        if let Some(rest) = code.strip_prefix('@') {
            let (predicate, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            guard = Some(predicate);
            code = rest.trim_start();
        }
        let code = code.trim_end_matches(';');
        let (opcode, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
        Line {
            text,
            guard,
            opcode,
            operands: split_operands(operands),
        }
    }

    /// Operand number `index`, or nothing.
    pub fn operand(&self, index: usize) -> &'a str {
        self.operands.get(index).copied().unwrap_or("")
    }

    /// Registers within operand number `index`: those of a vector, or the one of an address.
    pub fn registers(&self, index: usize) -> impl Iterator<Item = &'a str> {
        let parts = self
            .operand(index)
            .split(['{', '}', ',', '[', ']', '+', '|']);
        parts.map(str::trim).filter(|part| part.starts_with('%'))
    }

    /// Whether the instruction touches global or shared memory.
    pub fn touches_memory(&self) -> bool {
        [
            "ld.global",
            "st.global",
            "ld.shared",
            "st.shared",
            "cp.async.cg",
            "ldmatrix",
        ]
        .iter()
        .any(|opcode| self.opcode.starts_with(opcode))
    }

    /// Whether it compares unsigned integers by size, as a bound does.
    pub fn is_bound(&self) -> bool {
        ["setp.lt.u32", "setp.le.u32", "setp.gt.u32", "setp.ge.u32"].contains(&self.opcode)
    }

    /// The label this line is, without its colon.
    fn label(&self) -> Option<&'a str> {
        self.text.trim().strip_suffix(':')
    }
}

fn split_operands(text: &str) -> Vec<&str> {
    let (mut operands, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                operands.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    operands.push(text[begin..].trim());
    operands
}

impl<'a> Listing<'a> {
    pub fn of(text: &'a str) -> Listing<'a> {
        Listing {
            lines: text.lines().map(Line::of).collect(),
        }
    }

    pub fn lines(&self) -> &[Line<'a>] {
        &self.lines
    }

    /// The nearest line above `at` that writes `register`: in nvcc's nearly single-assignment code, what `at` reads.
    pub fn definition(&self, at: usize, register: &str) -> Option<usize> {
        (0..at).rev().find(|&line| {
            let line = &self.lines[line];
            !line.opcode.starts_with("st.") && line.registers(0).any(|written| written == register)
        })
    }

    /// The unsigned comparisons that the predicate computed at `at` is made of, directly or through and/or.
    pub fn comparisons(&self, at: usize) -> Vec<&Line<'a>> {
        let line = &self.lines[at];
        if line.is_bound() {
            return vec![line];
        }
        if !matches!(line.opcode, "and.pred" | "or.pred") {
            return Vec::new();
        }
        [1, 2]
            .iter()
            .filter_map(|&index| self.definition(at, line.operand(index)))
            .flat_map(|at| self.comparisons(at))
            .collect()
    }

    /// Whether a branch or an instruction at `at` is guarded by an unsigned comparison.
    pub fn bounded(&self, at: usize) -> bool {
        self.guard_of(at)
            .is_some_and(|guard| !self.comparisons(guard).is_empty())
    }

    /// What a conditional forward branch at `at` skips: the lines behind it up to its target.
    pub fn skipped(&self, at: usize) -> Option<&[Line<'a>]> {
        let line = &self.lines[at];
        if line.guard.is_none() || !line.opcode.starts_with("bra") {
            return None;
        }
        let behind = &self.lines[at + 1..];
        let target = line.operand(0);
        let length = behind
            .iter()
            .position(|line| line.label() == Some(target))?;
        Some(&behind[..length])
    }

    /// The line of the comparison or logic that gives the guard of `at`.
    pub fn guard_of(&self, at: usize) -> Option<usize> {
        let predicate = self.lines[at].guard?.trim_start_matches('!');
        self.definition(at, predicate)
    }

    /// Bytes of the shared table of row addresses, of which each tile takes a half in turn, where the kernel has one.
    pub fn paired_table_bytes(&self) -> Option<u32> {
        let table = self
            .lines
            .iter()
            .find(|line| line.opcode == ".shared" && line.text.contains("addresses"))?;
        table.text.split(['[', ']']).nth(1)?.parse().ok()
    }
}
