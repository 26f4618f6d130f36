//! Types of values, and what an instruction reads.

/// A PTX fundamental type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    BF16,
    F16x2,
    BF16x2,
    F32,
    F64,
}

impl Type {
    /// The type that PTX calls by this name.
    pub fn parse(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "bf16" => Type::BF16,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::BF16x2,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    #[inline]
    pub fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::B8 | Type::U8 | Type::S8 => 8,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::BF16 => 16,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 | Type::BF16x2 => 32,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 64,
            Type::B128 => 128,
        }
    }

    /// Size in memory.
    #[inline]
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    #[inline]
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// One of the types that hold a single floating-point number.
    #[inline]
    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::BF16 | Type::F32 | Type::F64)
    }

    /// A pair of half-precision numbers in 32 bits.
    #[inline]
    pub fn is_packed(self) -> bool {
        matches!(self, Type::F16x2 | Type::BF16x2)
    }

    /// The element of a packed type.
    #[inline]
    pub fn element(self) -> Type {
        match self {
            Type::F16x2 => Type::F16,
            Type::BF16x2 => Type::BF16,
            other => other,
        }
    }
}

/// Index into `Function::registers`.
pub type Reg = u32;

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Reg(Reg),
    /// A literal, already in the bits of the instruction's type.
    Bits(u64),
    Special(Special),
    Symbol(Symbol, i64),
}

/// Things with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// Index into the module's global and constant variables.
    Variable(usize),
    /// Index into the module's shared variables.
    Shared(usize),
    /// Offset in the local frame of the function.
    Local(u32),
    /// Offset in the kernel's parameter buffer.
    Param(u32),
    /// Index into the module's functions.
    Function(usize),
}

/// Special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMask(Relation),
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    DynamicShared,
    TotalShared,
    /// A place in the shared memory that the system keeps for itself, at the end of the block's.
    ReservedShared(u32),
    /// The halves of the address at which blocks of a cooperative grid meet: upper, lower.
    Workspace(bool),
    /// Constants: `WARP_SZ`, cluster registers of a grid without clusters.
    Constant(u32),
}

/// Which lanes a lane mask register names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Eq,
    Le,
    Lt,
    Ge,
    Gt,
}

/// `@p` or `@!p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    pub reg: Reg,
    pub negated: bool,
}

/// Rounding of a floating-point result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    #[default]
    Nearest,
    Zero,
    Down,
    Up,
}

/// Modifiers of arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mods {
    pub rounding: Rounding,
    pub ftz: bool,
    pub sat: bool,
    /// `.NaN`: min and max answer NaN when an operand is.
    pub nan: bool,
    pub relu: bool,
    /// `.xorsign` of min and max, `.shiftamt` of bfind, `.wrap` of shf.
    pub variant: bool,
    /// `.abs` of three-input minima.
    pub abs: bool,
}
