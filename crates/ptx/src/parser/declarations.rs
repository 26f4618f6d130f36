//! Variables and parameters, with their initialisers.

use super::{MAX_NESTING, Parser, Result};
use crate::ast::*;
use crate::lexer::Token;

impl<'a> Parser<'a> {
    /// `(.param .b32 a, .param .align 8 .b8 b[16])`
    pub(super) fn parameters(&mut self) -> Result<Vec<Declaration<'a>>> {
        self.expect(b'(')?;
        let mut out = Vec::new();
        if self.accept(b')') {
            return Ok(out);
        }
        loop {
            let space = self.dot()?;
            if space != "param" && space != "reg" {
                return self.error("parameters must be in .param");
            }
            out.push(self.declaration(space, false)?);
            if !self.accept(b',') {
                self.expect(b')')?;
                return Ok(out);
            }
        }
    }

    /// `.space .type a, b[2] = {1, 2};`
    pub(super) fn declarations(&mut self, external: bool, out: &mut Vec<Declaration<'a>>) -> Result<()> {
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

    pub(super) fn declaration(&mut self, space: &'a str, external: bool) -> Result<Declaration<'a>> {
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
                        return self.error("invalid alignment");
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

    pub(super) fn dims_and_init(&mut self, out: &mut Declaration<'a>) -> Result<()> {
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

    pub(super) fn initializer(&mut self, out: &mut Vec<Initializer<'a>>, depth: u32) -> Result<()> {
        if depth > MAX_NESTING {
            return self.error("initializer nested too deeply");
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

    pub(super) fn symbol_sum(&mut self) -> Result<(&'a str, i64)> {
        let name = self.word()?;
        Ok((name, self.addend()?))
    }

    /// `+ 4`, `- 4`, `+ -4` or nothing.
    pub(super) fn addend(&mut self) -> Result<i64> {
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
            sum = sum.wrapping_add(self.int()?.cast_signed().wrapping_mul(sign));
        }
    }

    pub(super) fn signed_number(&mut self) -> Result<Number> {
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
}
