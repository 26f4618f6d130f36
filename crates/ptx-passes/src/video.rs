//! Instructions for parts of words: `vadd` and its kind, `cvt.pack`.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::{Op, Routine, Type, Value};

type Result<T> = std::result::Result<T, CheckError>;

/// What is done to the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    Shl,
    Shr,
    Mad,
    Average,
    Set(u8),
}

/// What is done to the result and the third operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum Second {
    None,
    Add,
    Min,
    Max,
}

/// An instruction, in the 64 bits that compiled code passes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoCode {
    /// On the parts of a and b.
    pub op: VideoOp,
    /// On that and c.
    pub second: Second,
    /// 1, 2 or 4 parts at once.
    pub lanes: u8,
    /// Signedness of d, a and b.
    pub signed: [bool; 3],
    /// The result is clamped to its type.
    pub saturate: bool,
    /// Shift amounts wrap, instead of being clamped.
    pub wrap: bool,
    /// Parts of a and b: 0 the whole, 1 to 4 a byte, 5 and 6 a half.
    pub parts: [u8; 2],
    /// How far `vmad` shifts its result to the right.
    pub scale: u8,
}

const NAMES: &[(&str, VideoOp)] = &[
    ("vadd", VideoOp::Add),
    ("vsub", VideoOp::Sub),
    ("vabsdiff", VideoOp::AbsDiff),
    ("vmin", VideoOp::Min),
    ("vmax", VideoOp::Max),
    ("vshl", VideoOp::Shl),
    ("vshr", VideoOp::Shr),
    ("vmad", VideoOp::Mad),
    ("vavrg", VideoOp::Average),
    ("vset", VideoOp::Set(0)),
];

const COMPARISONS: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];

fn split_name(name: &str) -> (&str, u8) {
    match name.strip_suffix('2') {
        Some(base) => (base, 2),
        None => name.strip_suffix('4').map_or((name, 1), |base| (base, 4)),
    }
}

/// Whether an instruction of that name is one of these.
pub fn is_video(name: &str) -> bool {
    NAMES.iter().any(|(known, _)| *known == split_name(name).0)
}

impl VideoCode {
    /// The 64 bits.
    pub fn pack(self) -> u64 {
        let (op, compare) = match self.op {
            VideoOp::Set(compare) => (9, compare),
            op => (NAMES.iter().position(|(_, known)| *known == op).unwrap_or(0), 0),
        };
        let flag = |set: bool, bit: u32| u64::from(set) << bit;
        op as u64
            | u64::from(compare) << 4
            | (self.second as u64) << 8
            | u64::from(self.lanes) << 12
            | u64::from(self.parts[0]) << 16
            | u64::from(self.parts[1]) << 20
            | u64::from(self.scale) << 24
            | flag(self.signed[0], 32)
            | flag(self.signed[1], 33)
            | flag(self.signed[2], 34)
            | flag(self.saturate, 35)
            | flag(self.wrap, 36)
    }

    /// What `pack` made; whatever else becomes some code.
    #[inline]
    pub fn unpack(code: u64) -> VideoCode {
        #[expect(clippy::cast_possible_truncation, reason = "no field has more than 6 bits")]
        let field = |at: u32, bits: u32| (code >> at & ((1 << bits) - 1)) as u8;
        let flag = |bit: u32| code >> bit & 1 == 1;
        let op = match field(0, 4) {
            9 => VideoOp::Set(field(4, 4)),
            at => NAMES.get(usize::from(at)).map_or(VideoOp::Add, |(_, op)| *op),
        };
        let second = [Second::None, Second::Add, Second::Min, Second::Max][usize::from(field(8, 2))];
        VideoCode {
            op,
            second,
            lanes: field(12, 4).max(1),
            signed: [flag(32), flag(33), flag(34)],
            saturate: flag(35),
            wrap: flag(36),
            parts: [field(16, 4), field(20, 4)],
            scale: field(24, 6),
        }
    }
}

impl<'a> Builder<'_, 'a> {
    pub(crate) fn video(&mut self, name: &str, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let (base, lanes) = split_name(name);
        let Some((_, mut op)) = NAMES.iter().find(|(known, _)| *known == base).copied() else {
            return CheckError::invalid("unknown instruction");
        };
        let types: Vec<bool> = form.types.iter().map(|ty| ty.is_signed()).collect();
        let signed = match (op, &types[..]) {
            (VideoOp::Set(_), [a, b]) => [false, *a, *b],
            (_, [d, a, b]) => [*d, *a, *b],
            _ => return CheckError::invalid("the types do not match"),
        };
        if let VideoOp::Set(_) = op {
            let found = (0..).zip(COMPARISONS).find(|(_, word)| form.take(word)).map(|(number, _)| number);
            op = VideoOp::Set(found.ok_or(CheckError::Invalid("missing comparison".into()))?);
        }
        let scale = if form.take("shr7") {
            7
        } else if form.take("shr15") {
            15
        } else {
            0
        };
        let wrap = form.take("wrap");
        form.take("clamp");
        let mut second = Second::None;
        for (word, op) in [("add", Second::Add), ("min", Second::Min), ("max", Second::Max)] {
            if form.take(word) {
                second = op;
            }
        }
        form.done()?;
        let third = op == VideoOp::Mad || second != Second::None || lanes > 1;
        expect(operands, 3 + usize::from(third))?;
        let (a, first) = self.part(&operands[1])?;
        let (b, other) = self.part(&operands[2])?;
        let c = if third { self.value(&operands[3], Type::B32)? } else { Value::Bits(0) };
        let code =
            VideoCode { op, second, lanes, signed, saturate: form.mods.sat, wrap, parts: [first, other], scale };
        let dst = self.maybe_dst(&operands[0])?;
        Ok(Op::Runtime {
            routine: Routine::Video,
            code: code.pack(),
            src: vec![(a, Type::B32), (b, Type::B32), (c, Type::B32)],
            dst: vec![(dst, Type::B32)],
        })
    }

    /// `add.u16x2` and its kind.
    pub(crate) fn half_words(&mut self, name: &str, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let signed = form.take("s16x2");
        form.take("u16x2");
        form.done()?;
        let op = match name {
            "add" => VideoOp::Add,
            "min" => VideoOp::Min,
            "max" => VideoOp::Max,
            _ => return CheckError::unsupported("pairs of half-words here"),
        };
        expect(operands, 3)?;
        // Zero instead of negative numbers: what clamping to numbers without a sign does.
        let code = VideoCode {
            op,
            second: Second::None,
            lanes: 2,
            signed: [signed && !form.mods.relu, signed, signed],
            saturate: form.mods.relu,
            wrap: false,
            parts: [0, 0],
            scale: 0,
        };
        let (a, b) = (self.value(&operands[1], Type::B32)?, self.value(&operands[2], Type::B32)?);
        Ok(Op::Runtime {
            routine: Routine::Video,
            code: code.pack(),
            src: vec![(a, Type::B32), (b, Type::B32), (Value::Bits(0), Type::B32)],
            dst: vec![(self.maybe_dst(&operands[0])?, Type::B32)],
        })
    }

    /// `r`, `r.b2` or `r.h1`
    fn part(&self, operand: &Operand<'a>) -> Result<(Value, u8)> {
        let Operand::Component(name, part) = operand else {
            return Ok((self.value(operand, Type::B32)?, 0));
        };
        let parts = (1..).zip(["b0", "b1", "b2", "b3", "h0", "h1"]);
        let Some((number, _)) = parts.into_iter().find(|(_, known)| known == part) else {
            return CheckError::unsupported(format!("part .{part}"));
        };
        Ok((Value::Reg(self.register(name)?), number))
    }

    /// `cvt.pack.sat.u8.s32.b32 d, a, b, c`
    pub(crate) fn convert_pack(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let narrow = form.words.iter().position(|word| matches!(*word, "s4" | "u4" | "s2" | "u2"));
        let narrow = narrow.map(|at| form.words.remove(at));
        form.done()?;
        let (bits, signed) = match (narrow, form.types.first()) {
            (Some(word), _) => (u64::from(word.as_bytes()[1] - b'0'), word.starts_with('s')),
            (None, Some(ty)) if ty.bits() <= 16 => (u64::from(ty.bits()), ty.is_signed()),
            _ => return CheckError::invalid("the types do not match"),
        };
        let third = operands.len() == 4;
        if !third {
            expect(operands, 3)?;
        }
        let c = if third { self.value(&operands[3], Type::B32)? } else { Value::Bits(0) };
        let (a, b) = (self.value(&operands[1], Type::S32)?, self.value(&operands[2], Type::S32)?);
        Ok(Op::Runtime {
            routine: Routine::ConvertPack,
            code: bits | u64::from(signed) << 8 | u64::from(third) << 9,
            src: vec![(a, Type::S32), (b, Type::S32), (c, Type::B32)],
            dst: vec![(self.maybe_dst(&operands[0])?, Type::B32)],
        })
    }
}
