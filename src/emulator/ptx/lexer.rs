//! PTX text to tokens.

use super::PtxError;

/// One token. Names keep their dots, so that an opcode with modifiers, a directive and a special register are one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// Identifier, opcode, directive (leading dot) or register (leading `%`).
    Name(&'a str),
    /// Literal that begins with a digit.
    Number(&'a str),
    /// String without its quotes.
    Text(&'a str),
    /// Punctuation.
    Mark(u8),
    /// End of the text.
    End,
}

pub(super) struct Lexer<'a> {
    text: &'a str,
    position: usize,
    line: u32,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer {
            text,
            position: 0,
            line: 1,
        }
    }

    /// The token from the current position on, with its line, its start and its end in bytes.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, u32, usize, usize), PtxError> {
        self.skip_blank()?;
        let bytes = self.text.as_bytes();
        let (line, start) = (self.line, self.position);
        let Some(&first) = bytes.get(start) else {
            return Ok((Token::End, line, start, start));
        };
        let token = if first == b'"' {
            let length = bytes[start + 1..]
                .iter()
                .position(|&b| b == b'"' || b == b'\n')
                .filter(|&n| bytes[start + 1 + n] == b'"')
                .ok_or_else(|| PtxError::new(line, "a string is not closed on its line"))?;
            self.position = start + length + 2;
            Token::Text(&self.text[start + 1..start + 1 + length])
        } else if first.is_ascii_digit() {
            let mut end = start;
            while end < bytes.len()
                && (bytes[end].is_ascii_alphanumeric()
                    || (bytes[end] == b'.' && bytes.get(end + 1).is_some_and(u8::is_ascii_digit)))
            {
                end += 1;
            }
            self.position = end;
            Token::Number(&self.text[start..end])
        } else if is_name(first) {
            let mut end = start;
            while end < bytes.len() {
                if is_name(bytes[end]) {
                    end += 1;
                } else if bytes[end..].starts_with(b"::")
                    && bytes.get(end + 2).copied().is_some_and(is_name)
                {
                    end += 2;
                } else {
                    break;
                }
            }
            self.position = end;
            Token::Name(&self.text[start..end])
        } else if first.is_ascii() {
            self.position = start + 1;
            Token::Mark(first)
        } else {
            return Err(PtxError::new(line, "a character outside of ASCII"));
        };
        Ok((token, line, start, self.position))
    }

    fn skip_blank(&mut self) -> Result<(), PtxError> {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.position) {
                // A NUL ends the text, as it does for the driver.
                Some(0) => {
                    self.text = &self.text[..self.position];
                    return Ok(());
                }
                Some(b'\n') => {
                    self.line += 1;
                    self.position += 1;
                }
                Some(b) if b.is_ascii_whitespace() => self.position += 1,
                Some(b'/') if bytes.get(self.position + 1) == Some(&b'/') => {
                    while bytes.get(self.position).is_some_and(|&b| b != b'\n') {
                        self.position += 1;
                    }
                }
                Some(b'/') if bytes.get(self.position + 1) == Some(&b'*') => {
                    let rest = &self.text[self.position..];
                    let length = rest
                        .find("*/")
                        .ok_or_else(|| PtxError::new(self.line, "a comment is not closed"))?;
                    self.line += rest[..length].bytes().filter(|&b| b == b'\n').count() as u32;
                    self.position += length + 2;
                }
                _ => return Ok(()),
            }
        }
    }
}
