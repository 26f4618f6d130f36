//! Names inside of a function: registers, labels, local variables, call sequences; blocks nest.

use std::collections::HashMap;

use super::ir::{Reg, Type};

/// A name that stands for memory inside of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// Offset in the local frame.
    Local(u32),
    /// Index of a shared variable of the module.
    Shared(usize),
    /// Index of a module variable.
    Variable(usize),
    /// `.param` variable of a call sequence.
    Slot(usize),
    /// Parameter of a kernel: offset in its buffer.
    KernelParam(u32),
    /// Parameter of a device function.
    Argument(usize),
    /// Return value of a device function.
    Result(usize),
    /// Index of a call prototype.
    Prototype(usize),
}

/// One `{ … }`.
#[derive(Default)]
pub(crate) struct Scope<'a> {
    pub registers: HashMap<&'a str, (Reg, Type)>,
    /// `%r<5>` by its prefix: first register, count, type.
    pub ranges: HashMap<&'a str, (Reg, u32, Type)>,
    pub names: HashMap<&'a str, Named>,
    pub labels: HashMap<&'a str, usize>,
    pub targets: HashMap<&'a str, Vec<usize>>,
}

/// All blocks that are open, innermost last.
#[derive(Default)]
pub(crate) struct Scopes<'a>(pub Vec<Scope<'a>>);

impl<'a> Scopes<'a> {
    /// The innermost block.
    pub(crate) fn top(&mut self) -> &mut Scope<'a> {
        if self.0.is_empty() {
            self.0.push(Scope::default());
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn find<T>(&self, look: impl Fn(&Scope<'a>) -> Option<T>) -> Option<T> {
        self.0.iter().rev().find_map(look)
    }

    pub(crate) fn register(&self, name: &str) -> Option<(Reg, Type)> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[prefix.len()..];
        // `%r01` is not `%r1`.
        let number = if digits.len() > 1 && digits.starts_with('0') { None } else { digits.parse::<u32>().ok() };
        self.find(|scope| {
            scope.registers.get(name).copied().or_else(|| {
                let (first, count, ty) = *scope.ranges.get(prefix)?;
                number.filter(|n| *n < count).map(|n| (first + n, ty))
            })
        })
    }

    pub(crate) fn named(&self, name: &str) -> Option<Named> {
        self.find(|scope| scope.names.get(name).copied())
    }

    pub(crate) fn label(&self, name: &str) -> Option<usize> {
        self.find(|scope| scope.labels.get(name).copied())
    }

    pub(crate) fn targets(&self, name: &str) -> Option<Vec<usize>> {
        self.find(|scope| scope.targets.get(name).cloned())
    }
}
