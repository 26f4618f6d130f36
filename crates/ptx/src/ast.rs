//! The syntax tree of a PTX module.

/// A whole PTX text.
#[derive(Debug, Default)]
pub struct Module<'a> {
    /// 10 × major + minor.
    pub version: u32,
    /// 75 for `sm_75`.
    pub target: u32,
    pub functions: Vec<Function<'a>>,
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
    pub file: u32,
    pub line: u32,
    /// File and line of the call, where it comes from a function that was inlined.
    pub caller: Option<(u32, u32)>,
}

/// An `.entry` or `.func`, or the forward declaration of one.
#[derive(Debug)]
pub struct Function<'a> {
    pub line: u32,
    pub name: &'a str,
    pub entry: bool,
    /// Declared `.extern`: defined elsewhere, maybe by the device itself.
    pub external: bool,
    pub returns: Vec<Declaration<'a>>,
    pub params: Vec<Declaration<'a>>,
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    /// Blocks of a cluster.
    pub cluster: Option<[u32; 3]>,
    pub body: Option<Vec<Statement<'a>>>,
}

/// `.space .align n .type name[dims] = init`.
#[derive(Clone, Debug)]
pub struct Declaration<'a> {
    pub line: u32,
    pub space: &'a str,
    pub external: bool,
    pub align: Option<u64>,
    /// `.v2` or `.v4` in front of the type.
    pub vector: u32,
    pub ty: &'a str,
    pub name: &'a str,
    /// Array dimensions; `None` is an open `[]`.
    pub dims: Vec<Option<u64>>,
    pub init: Vec<Initializer<'a>>,
}

/// One element of an initializer.
#[derive(Clone, Debug)]
pub enum Initializer<'a> {
    Number(Number),
    /// `symbol + addend`; with a mask `0xFF00(symbol)` the byte that it selects, counted from the lowest.
    Symbol {
        name: &'a str,
        addend: i64,
        byte: Option<u32>,
    },
}

/// A literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(u64),
    /// `0f3F800000`
    Single(u32),
    /// `0d3FF0000000000000` or a decimal fraction
    Double(u64),
}

/// A line of a function's body.
#[derive(Debug)]
pub enum Statement<'a> {
    Label(&'a str),
    /// `.reg .ty name` or `.reg .ty name<count>`.
    Register {
        line: u32,
        ty: &'a str,
        name: &'a str,
        count: Option<u32>,
    },
    Declaration(Declaration<'a>),
    Instruction(Instruction<'a>),
    Block(Vec<Statement<'a>>),
    /// `label: .branchtargets a, b, …;`
    Targets {
        label: &'a str,
        targets: Vec<&'a str>,
    },
    /// `label: .callprototype (…) _ (…);`
    Prototype {
        label: &'a str,
        returns: Vec<Declaration<'a>>,
        params: Vec<Declaration<'a>>,
    },
}

/// `@!p name.mod.mod a, b, c;`
#[derive(Clone, Debug)]
pub struct Instruction<'a> {
    pub line: u32,
    pub guard: Option<Guard<'a>>,
    pub name: &'a str,
    pub modifiers: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
}

/// `@p` or `@!p`.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    pub register: &'a str,
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
    Number(Number),
    /// `name + offset` outside of brackets
    Sum(&'a str, i64),
    /// `a | b`
    Pair(&'a str, &'a str),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `[base + offset]`; the base is absent for `[64]`. More parts follow in textures and bulk copies.
    Address {
        base: Option<&'a str>,
        offset: i64,
        rest: Vec<Operand<'a>>,
    },
    /// `(a, b)` of a call
    List(Vec<Operand<'a>>),
}
