//! Tokens to syntax tree.

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
        return Err(SyntaxError { line: 1, message: "no .version".into() });
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
        self.error(format!("expected {wanted}, found {:?}", self.peek()))
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
            _ => self.unexpected("a whole number"),
        }
    }

    fn small(&mut self) -> Result<u32> {
        let value = self.int()?;
        u32::try_from(value).or_else(|_| self.error("number too large"))
    }

    fn skip_to(&mut self, punct: u8) -> Result<()> {
        while self.peek() != Token::Punct(punct) {
            if self.next() == Token::End {
                return self.error("unexpected end");
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
                Token::End => return self.error("unexpected end"),
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
                                module.target = digits.parse().or_else(|_| self.error("bad target"))?;
                            }
                            if !self.accept(b',') {
                                return Ok(());
                            }
                        }
                    }
                    "address_size" => {
                        self.at += 1;
                        return if self.int()? == 64 { Ok(()) } else { self.error("only 64-bit addresses") };
                    }
                    "file" => {
                        if let (Token::Number(Number::Int(file)), Token::Text(path)) =
                            (self.peek_at(1), self.peek_at(2))
                        {
                            self.files.push((file as u32, path));
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
                Token::Dot("pragma") => self.skip_to(b';')?,
                // `.minnctapersm 2`, `.maxnreg 32`, `.noreturn`, cluster shapes: advice.
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

    /// `(.param .b32 a, .param .align 8 .b8 b[16])`
    fn parameters(&mut self) -> Result<Vec<Declaration<'a>>> {
        self.expect(b'(')?;
        let mut out = Vec::new();
        if self.accept(b')') {
            return Ok(out);
        }
        loop {
            let space = self.dot()?;
            if space != "param" && space != "reg" {
                return self.error("parameters live in .param");
            }
            out.push(self.declaration(space, false)?);
            if !self.accept(b',') {
                self.expect(b')')?;
                return Ok(out);
            }
        }
    }

    /// `.space .type a, b[2] = {1, 2};`
    fn declarations(&mut self, external: bool, out: &mut Vec<Declaration<'a>>) -> Result<()> {
        let space = self.dot()?;
        let first = self.declaration(space, external)?;
        let template = first.clone();
        out.push(first);
        while self.accept(b',') {
            let mut next =
                Declaration { line: self.line(), name: self.word()?, dims: Vec::new(), init: Vec::new(), ..template };
            self.dims_and_init(&mut next)?;
            out.push(next);
        }
        self.expect(b';')
    }

    fn declaration(&mut self, space: &'a str, external: bool) -> Result<Declaration<'a>> {
        let line = self.line();
        let mut out = Declaration {
            line,
            space,
            external,
            align: None,
            vector: 1,
            ty: "",
            name: "",
            dims: Vec::new(),
            init: Vec::new(),
        };
        loop {
            match self.peek() {
                Token::Dot("align") => {
                    self.at += 1;
                    let align = self.int()?;
                    if !align.is_power_of_two() || align > 1 << 16 {
                        return self.error("bad alignment");
                    }
                    // A parameter may say twice how it is aligned: `.ptr .global .align 4` is about what it points to.
                    out.align.get_or_insert(align);
                }
                Token::Dot("ptr") => {
                    self.at += 1;
                    while let Token::Dot(name) = self.peek() {
                        self.at += 1;
                        if name == "align" {
                            self.int()?;
                        }
                    }
                }
                Token::Dot("v2") => {
                    self.at += 1;
                    out.vector = 2;
                }
                Token::Dot("v4") => {
                    self.at += 1;
                    out.vector = 4;
                }
                Token::Dot("attribute") => {
                    self.at += 1;
                    self.skip_to(b')')?;
                }
                Token::Dot(name) => {
                    self.at += 1;
                    out.ty = name;
                }
                Token::Word(name) => {
                    self.at += 1;
                    out.name = name;
                    break;
                }
                _ => return self.unexpected("a name"),
            }
        }
        self.dims_and_init(&mut out)?;
        Ok(out)
    }

    fn dims_and_init(&mut self, out: &mut Declaration<'a>) -> Result<()> {
        while self.accept(b'[') {
            if self.accept(b']') {
                out.dims.push(None);
            } else {
                out.dims.push(Some(self.int()?));
                self.expect(b']')?;
            }
        }
        if self.accept(b'=') {
            self.initializer(&mut out.init, 0)?;
        }
        Ok(())
    }

    fn initializer(&mut self, out: &mut Vec<Initializer<'a>>, depth: u32) -> Result<()> {
        if depth > MAX_NESTING {
            return self.error("initializer nested too deep");
        }
        if self.accept(b'{') {
            if self.accept(b'}') {
                return Ok(());
            }
            loop {
                self.initializer(out, depth + 1)?;
                if !self.accept(b',') {
                    return self.expect(b'}');
                }
            }
        }
        let element = match self.peek() {
            Token::Word("generic") => {
                self.at += 1;
                self.expect(b'(')?;
                let (name, inner) = self.symbol_sum()?;
                self.expect(b')')?;
                Initializer::Symbol { name, addend: inner.wrapping_add(self.addend()?), byte: None }
            }
            Token::Word(_) => {
                let (name, addend) = self.symbol_sum()?;
                Initializer::Symbol { name, addend, byte: None }
            }
            Token::Number(Number::Int(mask)) if self.peek_at(1) == Token::Punct(b'(') => {
                self.at += 2;
                let generic = self.peek() == Token::Word("generic");
                if generic {
                    self.at += 1;
                    self.expect(b'(')?;
                }
                let (name, addend) = self.symbol_sum()?;
                if generic {
                    self.expect(b')')?;
                }
                self.expect(b')')?;
                let byte = mask.trailing_zeros() / 8;
                if byte > 7 || mask != 0xff << (8 * byte) {
                    return self.error("mask must select one byte");
                }
                Initializer::Symbol { name, addend, byte: Some(byte) }
            }
            _ => Initializer::Number(self.signed_number()?),
        };
        out.push(element);
        Ok(())
    }

    fn symbol_sum(&mut self) -> Result<(&'a str, i64)> {
        let name = self.word()?;
        Ok((name, self.addend()?))
    }

    /// `+ 4`, `- 4`, `+ -4` or nothing.
    fn addend(&mut self) -> Result<i64> {
        let mut sum = 0i64;
        loop {
            let sign = if self.accept(b'+') {
                1
            } else if self.peek() == Token::Punct(b'-') {
                self.at += 1;
                -1
            } else {
                return Ok(sum);
            };
            let sign = if self.accept(b'-') { -sign } else { sign };
            sum = sum.wrapping_add((self.int()? as i64).wrapping_mul(sign));
        }
    }

    fn signed_number(&mut self) -> Result<Number> {
        let negative = self.accept(b'-');
        match self.peek() {
            Token::Number(number) => {
                self.at += 1;
                Ok(match (negative, number) {
                    (false, number) => number,
                    (true, Number::Int(i)) => Number::Int(i.wrapping_neg()),
                    (true, Number::Single(bits)) => Number::Single(bits ^ 1 << 31),
                    (true, Number::Double(bits)) => Number::Double(bits ^ 1 << 63),
                })
            }
            _ => self.unexpected("a number"),
        }
    }

    fn block(&mut self, depth: u32) -> Result<Vec<Statement<'a>>> {
        if depth > MAX_NESTING {
            return self.error("blocks nested too deep");
        }
        let mut out = Vec::new();
        while !self.accept(b'}') {
            self.statement(depth, &mut out)?;
        }
        Ok(out)
    }

    fn statement(&mut self, depth: u32, out: &mut Vec<Statement<'a>>) -> Result<()> {
        let line = self.line();
        match self.peek() {
            Token::Punct(b'{') => {
                self.at += 1;
                let block = self.block(depth + 1)?;
                out.push(Statement::Block(block));
            }
            Token::Punct(b';') => self.at += 1,
            Token::Dot("reg") => {
                self.at += 1;
                let ty = self.dot()?;
                if matches!(ty, "v2" | "v4") {
                    return self.error("vector registers are not supported");
                }
                loop {
                    let name = self.word()?;
                    let count = if self.accept(b'<') {
                        let count = self.small()?;
                        self.expect(b'>')?;
                        Some(count)
                    } else {
                        None
                    };
                    out.push(Statement::Register { line, ty, name, count });
                    if !self.accept(b',') {
                        break;
                    }
                }
                self.expect(b';')?;
            }
            Token::Dot("local" | "shared" | "param" | "global" | "const") => {
                let mut declared = Vec::new();
                self.declarations(false, &mut declared)?;
                out.extend(declared.into_iter().map(Statement::Declaration));
            }
            Token::Dot("extern") => {
                self.at += 1;
                let mut declared = Vec::new();
                self.declarations(true, &mut declared)?;
                out.extend(declared.into_iter().map(Statement::Declaration));
            }
            Token::Dot("pragma") => self.skip_to(b';')?,
            // `.loc 1 2 3, function_name $L + 4, inlined_at 1 2 3` ends with its line.
            Token::Dot("loc" | "file") => {
                if let (Token::Number(Number::Int(file)), Token::Number(Number::Int(place))) =
                    (self.peek_at(1), self.peek_at(2))
                {
                    self.locations.push(Location { ptx: line, file: file as u32, line: place as u32 });
                }
                while self.line() == line && self.peek() != Token::End {
                    self.at += 1;
                }
            }
            Token::Word(name) if self.peek_at(1) == Token::Punct(b':') => {
                self.at += 2;
                match self.peek() {
                    Token::Dot("branchtargets") => {
                        self.at += 1;
                        let mut targets = vec![self.word()?];
                        while self.accept(b',') {
                            targets.push(self.word()?);
                        }
                        self.expect(b';')?;
                        out.push(Statement::Targets { label: name, targets });
                    }
                    Token::Dot("callprototype") => {
                        self.at += 1;
                        let returns = if self.peek() == Token::Punct(b'(') { self.parameters()? } else { Vec::new() };
                        self.word()?;
                        let params = if self.peek() == Token::Punct(b'(') { self.parameters()? } else { Vec::new() };
                        self.skip_to(b';')?;
                        out.push(Statement::Prototype { label: name, returns, params });
                    }
                    _ => out.push(Statement::Label(name)),
                }
            }
            Token::Word(_) | Token::Punct(b'@') => {
                let instruction = self.instruction(line)?;
                out.push(Statement::Instruction(instruction));
            }
            _ => return self.unexpected("an instruction"),
        }
        Ok(())
    }

    fn instruction(&mut self, line: u32) -> Result<Instruction<'a>> {
        let guard = if self.accept(b'@') {
            let negated = self.accept(b'!');
            Some(Guard { register: self.word()?, negated })
        } else {
            None
        };
        let name = self.word()?;
        let mut modifiers = Vec::new();
        while let Token::Dot(modifier) = self.peek() {
            self.at += 1;
            modifiers.push(modifier);
        }
        let mut operands = Vec::new();
        while !self.accept(b';') {
            operands.push(self.operand(0)?);
            if !self.accept(b',') {
                self.expect(b';')?;
                break;
            }
        }
        Ok(Instruction { line, guard, name, modifiers, operands })
    }

    fn operand(&mut self, depth: u32) -> Result<Operand<'a>> {
        if depth > 4 {
            return self.error("operand nested too deep");
        }
        match self.peek() {
            Token::Punct(b'!') => {
                self.at += 1;
                Ok(Operand::Not(self.word()?))
            }
            Token::Punct(b'{') => {
                self.at += 1;
                Ok(Operand::Vector(self.operands(b'}', depth)?))
            }
            Token::Punct(b'(') => {
                self.at += 1;
                Ok(Operand::List(self.operands(b')', depth)?))
            }
            Token::Punct(b'[') => {
                self.at += 1;
                self.address(depth)
            }
            Token::Word(name) => {
                self.at += 1;
                match self.peek() {
                    Token::Dot(component) => {
                        self.at += 1;
                        Ok(Operand::Component(name, component))
                    }
                    Token::Punct(b'|') => {
                        self.at += 1;
                        Ok(Operand::Pair(name, self.word()?))
                    }
                    Token::Punct(b'+' | b'-') => Ok(Operand::Sum(name, self.addend()?)),
                    _ => Ok(Operand::Name(name)),
                }
            }
            _ => Ok(Operand::Number(self.signed_number()?)),
        }
    }

    fn operands(&mut self, end: u8, depth: u32) -> Result<Vec<Operand<'a>>> {
        let mut out = Vec::new();
        while !self.accept(end) {
            out.push(self.operand(depth + 1)?);
            if !self.accept(b',') {
                self.expect(end)?;
                break;
            }
        }
        Ok(out)
    }

    fn address(&mut self, depth: u32) -> Result<Operand<'a>> {
        let (base, offset) = match self.peek() {
            Token::Word(name) => {
                self.at += 1;
                (Some(name), self.addend()?)
            }
            _ => match self.signed_number()? {
                Number::Int(offset) => (None, offset as i64),
                _ => return self.error("an address is a whole number"),
            },
        };
        let rest = if self.accept(b',') {
            self.operands(b']', depth)?
        } else {
            self.expect(b']')?;
            Vec::new()
        };
        Ok(Operand::Address { base, offset, rest })
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
        let deep = format!("{HEAD}.entry k() {}", "{".repeat(5000));
        assert!(parse(&deep).is_err());
        let deep = format!("{HEAD}.entry k() {{ add.s32 {}", "(".repeat(50_000));
        assert!(parse(&deep).is_err());
    }
}
