//! Variables of a module, which need memory before a kernel runs.

/// A module variable in global or constant memory. The loader gives it memory and an initial value.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    pub size: u64,
    pub align: u64,
    /// First bytes of the variable; the rest is zero.
    pub init: Vec<u8>,
    /// Words of the initial value that depend on addresses. They lie inside the variable.
    pub relocations: Vec<Relocation>,
    /// Declared `.extern`: defined by another module, `size` may be 0.
    pub external: bool,
    /// A reference to an image, which nobody reads or writes: its address is what names the image.
    pub reference: Option<Reference>,
}

/// What a variable refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    Texture,
    Surface,
}

/// A word of `width` bytes (4 or 8) at `offset` that must hold `target + addend`.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    pub offset: u64,
    pub width: u32,
    pub target: RelocationTarget,
    pub addend: i64,
}

/// What a relocation points to.
#[derive(Clone, Copy, Debug)]
pub enum RelocationTarget {
    /// Index into `Module::variables`.
    Variable(usize),
    /// Index into `Module::functions`.
    Function(usize),
}
