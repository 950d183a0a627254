//! Names that belong to one module alone, told apart before modules are joined.

use super::PtxError;
use super::lexer::{Lexer, Token};
use std::collections::BTreeSet;

/// The text with the module's private names (variables and functions that are neither `.visible` nor `.weak`, `.common` or
/// `.extern`) followed by `$` and `number`, where `taken` has them already; adds all of them to `taken`.
///
/// # Errors
/// Text that does not consist of tokens.
pub(crate) fn tell_private_names_apart(
    text: &str,
    number: usize,
    taken: &mut BTreeSet<String>,
) -> Result<String, PtxError> {
    let mut clashing = BTreeSet::new();
    for name in private_names(text)? {
        if !taken.insert(name.to_owned()) {
            clashing.insert(name);
        }
    }
    if clashing.is_empty() {
        return Ok(text.to_owned());
    }
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    let mut lexer = Lexer::new(text);
    loop {
        let (token, _, _, end) = lexer.next()?;
        match token {
            Token::End => break,
            Token::Name(name) if clashing.contains(name) => {
                out.push_str(&text[copied..end]);
                out.push_str(&format!("${number}"));
                copied = end;
            }
            _ => {}
        }
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// Names of a module's private variables and functions.
fn private_names(text: &str) -> Result<BTreeSet<&str>, PtxError> {
    /// What the statement that is read declares.
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Other,
        Variable,
        Function,
    }
    let mut names = BTreeSet::new();
    let mut lexer = Lexer::new(text);
    let (mut kind, mut shared, mut wants_name) = (Kind::Other, false, false);
    let (mut braces, mut parentheses) = (0u32, 0u32);
    loop {
        match lexer.next()?.0 {
            Token::End => return Ok(names),
            Token::Mark(b'{') => braces += 1,
            Token::Mark(b'}') => {
                braces = braces.saturating_sub(1);
                // The end of a body; an initialiser's ends before a semicolon.
                if braces == 0 && kind != Kind::Variable {
                    (kind, shared) = (Kind::Other, false);
                }
            }
            _ if braces > 0 => {}
            Token::Mark(b'(') => parentheses += 1,
            Token::Mark(b')') => parentheses = parentheses.saturating_sub(1),
            _ if parentheses > 0 => {}
            Token::Mark(b';') => (kind, shared) = (Kind::Other, false),
            Token::Mark(b',') if kind == Kind::Variable => wants_name = true,
            Token::Name(".visible" | ".weak" | ".common" | ".extern") => shared = true,
            Token::Name(".global" | ".const") => (kind, wants_name) = (Kind::Variable, true),
            Token::Name(".func") => (kind, wants_name) = (Kind::Function, true),
            Token::Name(".entry") => (kind, wants_name) = (Kind::Other, false),
            Token::Name(name) if wants_name && !name.starts_with('.') => {
                wants_name = false;
                if !shared && kind != Kind::Other {
                    names.insert(name);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_names_that_clash_get_a_number() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
            .global .align 4 .u32 a, b[2] = {1, 2}; .visible .global .u32 c; .extern .func (.param .b32 r) d(.param .b32 x);\n\
            .func (.param .b32 r) e(.param .b32 a1) { .reg .b32 %a; ret; }\n.visible .entry k() { ld.global.u32 %r1, [a]; call e; ret; }\n";
        assert_eq!(
            private_names(text).unwrap().into_iter().collect::<Vec<_>>(),
            ["a", "b", "e"]
        );
        let mut taken = BTreeSet::from(["a".to_owned(), "e".to_owned(), "c".to_owned()]);
        let told = tell_private_names_apart(text, 1, &mut taken).unwrap();
        assert!(
            told.contains("u32 a$1, b[2]") && told.contains("[a$1]"),
            "{told}"
        );
        assert!(
            told.contains("call e$1;") && told.contains(".u32 c;"),
            "{told}"
        );
        assert!(taken.contains("b"));
        super::super::parse(&told).unwrap();
    }
}
