//! Arithmetic and comparisons.

use super::{Space, Value};

/// Arithmetic on registers: one result, no side effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    Mov,
    Add,
    Sub,
    /// Low half for integers.
    Mul,
    MulHi,
    MulWide,
    /// Low half for integers.
    Mad,
    MadHi,
    MadWide,
    Mul24,
    Mul24Hi,
    Mad24,
    Fma,
    Div,
    Rem,
    Abs,
    Neg,
    Min,
    Max,
    Sad,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    Shr,
    FunnelLeft,
    FunnelRight,
    Lop3,
    Prmt(PrmtMode),
    Bfe,
    Bfi,
    Bfind,
    Bmsk,
    Szext,
    Brev,
    Clz,
    Popc,
    Fns,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
    Copysign,
    Testp(TestKind),
    Selp,
    /// c >= 0 ? a : b, c of type s32
    SlctInt,
    /// c >= 0 ? a : b, c of type f32
    SlctFloat,
    /// Signedness of a and b.
    Dp4a(bool, bool),
    /// Signedness of a and b, and whether the upper half of b is taken.
    Dp2a(bool, bool, bool),
    /// From an address in a space to a generic one, and back.
    ToGeneric(Space),
    FromGeneric(Space),
    /// Whether a generic address lies in the space.
    IsSpace(Space),
}

/// Modes of `prmt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrmtMode {
    Index,
    Forward4,
    Backward4,
    Replicate8,
    EdgeClampLeft,
    EdgeClampRight,
    Replicate16,
}

/// Questions of `testp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestKind {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// Comparisons. The `U` ones are true when an operand is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Unsigned variants of integer comparisons.
    Lo,
    Ls,
    Hi,
    Hs,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// How `setp` combines its result with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

/// A predicate that is read, maybe negated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicate {
    pub value: Value,
    pub negated: bool,
}

/// Arithmetic that takes part in carry chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarryOp {
    Add,
    Sub,
    MadLo,
    MadHi,
}
