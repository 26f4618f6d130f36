//! Textures and surfaces.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::{Op, Routine, Symbol, Type, Value};

type Result<T> = std::result::Result<T, CheckError>;

/// How an image is addressed, by the number that compiled code passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum Geometry {
    D1,
    D2,
    D3,
    Layered1,
    Layered2,
    Cube,
    LayeredCube,
}

const GEOMETRIES: [(&str, Geometry); 7] = [
    ("1d", Geometry::D1),
    ("2d", Geometry::D2),
    ("3d", Geometry::D3),
    ("a1d", Geometry::Layered1),
    ("a2d", Geometry::Layered2),
    ("cube", Geometry::Cube),
    ("acube", Geometry::LayeredCube),
];

impl Geometry {
    fn number(self) -> u64 {
        GEOMETRIES.iter().position(|(_, known)| *known == self).unwrap_or(0) as u64
    }

    /// The geometry of a number, D1 for numbers that have none.
    #[inline]
    pub fn of_number(number: u64) -> Geometry {
        GEOMETRIES.get((number & 15) as usize).map_or(Geometry::D1, |(_, geometry)| *geometry)
    }

    /// Whether a layer is named beside the coordinates.
    #[inline]
    pub fn layered(self) -> bool {
        matches!(self, Geometry::Layered1 | Geometry::Layered2 | Geometry::LayeredCube)
    }

    /// Coordinates beside the layer.
    #[inline]
    pub fn axes(self) -> usize {
        match self {
            Geometry::D1 | Geometry::Layered1 => 1,
            Geometry::D2 | Geometry::Layered2 => 2,
            Geometry::D3 | Geometry::Cube | Geometry::LayeredCube => 3,
        }
    }
}

// What `tex` is told: bits 0 to 3 the geometry, 8 and 9 the component of a gather, and these.

/// Coordinates are integers.
pub const INTEGER: u64 = 1 << 4;
/// Results are integers.
pub const RAW: u64 = 1 << 5;
/// The level of detail is an operand.
pub const LEVEL: u64 = 1 << 6;
/// The level of detail follows from gradients.
pub const GRADIENT: u64 = 1 << 7;
/// One component of the four texels around the place (`tld4`).
pub const GATHER: u64 = 1 << 10;

/// Words of `tex`: object, layer, three coordinates, level, two gradients of three.
pub const TEXTURE_WORDS: usize = 12;

// What `suld` and its kind are told: bits 0 to 3 the geometry, 4 to 7 the bytes of an element, 8 to 11 how many, 16 to
// 19 the operation of `sured`, and these.

/// `sust`
pub const STORE: u64 = 1 << 12;
/// Outside of the surface the nearest element is meant. With neither this nor `ZERO` it is a fault.
pub const CLAMP: u64 = 1 << 13;
/// Outside of the surface zero is read, and nothing is written.
pub const ZERO: u64 = 1 << 14;
/// `sured`
pub const REDUCE: u64 = 1 << 15;
/// Minimum and maximum of `sured` are signed.
pub const SIGNED: u64 = 1 << 20;

/// Operations of `sured`, by number.
const REDUCTIONS: [&str; 5] = ["add", "min", "max", "and", "or"];

/// Words of `suld`: object, layer, three coordinates, four values.
pub const SURFACE_WORDS: usize = 9;

/// What `txq` and `suq` may ask for.
pub const QUERIES: [&str; 7] =
    ["width", "height", "depth", "array_size", "num_mipmap_levels", "normalized_coords", "num_samples"];
/// Asks about a surface.
pub const OF_SURFACE: u64 = 1 << 8;

impl<'a> Builder<'_, 'a> {
    fn geometry(&self, form: &mut Form<'a>) -> Result<Geometry> {
        match GEOMETRIES.iter().find(|(word, _)| form.take(word)) {
            Some((_, geometry)) => Ok(*geometry),
            None => CheckError::unsupported("images of this geometry"),
        }
    }

    /// `[object, {coordinates}]`
    fn image(&self, operand: &Operand<'a>) -> Result<(Value, Vec<Operand<'a>>)> {
        let Operand::Address { base: Some(name), offset: 0, rest } = operand else {
            return CheckError::invalid("operand is not a texture or surface");
        };
        let object = match self.scopes.register(name) {
            Some((reg, _)) => Value::Reg(reg),
            // An image that is bound to a reference goes by the reference's address.
            None => match self.symbol(name)? {
                symbol @ Symbol::Variable(index) if self.linker.module.variables[index].reference.is_some() => {
                    Value::Symbol(symbol, 0)
                }
                _ => return CheckError::invalid(format!("{name} is not a texture or surface")),
            },
        };
        match &rest[..] {
            [] => Ok((object, Vec::new())),
            [Operand::Vector(parts)] => Ok((object, parts.clone())),
            [one] => Ok((object, vec![one.clone()])),
            _ => CheckError::unsupported("separate samplers"),
        }
    }

    /// Object, layer and three coordinates as words.
    fn place(&self, operand: &Operand<'a>, geometry: Geometry, ty: Type) -> Result<Vec<(Value, Type)>> {
        let (object, coordinates) = self.image(operand)?;
        let mut words = vec![(object, Type::U64)];
        let mut coordinates = coordinates.iter();
        let mut next = |ty: Type| match coordinates.next() {
            Some(operand) => Ok((self.value(operand, ty)?, ty)),
            None => CheckError::invalid("missing coordinates"),
        };
        words.push(if geometry.layered() { next(Type::U32)? } else { (Value::Bits(0), Type::U32) });
        for _ in 0..geometry.axes() {
            words.push(next(ty)?);
        }
        words.resize(5, (Value::Bits(0), ty));
        Ok(words)
    }

    pub(crate) fn texture(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>], gather: bool) -> Result<Op> {
        let geometry = self.geometry(form)?;
        let mut code = geometry.number();
        let (level, gradient) = (form.take("level"), form.take("grad"));
        form.take("base");
        if gather {
            let component = ["r", "g", "b", "a"].iter().position(|word| form.take(word));
            code |= GATHER | (component.unwrap_or(0) as u64) << 8;
        }
        if !form.take("v4") {
            return CheckError::unsupported("texture reads of this width");
        }
        form.done()?;
        let [result, coordinate] = form.types[..] else {
            return CheckError::unsupported("texture reads of this type");
        };
        let coordinate = match coordinate {
            Type::S32 => {
                code |= INTEGER;
                Type::S32
            }
            Type::F32 => Type::F32,
            _ => return CheckError::invalid("coordinates are .s32 or .f32"),
        };
        if result.bits() != 32 || result.is_packed() {
            return CheckError::unsupported("texture reads of this type");
        }
        if result != Type::F32 {
            code |= RAW;
        }
        let [target, image, rest @ ..] = operands else { return CheckError::invalid("missing operands") };
        let Operand::Vector(targets) = target else { return CheckError::invalid("the results must be a vector") };
        expect(targets, 4)?;
        let mut src = self.place(image, geometry, coordinate)?;
        let level_value = match (level, rest) {
            (true, [level, ..]) => {
                code |= LEVEL;
                (self.value(level, Type::F32)?, Type::F32)
            }
            (true, []) => return CheckError::invalid("missing level of detail"),
            _ => (Value::Bits(0), Type::F32),
        };
        src.push(level_value);
        if let (true, [dx, dy, ..]) = (gradient, rest) {
            code |= GRADIENT;
            for operand in [dx, dy] {
                let one = std::slice::from_ref(operand);
                let parts = if let Operand::Vector(parts) = operand { &parts[..] } else { one };
                for at in 0..3 {
                    let value = match parts.get(at).filter(|_| at < geometry.axes()) {
                        Some(part) => self.value(part, Type::F32)?,
                        None => Value::Bits(0),
                    };
                    src.push((value, Type::F32));
                }
            }
        }
        src.resize(TEXTURE_WORDS, (Value::Bits(0), Type::F32));
        let dst = targets.iter().map(|part| Ok((self.maybe_dst(part)?, Type::B32))).collect::<Result<Vec<_>>>()?;
        Ok(Op::Runtime { routine: Routine::Texture, code, src, dst })
    }

    pub(crate) fn surface(&mut self, name: &str, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        if !form.take("b") {
            return CheckError::unsupported("formatted surface accesses");
        }
        let geometry = self.geometry(form)?;
        let mut code = geometry.number();
        if form.take("clamp") {
            code |= CLAMP;
        } else if form.take("zero") {
            code |= ZERO;
        } else {
            form.take("trap");
        }
        let count = if form.take("v4") {
            4
        } else if form.take("v2") {
            2
        } else {
            1
        };
        if name == "sured" {
            match REDUCTIONS.iter().position(|word| form.take(word)) {
                Some(at) => code |= REDUCE | (at as u64) << 16,
                None => return CheckError::unsupported("this reduction"),
            }
        }
        form.words.retain(|word| !matches!(*word, "ca" | "cg" | "cs" | "cv" | "wb" | "wt"));
        form.done()?;
        let ty = form.ty()?;
        if ty.is_signed() {
            code |= SIGNED;
        }
        if !matches!(ty.bytes(), 1 | 2 | 4 | 8) || u64::from(ty.bytes()) * count > 16 {
            return CheckError::invalid("invalid type for this access");
        }
        code |= u64::from(ty.bytes()) << 4 | count << 8;
        expect(operands, 2)?;
        let (image, values) =
            if name == "suld" { (&operands[1], &operands[0]) } else { (&operands[0], &operands[1]) };
        let mut src = self.place(image, geometry, Type::S32)?;
        let one = std::slice::from_ref(values);
        let parts = if let Operand::Vector(parts) = values { &parts[..] } else { one };
        if parts.len() as u64 != count {
            return CheckError::invalid("wrong vector size");
        }
        let register = match ty.bytes() {
            8 => Type::B64,
            4 => Type::B32,
            2 => Type::B16,
            _ => Type::B8,
        };
        let mut dst = Vec::new();
        if name == "suld" {
            for part in parts {
                dst.push((self.maybe_dst(part)?, register));
            }
        } else {
            code |= if name == "sust" { STORE } else { 0 };
            for part in parts {
                src.push((self.value(part, register)?, register));
            }
        }
        src.resize(SURFACE_WORDS, (Value::Bits(0), Type::B64));
        Ok(Op::Runtime { routine: Routine::Surface, code, src, dst })
    }

    pub(crate) fn texture_query(
        &mut self,
        form: &mut Form<'a>,
        operands: &[Operand<'a>],
        surface: bool,
    ) -> Result<Op> {
        form.take("level");
        let Some(query) = QUERIES.iter().position(|word| form.take(word)) else {
            return CheckError::unsupported("this query");
        };
        form.done()?;
        let [target, image, rest @ ..] = operands else { return CheckError::invalid("missing operands") };
        let (object, _) = self.image(image)?;
        let level = match rest.first() {
            Some(operand) => self.value(operand, Type::U32)?,
            None => Value::Bits(0),
        };
        let code = query as u64 | if surface { OF_SURFACE } else { 0 };
        let src = vec![(object, Type::U64), (level, Type::U32)];
        Ok(Op::Runtime { routine: Routine::TextureQuery, code, src, dst: vec![(self.maybe_dst(target)?, Type::B32)] })
    }
}
