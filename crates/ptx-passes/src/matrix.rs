//! Products of matrices: `mma`, `wmma`, and the moves that go with them.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::{Op, Reg, Routine, Space, Type, Value};

type Result<T> = std::result::Result<T, CheckError>;

/// Elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum Kind {
    F16,
    BF16,
    TF32,
    F32,
    F64,
    S8,
    U8,
    S4,
    U4,
    B1,
    E4M3,
    E5M2,
    S32,
}

const KINDS: [(&str, Kind, u32); 13] = [
    ("f16", Kind::F16, 16),
    ("bf16", Kind::BF16, 16),
    ("tf32", Kind::TF32, 32),
    ("f32", Kind::F32, 32),
    ("f64", Kind::F64, 64),
    ("s8", Kind::S8, 8),
    ("u8", Kind::U8, 8),
    ("s4", Kind::S4, 4),
    ("u4", Kind::U4, 4),
    ("b1", Kind::B1, 1),
    ("e4m3", Kind::E4M3, 8),
    ("e5m2", Kind::E5M2, 8),
    ("s32", Kind::S32, 32),
];

impl Kind {
    fn parse(word: &str) -> Option<Kind> {
        KINDS.iter().find(|(name, ..)| *name == word).map(|(_, kind, _)| *kind)
    }

    #[inline]
    fn index(self) -> usize {
        KINDS.iter().position(|(_, kind, _)| *kind == self).unwrap_or(0)
    }

    #[inline]
    fn at_index(index: u64) -> Kind {
        KINDS.get((index & 15) as usize).map_or(Kind::F32, |(_, kind, _)| *kind)
    }

    /// Bits of an element.
    #[inline]
    pub fn bits(self) -> u32 {
        KINDS[self.index()].2
    }

    /// How a register with such elements is passed.
    fn register(self) -> Type {
        if self == Kind::F64 { Type::B64 } else { Type::B32 }
    }
}

/// Rows, columns, and what both have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of a and d.
    pub m: u32,
    /// Columns of b and d.
    pub n: u32,
    /// Columns of a, rows of b.
    pub k: u32,
}

impl Shape {
    /// `m16n8k16`
    fn parse(word: &str) -> Option<Shape> {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k').unwrap_or((rest, "1"));
        let shape = Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? };
        // What follows counts on small sizes.
        (shape.m <= 32 && shape.n <= 32 && shape.k <= 256).then_some(shape)
    }

    fn pack(self) -> u64 {
        u64::from(self.m) | u64::from(self.n) << 6 | u64::from(self.k) << 12
    }

    #[inline]
    fn unpack(code: u64) -> Shape {
        Shape { m: (code & 63) as u32, n: (code >> 6 & 63) as u32, k: (code >> 12 & 511) as u32 }
    }
}

/// A product, in the 64 bits that compiled code passes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiplyCode {
    /// Of the whole product.
    pub shape: Shape,
    /// Of a, b, c and d.
    pub kinds: [Kind; 4],
    /// Registers of a, b and c.
    pub counts: [u32; 3],
    /// Fragments of `wmma`, whose layout is ours to choose.
    pub opaque: bool,
    /// Sums of integers are clamped, instead of wrapping around.
    pub saturate: bool,
    /// Single bits are combined by and, instead of xor.
    pub and: bool,
}

impl MultiplyCode {
    /// The 64 bits.
    pub fn pack(self) -> u64 {
        let kinds = self.kinds.iter().rev().fold(0, |code, kind| code << 4 | kind.index() as u64);
        let counts = self.counts.iter().rev().fold(0, |code, count| code << 4 | u64::from(*count));
        self.shape.pack()
            | kinds << 21
            | counts << 37
            | u64::from(self.opaque) << 49
            | u64::from(self.saturate) << 50
            | u64::from(self.and) << 51
    }

    /// What `pack` made; whatever else becomes some code.
    #[inline]
    pub fn unpack(code: u64) -> MultiplyCode {
        MultiplyCode {
            shape: Shape::unpack(code),
            kinds: [21, 25, 29, 33].map(|at| Kind::at_index(code >> at)),
            counts: [37, 41, 45].map(|at| (code >> at & 15) as u32),
            opaque: code >> 49 & 1 == 1,
            saturate: code >> 50 & 1 == 1,
            and: code >> 51 & 1 == 1,
        }
    }
}

/// Which operand of a product a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The left factor.
    A,
    /// The right factor.
    B,
    /// c and d
    C,
}

impl Part {
    /// Rows and columns.
    #[inline]
    pub fn size(self, shape: Shape) -> (u32, u32) {
        match self {
            Part::A => (shape.m, shape.k),
            Part::B => (shape.k, shape.n),
            Part::C => (shape.m, shape.n),
        }
    }
}

/// A load or store of a fragment of `wmma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentCode {
    /// Of the product that it is for.
    pub shape: Shape,
    /// Which operand of the product.
    pub part: Part,
    /// Its elements.
    pub kind: Kind,
    /// Where the matrix lies.
    pub space: Space,
    /// Registers of a lane.
    pub count: u32,
    /// Columns lie one after another, instead of rows.
    pub by_columns: bool,
    /// To memory, instead of from it.
    pub store: bool,
}

/// Spaces by the number that compiled code passes.
pub const SPACES: [Space; 6] =
    [Space::Generic, Space::Global, Space::Const, Space::Shared, Space::Local, Space::Param];

/// The index of a space in `SPACES`.
pub(crate) fn space_number(space: Space) -> u64 {
    SPACES.iter().position(|other| *other == space).unwrap_or(0) as u64
}

impl FragmentCode {
    /// The 64 bits.
    pub fn pack(self) -> u64 {
        self.shape.pack()
            | (self.part as u64) << 21
            | (self.kind.index() as u64) << 24
            | space_number(self.space) << 28
            | u64::from(self.count) << 32
            | u64::from(self.by_columns) << 40
            | u64::from(self.store) << 41
    }

    /// What `pack` made; whatever else becomes some code.
    #[inline]
    pub fn unpack(code: u64) -> FragmentCode {
        FragmentCode {
            shape: Shape::unpack(code),
            part: [Part::A, Part::B, Part::C, Part::C][(code >> 21 & 3) as usize],
            kind: Kind::at_index(code >> 24),
            space: SPACES.get((code >> 28 & 7) as usize).copied().unwrap_or(Space::Generic),
            count: (code >> 32 & 15) as u32,
            by_columns: code >> 40 & 1 == 1,
            store: code >> 41 & 1 == 1,
        }
    }
}

// `ldmatrix` and its kind: bits 0 to 3 how many matrices, 28 to 30 the space, and these.

/// Rows become columns.
pub const TRANSPOSED: u64 = 1 << 8;
/// To memory, instead of from it.
pub const STORES: u64 = 1 << 9;
/// From register to register.
pub const STAYS: u64 = 1 << 10;
/// Tells these apart from products.
pub const MOVES: u64 = 1 << 63;

/// How many registers are given. Whatever is too many is refused.
fn count<T>(registers: &[T]) -> u32 {
    u32::try_from(registers.len()).unwrap_or(u32::MAX)
}

impl<'a> Builder<'_, 'a> {
    fn fragment_sources(&self, operand: &Operand<'a>, kind: Kind) -> Result<Vec<(Value, Type)>> {
        let one = std::slice::from_ref(operand);
        let parts = if let Operand::Vector(parts) = operand { &parts[..] } else { one };
        parts.iter().map(|part| Ok((self.value(part, kind.register())?, kind.register()))).collect()
    }

    fn fragment_results(&self, operand: &Operand<'a>, kind: Kind) -> Result<Vec<(Option<Reg>, Type)>> {
        let one = std::slice::from_ref(operand);
        let parts = if let Operand::Vector(parts) = operand { &parts[..] } else { one };
        parts.iter().map(|part| Ok((self.maybe_dst(part)?, kind.register()))).collect()
    }

    /// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c`, or the same of `wmma`.
    pub(crate) fn multiply(&mut self, form: &Form<'a>, operands: &[Operand<'a>], opaque: bool) -> Result<Op> {
        let words = &form.modifiers;
        if words.iter().any(|word| word.starts_with("sp")) {
            return CheckError::unsupported("sparse matrices");
        }
        let Some(shape) = words.iter().find_map(|word| Shape::parse(word)) else {
            return CheckError::invalid("missing shape");
        };
        let kinds: Vec<Kind> = words.iter().filter_map(|word| Kind::parse(word)).collect();
        let kinds = match kinds[..] {
            [d, a, b, c] => [a, b, c, d],
            // What `wmma` does not say is f16.
            [d, c] if opaque => [Kind::F16, Kind::F16, c, d],
            _ => return CheckError::unsupported("types of this kind"),
        };
        if !opaque && (shape.m == 8 && shape.k == 4 && kinds[0] == Kind::F16) {
            return CheckError::unsupported("mma of the shape m8n8k4 with f16");
        }
        expect(operands, 4)?;
        let dst = self.fragment_results(&operands[0], kinds[3])?;
        let parts = [(1, 0), (2, 1), (3, 2)].map(|(at, kind)| self.fragment_sources(&operands[at], kinds[kind]));
        let [a, b, c] = parts;
        let (a, b, c) = (a?, b?, c?);
        let code = MultiplyCode {
            shape,
            kinds,
            counts: [count(&a), count(&b), count(&c)],
            opaque,
            saturate: words.contains(&"satfinite"),
            and: words.contains(&"and"),
        };
        code.check(count(&dst))?;
        let src = a.into_iter().chain(b).chain(c).collect();
        Ok(Op::Runtime { routine: Routine::Multiply, code: code.pack(), src, dst })
    }

    /// `wmma.load` and `wmma.store`
    pub(crate) fn fragment(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>], store: bool) -> Result<Op> {
        let words = form.modifiers.clone();
        let space = self.space(form)?;
        let part = match words.get(1) {
            Some(&"a") => Part::A,
            Some(&"b") => Part::B,
            _ => Part::C,
        };
        let shape = words.iter().find_map(|word| Shape::parse(word));
        let kind = words.iter().rev().find_map(|word| Kind::parse(word));
        let (Some(shape), Some(kind)) = (shape, kind) else { return CheckError::invalid("missing shape or type") };
        let by_columns = words.contains(&"col");
        let (at, values) = if store { (0, 1) } else { (1, 0) };
        if operands.len() != 3 {
            expect(operands, 2)?;
        }
        let (rows, columns) = part.size(shape);
        let address = self.flat_address(&operands[at])?;
        let stride = match operands.get(2) {
            Some(operand) => self.value(operand, Type::U32)?,
            None => Value::Bits(u64::from(if by_columns { rows } else { columns })),
        };
        let mut src = address;
        src.push((stride, Type::U32));
        let mut dst = Vec::new();
        let count = if store {
            let values = self.fragment_sources(&operands[values], kind)?;
            let count = count(&values);
            src.extend(values);
            count
        } else {
            dst = self.fragment_results(&operands[values], kind)?;
            count(&dst)
        };
        let code = FragmentCode { shape, part, kind, space, count, by_columns, store };
        let needed = rows * columns / 32 * kind.bits() / kind.register().bits();
        if count > 8 || count < needed.max(1) {
            return CheckError::invalid("wrong fragment size");
        }
        Ok(Op::Runtime { routine: Routine::WarpMatrix, code: code.pack(), src, dst })
    }

    /// An address as base and offset.
    pub(crate) fn flat_address(&self, operand: &Operand<'a>) -> Result<Vec<(Value, Type)>> {
        let Operand::Address { base, offset, .. } = operand else {
            return CheckError::invalid("operand is not an address");
        };
        let value = match base {
            Some(name) => match self.scopes.register(name) {
                // Addresses in 32 bits are without a sign.
                Some((reg, ty)) => (Value::Reg(reg), if ty.bits() == 32 { Type::U32 } else { Type::U64 }),
                None => (Value::Symbol(self.symbol(name)?, 0), Type::U64),
            },
            None => (Value::Bits(0), Type::U64),
        };
        Ok(vec![value, (Value::Bits(offset.cast_unsigned()), Type::U64)])
    }

    /// `ldmatrix`, `stmatrix` and `movmatrix`
    pub(crate) fn move_matrix(&mut self, name: &str, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let space = self.space(form)?;
        let words = &form.modifiers;
        let count = if words.contains(&"x4") {
            4
        } else if words.contains(&"x2") {
            2
        } else {
            1
        };
        if !words.contains(&"m8n8") || !words.contains(&"b16") {
            return CheckError::unsupported("matrices of this shape");
        }
        expect(operands, 2)?;
        let mut code = count | space_number(space) << 28 | MOVES;
        if words.contains(&"trans") {
            code |= TRANSPOSED;
        }
        let (src, dst) = match name {
            "ldmatrix" => (self.flat_address(&operands[1])?, self.fragment_results(&operands[0], Kind::F16)?),
            "stmatrix" => {
                code |= STORES;
                let mut src = self.flat_address(&operands[0])?;
                src.extend(self.fragment_sources(&operands[1], Kind::F16)?);
                (src, Vec::new())
            }
            _ => {
                code |= STAYS;
                let src = self.fragment_sources(&operands[1], Kind::F16)?;
                (src, self.fragment_results(&operands[0], Kind::F16)?)
            }
        };
        let registers = if code & STORES != 0 { src.len() - 2 } else { dst.len() };
        if registers as u64 != count {
            return CheckError::invalid("wrong number of registers");
        }
        Ok(Op::Runtime { routine: Routine::MoveMatrix, code, src, dst })
    }
}

impl MultiplyCode {
    /// The runtime trusts fragments to have the sizes that follow from the shape.
    fn check(&self, results: u32) -> Result<()> {
        let words = |rows: u32, columns: u32, kind: Kind| rows * columns / 32 * kind.bits() / kind.register().bits();
        let Shape { m, n, k } = self.shape;
        let needed = [words(m, k, self.kinds[0]), words(k, n, self.kinds[1]), words(m, n, self.kinds[2])];
        let have = self.counts;
        let fits =
            |have: u32, need: u32| have <= 8 && need >= 1 && if self.opaque { have >= need } else { have == need };
        let inputs = have.iter().zip(needed).all(|(have, need)| fits(*have, need));
        let known = |kind: Kind, all: &[Kind]| all.contains(&kind);
        let sums = [Kind::F16, Kind::F32, Kind::F64, Kind::S32];
        let per_register = (32 / self.kinds[0].bits()).max(1);
        let sizes = match self.opaque {
            true => matches!(m, 8 | 16 | 32) && matches!(n, 8 | 16 | 32) && k >= 4,
            false => matches!(m, 8 | 16) && n == 8 && k >= 4 * per_register,
        } && k.is_power_of_two();
        let same = self.kinds[0].bits() == self.kinds[1].bits();
        if inputs
            && sizes
            && same
            && fits(results, words(m, n, self.kinds[3]))
            && known(self.kinds[2], &sums)
            && known(self.kinds[3], &sums)
        {
            Ok(())
        } else {
            CheckError::unsupported("matrices of these types and sizes")
        }
    }
}
