//! Tokens to syntax tree.

mod declarations;
mod statements;

use super::SyntaxError;
use super::ast::*;
use super::lexer::{Spanned, Token, tokens};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Blocks may nest this deep: the parser and the passes after it recurse.
const MAX_NESTING: u32 = 32;

/// Parses a whole module.
pub fn parse(source: &str) -> Result<Module<'_>> {
    let mut parser = Parser { tokens: tokens(source)?, at: 0, files: Vec::new(), locations: Vec::new() };
    let mut module = Module::default();
    while parser.peek() != Token::End {
        parser.item(&mut module)?;
    }
    if module.version == 0 {
        return Err(SyntaxError { line: 1, message: "missing .version".into() });
    }
    (module.files, module.locations) = (parser.files, parser.locations);
    Ok(module)
}

struct Parser<'a> {
    tokens: Vec<Spanned<'a>>,
    at: usize,
    files: Vec<(u32, &'a str)>,
    locations: Vec<Location>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens[self.at].token
    }

    fn peek_at(&self, ahead: usize) -> Token<'a> {
        self.tokens.get(self.at + ahead).map_or(Token::End, |s| s.token)
    }

    /// The number so many tokens ahead, if there is one of 32 bits.
    fn small_at(&self, ahead: usize) -> Option<u32> {
        match self.peek_at(ahead) {
            Token::Number(Number::Int(value)) => u32::try_from(value).ok(),
            _ => None,
        }
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        if token != Token::End {
            self.at += 1;
        }
        token
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(SyntaxError { line: self.line(), message: message.into() })
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        self.error(format!("expected {wanted}, found {}", self.peek()))
    }

    fn accept(&mut self, punct: u8) -> bool {
        let found = self.peek() == Token::Punct(punct);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect(&mut self, punct: u8) -> Result<()> {
        if self.accept(punct) { Ok(()) } else { self.unexpected(&format!("'{}'", punct as char)) }
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.peek() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn dot(&mut self) -> Result<&'a str> {
        match self.peek() {
            Token::Dot(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a directive or type"),
        }
    }

    fn int(&mut self) -> Result<u64> {
        match self.peek() {
            Token::Number(Number::Int(value)) => {
                self.at += 1;
                Ok(value)
            }
            _ => self.unexpected("an integer"),
        }
    }

    fn small(&mut self) -> Result<u32> {
        let value = self.int()?;
        u32::try_from(value).or_else(|_| self.error("number too large"))
    }

    fn skip_to(&mut self, punct: u8) -> Result<()> {
        while self.peek() != Token::Punct(punct) {
            if self.next() == Token::End {
                return self.error("unexpected end of text");
            }
        }
        self.expect(punct)
    }

    /// Skips `{ … }`.
    fn skip_braces(&mut self) -> Result<()> {
        self.expect(b'{')?;
        let mut depth = 1u32;
        while depth > 0 {
            match self.next() {
                Token::Punct(b'{') => depth += 1,
                Token::Punct(b'}') => depth -= 1,
                Token::End => return self.error("unexpected end of text"),
                _ => {}
            }
        }
        Ok(())
    }

    fn item(&mut self, module: &mut Module<'a>) -> Result<()> {
        let line = self.line();
        let mut external = false;
        loop {
            match self.peek() {
                Token::Punct(b';') => {
                    self.at += 1;
                    return Ok(());
                }
                // Only debug information stands outside of directives: `@@DWARF …` lines of very old compilers.
                Token::Dot(name) => match name {
                    "extern" | "visible" | "weak" | "common" => {
                        external |= name == "extern";
                        self.at += 1;
                    }
                    "version" => {
                        self.at += 1;
                        module.version = self.version()?;
                        return Ok(());
                    }
                    "target" => {
                        self.at += 1;
                        loop {
                            let name = self.word()?;
                            if let Some(number) = name.strip_prefix("sm_").or(name.strip_prefix("compute_")) {
                                let digits = number.trim_end_matches(|c: char| !c.is_ascii_digit());
                                module.target = digits.parse().or_else(|_| self.error("invalid target"))?;
                            }
                            if !self.accept(b',') {
                                return Ok(());
                            }
                        }
                    }
                    "address_size" => {
                        self.at += 1;
                        return if self.int()? == 64 {
                            Ok(())
                        } else {
                            self.error("only 64-bit addresses are supported")
                        };
                    }
                    "file" => {
                        if let (Some(file), Token::Text(path)) = (self.small_at(1), self.peek_at(2)) {
                            self.files.push((file, path));
                        }
                        while self.line() == line && self.peek() != Token::End {
                            self.at += 1;
                        }
                        return Ok(());
                    }
                    "section" => {
                        self.at += 1;
                        self.next();
                        return self.skip_braces();
                    }
                    "pragma" | "alias" => return self.skip_to(b';'),
                    "entry" | "func" => {
                        self.at += 1;
                        let function = self.function(name == "entry", external, line)?;
                        module.functions.push(function);
                        return Ok(());
                    }
                    "global" | "const" | "shared" | "tex" => {
                        self.declarations(external, &mut module.variables)?;
                        return Ok(());
                    }
                    _ => return self.error(format!("unknown directive .{name}")),
                },
                _ => return self.unexpected("a directive"),
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and no version is that large or below zero"
    )]
    fn version(&mut self) -> Result<u32> {
        match self.next() {
            Token::Number(Number::Double(bits)) => Ok((f64::from_bits(bits) * 10.0).round() as u32),
            _ => self.unexpected("a version"),
        }
    }

    fn triple(&mut self) -> Result<[u32; 3]> {
        let mut out = [1; 3];
        for (index, slot) in out.iter_mut().enumerate() {
            if index > 0 && !self.accept(b',') {
                break;
            }
            *slot = self.small()?;
        }
        Ok(out)
    }

    fn function(&mut self, entry: bool, external: bool, line: u32) -> Result<Function<'a>> {
        let returns = if self.peek() == Token::Punct(b'(') { self.parameters()? } else { Vec::new() };
        let name = self.word()?;
        let params = if self.peek() == Token::Punct(b'(') { self.parameters()? } else { Vec::new() };
        let mut function = Function {
            line,
            name,
            entry,
            external,
            returns,
            params,
            max_threads: None,
            required_threads: None,
            cluster: None,
            body: None,
        };
        loop {
            match self.peek() {
                Token::Punct(b'{') => {
                    self.at += 1;
                    function.body = Some(self.block(0)?);
                    return Ok(function);
                }
                Token::Punct(b';') => {
                    self.at += 1;
                    return Ok(function);
                }
                Token::Dot("maxntid") => {
                    self.at += 1;
                    function.max_threads = Some(self.triple()?);
                }
                Token::Dot("reqntid") => {
                    self.at += 1;
                    function.required_threads = Some(self.triple()?);
                }
                Token::Dot("reqnctapercluster") => {
                    self.at += 1;
                    function.cluster = Some(self.triple()?);
                }
                Token::Dot("pragma") => self.skip_to(b';')?,
                // `.minnctapersm 2`, `.maxnreg 32`, `.noreturn`, the largest cluster: advice.
                Token::Dot(_) => {
                    self.at += 1;
                    while matches!(self.peek(), Token::Number(_) | Token::Punct(b',')) {
                        self.at += 1;
                    }
                }
                _ => return self.unexpected("a body"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 9.0\n.target sm_75, debug\n.address_size 64\n";

    #[test]
    fn functions_variables_and_bodies() {
        let text = format!(
            "{HEAD}.global .align 4 .b8 t[4] = {{1, 0xFF(t), generic(t)+8, -2}};
            .extern .shared .align 16 .b8 dyn[];
            .visible .entry k(.param .u64 .ptr .global .align 4 a, .param .align 8 .b8 s[32]) .maxntid 128, 1, 1 {{
                .reg .b32 %r<5>; .reg .pred p, q;
                L: @!p bra L;
                ts: .branchtargets L, L;
                {{ call.uni (r0), f, (a, b); }}
                ld.global.v2.u32 {{%r1, %r2}}, [%r3+-4];
                shfl.sync.down.b32 %r1|p, %r2, 0x1f, -1;
            }}"
        );
        let module = parse(&text).unwrap();
        assert_eq!((module.version, module.target), (90, 75));
        assert_eq!(module.variables.len(), 2);
        assert_eq!(module.variables[0].init.len(), 4);
        assert!(module.variables[1].external);
        let kernel = &module.functions[0];
        assert_eq!(kernel.params.len(), 2);
        assert_eq!(kernel.params[0].align, None);
        assert_eq!(kernel.max_threads, Some([128, 1, 1]));
        assert_eq!(kernel.body.as_ref().unwrap().len(), 9);
    }

    #[test]
    fn broken_texts_are_errors() {
        for text in ["", ".version", ".entry k() {", "ret;", ".version 9.0 .entry k() { add.s32 %r1 %r2; }"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let wrong = parse(&format!("{HEAD}.entry k() {{\n add.s32 %r1 %r2; }}")).unwrap_err();
        assert_eq!(wrong.to_string(), "line 5: expected ';', found '%r2'");
        let deep = format!("{HEAD}.entry k() {}", "{".repeat(5000));
        assert!(parse(&deep).is_err());
        let deep = format!("{HEAD}.entry k() {{ add.s32 {}", "(".repeat(50_000));
        assert!(parse(&deep).is_err());
    }
}
