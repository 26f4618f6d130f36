//! Bodies of functions: statements, instructions and their operands.

use super::{MAX_NESTING, Parser, Result};
use crate::ast::*;
use crate::lexer::Token;

impl<'a> Parser<'a> {
    pub(super) fn block(&mut self, depth: u32) -> Result<Vec<Statement<'a>>> {
        if depth > MAX_NESTING {
            return self.error("blocks nested too deeply");
        }
        let mut out = Vec::new();
        while !self.accept(b'}') {
            self.statement(depth, &mut out)?;
        }
        Ok(out)
    }

    pub(super) fn statement(&mut self, depth: u32, out: &mut Vec<Statement<'a>>) -> Result<()> {
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
                if let (Some(file), Some(place)) = (self.small_at(1), self.small_at(2)) {
                    self.locations.push(Location { ptx: line, file, line: place, caller: None });
                }
                while self.line() == line && self.peek() != Token::End {
                    self.note_caller();
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

    /// `inlined_at 1 2 3` belongs to the last location.
    fn note_caller(&mut self) {
        if let Token::Word("inlined_at") = self.peek()
            && let (Some(file), Some(line)) = (self.small_at(1), self.small_at(2))
            && let Some(location) = self.locations.last_mut()
        {
            location.caller = Some((file, line));
        }
    }

    pub(super) fn instruction(&mut self, line: u32) -> Result<Instruction<'a>> {
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

    pub(super) fn operand(&mut self, depth: u32) -> Result<Operand<'a>> {
        if depth > 4 {
            return self.error("operand nested too deeply");
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

    pub(super) fn operands(&mut self, end: u8, depth: u32) -> Result<Vec<Operand<'a>>> {
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

    pub(super) fn address(&mut self, depth: u32) -> Result<Operand<'a>> {
        let (base, offset) = match self.peek() {
            Token::Word(name) => {
                self.at += 1;
                (Some(name), self.addend()?)
            }
            _ => match self.signed_number()? {
                Number::Int(offset) => (None, offset.cast_signed()),
                _ => return self.error("an address must be an integer"),
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
