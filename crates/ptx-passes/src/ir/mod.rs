//! The typed instructions that code is generated from. Every name is resolved, every operand checked.

mod compute;
mod module;
mod reads;
mod source;
mod types;
mod variable;

pub use compute::*;
pub use module::*;
pub use source::*;
pub use types::*;
pub use variable::*;

/// State spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
    Const,
    Shared,
    Local,
    /// The kernel's parameters.
    Param,
}

/// Where a load or store goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address {
    pub base: Base,
    pub offset: i64,
}

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Base {
    Reg(Reg),
    Symbol(Symbol),
    Absolute,
    /// A `.param` variable of a call sequence: index into `Function::slots`.
    Slot(usize),
    /// Parameter of this (device) function.
    Argument(usize),
    /// Return value of this (device) function.
    Result(usize),
}

/// Read-modify-write operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Min,
    Max,
    Inc,
    Dec,
}

/// Operations that all named lanes of a warp do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarpOp {
    ShflUp,
    ShflDown,
    ShflBfly,
    ShflIdx,
    VoteAll,
    VoteAny,
    VoteUni,
    Ballot,
    Sync,
    ActiveMask,
    MatchAny,
    MatchAll,
    ReduxAdd,
    ReduxMinU,
    ReduxMaxU,
    ReduxMinS,
    ReduxMaxS,
    ReduxAnd,
    ReduxOr,
    ReduxXor,
    Elect,
    /// A routine for all lanes at once, whose code is the site.
    Together,
}

impl WarpOp {
    /// Whether all lanes get the same answer.
    #[inline]
    pub fn answers_all_alike(self) -> bool {
        use WarpOp::*;
        !matches!(self, ShflUp | ShflDown | ShflBfly | ShflIdx | MatchAny | Elect)
    }

    /// All of them by number, as compiled code passes them.
    pub const ALL: [WarpOp; 22] = [
        WarpOp::ShflUp,
        WarpOp::ShflDown,
        WarpOp::ShflBfly,
        WarpOp::ShflIdx,
        WarpOp::VoteAll,
        WarpOp::VoteAny,
        WarpOp::VoteUni,
        WarpOp::Ballot,
        WarpOp::Sync,
        WarpOp::ActiveMask,
        WarpOp::MatchAny,
        WarpOp::MatchAll,
        WarpOp::ReduxAdd,
        WarpOp::ReduxMinU,
        WarpOp::ReduxMaxU,
        WarpOp::ReduxMinS,
        WarpOp::ReduxMaxS,
        WarpOp::ReduxAnd,
        WarpOp::ReduxOr,
        WarpOp::ReduxXor,
        WarpOp::Elect,
        WarpOp::Together,
    ];
}

/// Reduction that a block barrier does along the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierOp {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
}

/// Functions that the device provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    Printf,
    AssertFail,
    Malloc,
    Free,
}

/// Shape of a function: sizes of its results and parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    pub returns: Vec<Slot>,
    pub params: Vec<Slot>,
}

/// A parameter or return value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub size: u32,
    pub align: u32,
}

/// Who is called.
#[derive(Clone, Debug, PartialEq)]
pub enum Callee {
    Direct(usize),
    Builtin(Builtin),
    /// The address, and an index into `Function::prototypes`.
    Indirect(Value, usize),
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Compute {
        op: Compute,
        ty: Type,
        mods: Mods,
        dst: Reg,
        src: Vec<Value>,
    },
    /// `add.cc`, `subc` and friends, through the carry register.
    Carry {
        op: CarryOp,
        ty: Type,
        dst: Reg,
        src: Vec<Value>,
        reads: bool,
        writes: bool,
        carry: Reg,
    },
    /// `rounding` is to an integral value where `integral`.
    Convert {
        to: Type,
        from: Type,
        rounding: Rounding,
        integral: bool,
        mods: Mods,
        dst: Reg,
        src: Value,
    },
    /// Two f32 into a packed type.
    ConvertPair {
        to: Type,
        mods: Mods,
        dst: Reg,
        high: Value,
        low: Value,
    },
    /// `setp`: the result and its complement.
    SetP {
        compare: Compare,
        ty: Type,
        ftz: bool,
        combine: Option<(BoolOp, Predicate)>,
        dst: Option<Reg>,
        complement: Option<Reg>,
        a: Value,
        b: Value,
    },
    /// `set`: all ones or 1.0 of type `to`.
    Set {
        compare: Compare,
        to: Type,
        ty: Type,
        ftz: bool,
        combine: Option<(BoolOp, Predicate)>,
        dst: Reg,
        a: Value,
        b: Value,
    },
    Load {
        space: Space,
        ty: Type,
        volatile: bool,
        dst: Vec<Option<Reg>>,
        address: Address,
    },
    Store {
        space: Space,
        ty: Type,
        volatile: bool,
        src: Vec<Value>,
        address: Address,
    },
    Atomic {
        space: Space,
        op: AtomicOp,
        ty: Type,
        dst: Option<Reg>,
        address: Address,
        src: Value,
        swap: Option<Value>,
    },
    /// `mov.b64 %rd, {a, b}`
    Pack {
        ty: Type,
        dst: Reg,
        src: Vec<Value>,
    },
    /// `mov.b64 {a, b}, %rd`
    Unpack {
        ty: Type,
        dst: Vec<Option<Reg>>,
        src: Value,
    },
    /// Arguments and results are slots of this function.
    Call {
        callee: Callee,
        returns: Vec<usize>,
        args: Vec<usize>,
    },
    Barrier {
        op: BarrierOp,
        id: Value,
        count: Option<Value>,
        predicate: Option<Predicate>,
        dst: Option<Reg>,
    },
    /// a: value, b: lane or delta, c: clamp and segment of shfl.
    Warp {
        op: WarpOp,
        dst: Option<Reg>,
        predicate: Option<Reg>,
        a: Option<Predicate>,
        b: Option<Value>,
        c: Option<Value>,
        mask: Option<Value>,
        wide: bool,
    },
    /// What the runtime does as a whole: `code` says what exactly, words go in and words come out.
    Runtime {
        routine: Routine,
        code: u64,
        src: Vec<(Value, Type)>,
        dst: Vec<(Option<Reg>, Type)>,
    },
    Fence,
    Sleep(Value),
    Trap,
}

/// Instructions that are too large or too rare to be compiled. Each packs what it has to know into a `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routine {
    /// `vadd` and its kind.
    Video,
    /// `cvt.pack`
    ConvertPack,
    /// To and from floats of 8 bits and less.
    ConvertSmall,
    /// `mma` and `wmma.mma`: all lanes of the warp together.
    Multiply,
    /// `wmma.load` and `wmma.store`
    WarpMatrix,
    /// `ldmatrix`, `stmatrix` and `movmatrix`: all lanes of the warp together.
    MoveMatrix,
    /// `cp.async`
    CopyAsync,
    /// `mbarrier`
    MemoryBarrier,
    /// `tex` and `tld4`
    Texture,
    /// `suld`, `sust` and `sured`
    Surface,
    /// `txq` and `suq`
    TextureQuery,
}

impl Routine {
    /// All of them, by number.
    pub const ALL: [Routine; 11] = [
        Routine::Video,
        Routine::ConvertPack,
        Routine::ConvertSmall,
        Routine::Multiply,
        Routine::WarpMatrix,
        Routine::MoveMatrix,
        Routine::CopyAsync,
        Routine::MemoryBarrier,
        Routine::Texture,
        Routine::Surface,
        Routine::TextureQuery,
    ];

    /// Whether threads may wait for each other in it.
    #[inline]
    pub fn waits(self) -> bool {
        matches!(self, Routine::Multiply | Routine::MoveMatrix | Routine::MemoryBarrier)
    }
}
