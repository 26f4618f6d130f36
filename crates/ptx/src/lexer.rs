//! PTX text to tokens.

use std::fmt;

use super::SyntaxError;
use super::ast::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    /// `ld`, `%r1`, `$L_1`
    Word(&'a str),
    /// `.global`, without its dot
    Dot(&'a str),
    Number(Number),
    Text(&'a str),
    Punct(u8),
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => write!(f, "'{word}'"),
            Token::Dot(word) => write!(f, "'.{word}'"),
            Token::Number(_) => f.write_str("a number"),
            Token::Text(_) => f.write_str("a string"),
            Token::Punct(punct) => write!(f, "'{}'", char::from(*punct)),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

/// A token and the line it starts on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spanned<'a> {
    pub token: Token<'a>,
    pub line: u32,
}

/// Cuts the whole text into tokens; the last one is `End`.
pub(crate) fn tokens(source: &str) -> Result<Vec<Spanned<'_>>, SyntaxError> {
    let mut lexer = Lexer { source, bytes: source.as_bytes(), at: 0, line: 1 };
    let mut out = Vec::with_capacity(source.len() / 4);
    loop {
        let spanned = lexer.next()?;
        out.push(spanned);
        if spanned.token == Token::End {
            return Ok(out);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: u32,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

impl<'a> Lexer<'a> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { line: self.line, message: message.into() })
    }

    fn skip_blank(&mut self) -> Result<(), SyntaxError> {
        while self.at < self.bytes.len() {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                // A fat binary pads its PTX with zero bytes.
                (b' ' | b'\t' | b'\r' | 0, _) => self.at += 1,
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.bytes[self.at] != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => {
                    self.at += 2;
                    while (self.peek(0), self.peek(1)) != (b'*', b'/') {
                        if self.at >= self.bytes.len() {
                            return self.error("unterminated comment");
                        }
                        self.line += u32::from(self.bytes[self.at] == b'\n');
                        self.at += 1;
                    }
                    self.at += 2;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.at < self.bytes.len() && accept(self.bytes[self.at]) {
            self.at += 1;
        }
        &self.source[start..self.at]
    }

    fn next(&mut self) -> Result<Spanned<'a>, SyntaxError> {
        self.skip_blank()?;
        let line = self.line;
        if self.at >= self.bytes.len() {
            return Ok(Spanned { token: Token::End, line });
        }
        let first = self.peek(0);
        let token = match first {
            b'0'..=b'9' => self.number()?,
            b'.' if is_word(self.peek(1)) => {
                self.at += 1;
                let start = self.at;
                self.take_while(is_word);
                // `.shared::cta`, `.L2::128B`
                while self.peek(0) == b':' && self.peek(1) == b':' {
                    self.at += 2;
                    self.take_while(is_word);
                }
                Token::Dot(&self.source[start..self.at])
            }
            b'%' | b'_' | b'$' | b'a'..=b'z' | b'A'..=b'Z' => {
                let start = self.at;
                self.at += 1;
                self.take_while(is_word);
                Token::Word(&self.source[start..self.at])
            }
            b'"' => {
                self.at += 1;
                let text = self.take_while(|b| b != b'"' && b != b'\n');
                if self.peek(0) != b'"' {
                    return self.error("unterminated string");
                }
                self.at += 1;
                Token::Text(text)
            }
            b'{' | b'}' | b'[' | b']' | b'(' | b')' | b',' | b';' | b':' | b'+' | b'-' | b'=' | b'<' | b'>'
            | b'@' | b'!' | b'|' | b'*' | b'~' | b'/' => {
                self.at += 1;
                Token::Punct(first)
            }
            other => return self.error(format!("unexpected byte {other:#04x}")),
        };
        Ok(Spanned { token, line })
    }

    fn number(&mut self) -> Result<Token<'a>, SyntaxError> {
        let start = self.at;
        let word = self.take_while(|b| b.is_ascii_alphanumeric());
        let bad = |lexer: &Self| lexer.error(format!("invalid number {word}"));
        let lower = word.as_bytes().get(1).map(u8::to_ascii_lowercase);
        if word.starts_with('0') && word.len() > 2 {
            let digits = &word[2..];
            match lower {
                Some(b'f') if digits.len() == 8 => {
                    return u32::from_str_radix(digits, 16)
                        .map(|b| Token::Number(Number::Single(b)))
                        .or_else(|_| bad(self));
                }
                Some(b'd') if digits.len() == 16 => {
                    return u64::from_str_radix(digits, 16)
                        .map(|b| Token::Number(Number::Double(b)))
                        .or_else(|_| bad(self));
                }
                Some(b'x') => {
                    return u64::from_str_radix(digits.trim_end_matches(['u', 'U']), 16)
                        .map(|i| Token::Number(Number::Int(i)))
                        .or_else(|_| bad(self));
                }
                Some(b'b') => {
                    return u64::from_str_radix(digits.trim_end_matches(['u', 'U']), 2)
                        .map(|i| Token::Number(Number::Int(i)))
                        .or_else(|_| bad(self));
                }
                _ => {}
            }
        }
        if self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
            self.at += 1;
            self.take_while(|b| b.is_ascii_alphanumeric());
            if matches!(self.bytes[self.at - 1], b'e' | b'E') && matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
                self.take_while(|b| b.is_ascii_digit());
            }
            let text = &self.source[start..self.at];
            return match text.parse::<f64>() {
                Ok(value) => Ok(Token::Number(Number::Double(value.to_bits()))),
                Err(_) => self.error(format!("invalid number {text}")),
            };
        }
        let digits = word.trim_end_matches(['u', 'U']);
        let parsed =
            if digits.len() > 1 && digits.starts_with('0') { u64::from_str_radix(digits, 8) } else { digits.parse() };
        parsed.map(|i| Token::Number(Number::Int(i))).or_else(|_| bad(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(source: &str) -> Vec<Token<'_>> {
        tokens(source).unwrap().into_iter().map(|s| s.token).collect()
    }

    #[test]
    fn numbers_of_all_kinds() {
        let expected = [
            Token::Number(Number::Int(12)),
            Token::Number(Number::Int(255)),
            Token::Number(Number::Int(5)),
            Token::Number(Number::Int(8)),
            Token::Number(Number::Single(0x3f80_0000)),
            Token::Number(Number::Double(0x3ff0_0000_0000_0000)),
            Token::Number(Number::Double(1.5f64.to_bits())),
            Token::End,
        ];
        assert_eq!(all("12U 0xFF 0b101 010 0f3F800000 0d3FF0000000000000 1.5"), expected);
    }

    #[test]
    fn instruction_with_qualified_modifiers() {
        let expected = [
            Token::Word("ld"),
            Token::Dot("shared::cta"),
            Token::Dot("u32"),
            Token::Word("%r1"),
            Token::Punct(b','),
            Token::Punct(b'['),
            Token::Word("$x_1"),
            Token::Punct(b']'),
            Token::Punct(b';'),
            Token::End,
        ];
        assert_eq!(all("ld.shared::cta.u32 %r1, /* no\nte */ [$x_1]; // end"), expected);
    }

    #[test]
    fn lines_are_counted_and_rubbish_is_refused() {
        assert_eq!(tokens("a\nb\n\x01").unwrap_err().line, 3);
        assert!(tokens("\"open").is_err());
        assert!(tokens("/* open").is_err());
        assert!(tokens("99999999999999999999999").is_err());
        assert!(tokens("ü").is_err());
    }
}
