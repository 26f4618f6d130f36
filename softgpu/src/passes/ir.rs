//! The typed instructions that code is generated from. Every name is resolved, every operand checked.

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
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// One of the types that hold a single floating-point number.
    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::BF16 | Type::F32 | Type::F64)
    }

    /// A pair of half-precision numbers in 32 bits.
    pub fn is_packed(self) -> bool {
        matches!(self, Type::F16x2 | Type::BF16x2)
    }

    /// The element of a packed type.
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
    pub fn waits(self) -> bool {
        matches!(self, Routine::Multiply | Routine::MoveMatrix | Routine::MemoryBarrier)
    }
}

/// Arithmetic that takes part in carry chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarryOp {
    Add,
    Sub,
    MadLo,
    MadHi,
}

/// An instruction that does not change the flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    pub line: u32,
    pub guard: Option<Guard>,
    pub op: Op,
}

/// How a basic block ends.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Jump(usize),
    Branch {
        guard: Guard,
        then: usize,
        otherwise: usize,
    },
    /// Outside of the table is a fault.
    Table {
        index: Value,
        targets: Vec<usize>,
    },
    Return,
    Exit,
}

impl End {
    /// Whether block number `index`, ending so, may lead to itself or an earlier one. Every loop has such a block.
    pub fn goes_back(&self, index: usize) -> bool {
        match self {
            End::Jump(target) => *target <= index,
            End::Branch { then, otherwise, .. } => *then <= index || *otherwise <= index,
            End::Table { targets, .. } => targets.iter().any(|target| *target <= index),
            End::Return | End::Exit => false,
        }
    }
}

/// A basic block.
#[derive(Clone, Debug)]
pub struct Block {
    pub insts: Vec<Inst>,
    pub end: End,
}

/// A function body. Block 0 is where it starts.
#[derive(Clone, Debug)]
pub struct Body {
    pub registers: Vec<Type>,
    pub blocks: Vec<Block>,
    pub slots: Vec<Slot>,
    pub prototypes: Vec<Signature>,
    /// Size of the frame in local memory.
    pub local_bytes: u32,
}

/// An `.entry` or `.func`.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub entry: bool,
    pub signature: Signature,
    /// Offset of each parameter in a kernel's parameter buffer.
    pub param_offsets: Vec<u32>,
    pub param_bytes: u32,
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    pub body: Result<Body, String>,
}

/// A shared variable; `size` 0 and `dynamic` for the extern array.
#[derive(Clone, Debug)]
pub struct SharedVariable {
    pub name: String,
    pub size: u32,
    pub align: u32,
    pub dynamic: bool,
}

/// A whole module, all names resolved.
#[derive(Clone, Debug, Default)]
pub struct Module {
    pub version: u32,
    pub target: u32,
    pub functions: Vec<Function>,
    pub variables: Vec<crate::exec::Variable>,
    pub shared: Vec<SharedVariable>,
    /// Source files by number.
    pub files: Vec<(u32, String)>,
    /// Where the text says that it comes from, in the order of the text.
    pub locations: Vec<crate::ptx::ast::Location>,
}

impl Module {
    /// Source file and line of a line of the text, where the text says so.
    pub fn source(&self, ptx: u32) -> Option<(&str, u32)> {
        let at = self.locations.partition_point(|location| location.ptx <= ptx);
        let location = self.locations[..at].last()?;
        let file = self.files.iter().find(|(number, _)| *number == location.file)?;
        Some((&file.1, location.line))
    }
}
