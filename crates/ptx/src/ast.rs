//! The syntax tree of a PTX module.

/// A whole PTX text.
#[derive(Debug, Default)]
pub struct Module<'a> {
    /// 10 × major + minor.
    pub version: u32,
    /// 75 for `sm_75`.
    pub target: u32,
    /// In the order of the text; a name may be declared several times.
    pub functions: Vec<Function<'a>>,
    /// Variables outside of functions, in the order of the text.
    pub variables: Vec<Declaration<'a>>,
    /// Source files by number.
    pub files: Vec<(u32, &'a str)>,
    /// In the order of the text.
    pub locations: Vec<Location>,
}

/// `.loc`: what follows comes from a line of a source file.
#[derive(Clone, Copy, Debug)]
pub struct Location {
    /// The line of the PTX text.
    pub ptx: u32,
    /// Number of the source file, as in `Module::files`.
    pub file: u32,
    /// The line of the source file.
    pub line: u32,
    /// File and line of the call, where it comes from a function that was inlined.
    pub caller: Option<(u32, u32)>,
}

/// An `.entry` or `.func`, or the forward declaration of one.
#[derive(Debug)]
pub struct Function<'a> {
    /// The line of the text on which it begins.
    pub line: u32,
    /// Its name, as the compiler mangled it.
    pub name: &'a str,
    /// A kernel (`.entry`), not a device function (`.func`).
    pub entry: bool,
    /// Declared `.extern`: defined elsewhere, maybe by the device itself.
    pub external: bool,
    /// Return values; kernels have none.
    pub returns: Vec<Declaration<'a>>,
    /// Parameters.
    pub params: Vec<Declaration<'a>>,
    /// `.maxntid`: the largest block that it is compiled for.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: the only block that it is compiled for.
    pub required_threads: Option<[u32; 3]>,
    /// `.reqnctapercluster`: blocks of a cluster.
    pub cluster: Option<[u32; 3]>,
    /// Absent for a forward declaration.
    pub body: Option<Vec<Statement<'a>>>,
}

/// `.space .align n .type name[dims] = init`.
#[derive(Clone, Debug)]
pub struct Declaration<'a> {
    /// The line of the text.
    pub line: u32,
    /// The state space: `global`, `shared`, `param` and so on.
    pub space: &'a str,
    /// Declared `.extern`: defined elsewhere.
    pub external: bool,
    /// A power of two up to 65536.
    pub align: Option<u64>,
    /// `.v2` or `.v4` in front of the type.
    pub vector: u32,
    /// The type without its dot; nothing is known of it here.
    pub ty: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Array dimensions; `None` is an open `[]`.
    pub dims: Vec<Option<u64>>,
    /// All elements in the order of memory, without inner braces.
    pub init: Vec<Initializer<'a>>,
}

/// One element of an initializer.
#[derive(Clone, Debug)]
pub enum Initializer<'a> {
    /// A literal.
    Number(Number),
    /// `symbol + addend`; with a mask `0xFF00(symbol)` the byte that it selects, counted from the lowest.
    Symbol {
        /// The variable or function.
        name: &'a str,
        /// What is added to its address.
        addend: i64,
        /// 0 to 7.
        byte: Option<u32>,
    },
}

/// A literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number; negative ones wrap around.
    Int(u64),
    /// `0f3F800000`
    Single(u32),
    /// `0d3FF0000000000000` or a decimal fraction
    Double(u64),
}

/// A line of a function's body.
#[derive(Debug)]
pub enum Statement<'a> {
    /// `label:`
    Label(&'a str),
    /// `.reg .ty name` or `.reg .ty name<count>`.
    Register {
        /// The line of the text.
        line: u32,
        /// The type without its dot.
        ty: &'a str,
        /// The name, or what the names of all of them begin with.
        name: &'a str,
        /// How many, numbered from 0.
        count: Option<u32>,
    },
    /// A variable of the function.
    Declaration(Declaration<'a>),
    /// An instruction.
    Instruction(Instruction<'a>),
    /// `{ … }`, a scope of its own.
    Block(Vec<Statement<'a>>),
    /// `label: .branchtargets a, b, …;`
    Targets {
        /// The name of the table.
        label: &'a str,
        /// Labels.
        targets: Vec<&'a str>,
    },
    /// `label: .callprototype (…) _ (…);`
    Prototype {
        /// The name of the prototype.
        label: &'a str,
        /// Return values.
        returns: Vec<Declaration<'a>>,
        /// Parameters.
        params: Vec<Declaration<'a>>,
    },
}

/// `@!p name.mod.mod a, b, c;`
#[derive(Clone, Debug)]
pub struct Instruction<'a> {
    /// The line of the text.
    pub line: u32,
    /// Runs only where the predicate holds.
    pub guard: Option<Guard<'a>>,
    /// Up to the first dot.
    pub name: &'a str,
    /// Each without its dot, types among them.
    pub modifiers: Vec<&'a str>,
    /// Results first.
    pub operands: Vec<Operand<'a>>,
}

/// `@p` or `@!p`.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// The predicate register.
    pub register: &'a str,
    /// `@!p`
    pub negated: bool,
}

/// What instructions work on.
#[derive(Clone, Debug)]
pub enum Operand<'a> {
    /// A register, special register, variable, function or label.
    Name(&'a str),
    /// `%tid.x`, `v.y`
    Component(&'a str, &'a str),
    /// `!p`
    Not(&'a str),
    /// A literal.
    Number(Number),
    /// `name + offset` outside of brackets
    Sum(&'a str, i64),
    /// `a | b`
    Pair(&'a str, &'a str),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `[base + offset]`; the base is absent for `[64]`. More parts follow in textures and bulk copies.
    Address {
        /// A register or variable.
        base: Option<&'a str>,
        /// In bytes.
        offset: i64,
        /// Behind the comma.
        rest: Vec<Operand<'a>>,
    },
    /// `(a, b)` of a call
    List(Vec<Operand<'a>>),
}
