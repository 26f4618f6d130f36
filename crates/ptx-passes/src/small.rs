//! Conversions to and from floats of fewer bits than a half, and to tf32.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::{Op, Rounding, Routine, Type};

type Result<T> = std::result::Result<T, CheckError>;

/// Formats, by the number that compiled code passes.
pub const FORMATS: [&str; 3] = ["tf32", "e4m3x2", "e5m2x2"];

// What `cvt` is told: bits 0 to 3 the format, and these.

/// From the format instead of to it.
pub const BACK: u64 = 1 << 4;
/// Zero instead of negative numbers.
pub const RELU: u64 = 1 << 5;
/// Ties go away from zero.
pub const TIES_AWAY: u64 = 1 << 6;
/// Rounds toward zero.
pub const TO_ZERO: u64 = 1 << 7;
/// The other side is a pair of halves.
pub const HALVES: u64 = 1 << 8;

impl<'a> Builder<'_, 'a> {
    /// `None` when the conversion is an ordinary one.
    pub(crate) fn convert_small(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Option<Op>> {
        let Some(format) = FORMATS.iter().position(|name| form.words.contains(name)) else { return Ok(None) };
        // The type that is written last is the source.
        let from_format = form.modifiers.last() == Some(&FORMATS[format]);
        let known = matches!(
            (format, from_format, &form.types[..]),
            (0, false, [Type::F32]) | (1.., false, [Type::F32 | Type::F16x2]) | (1.., true, [Type::F16x2])
        );
        form.take(FORMATS[format]);
        let ties_away = form.take("rna");
        form.take("satfinite");
        form.done()?;
        if !known {
            return CheckError::unsupported("this conversion");
        }
        let ty = form.ty()?;
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        let code = format as u64
            | flag(from_format, BACK)
            | flag(form.mods.relu, RELU)
            | flag(ties_away, TIES_AWAY)
            | flag(form.mods.rounding == Rounding::Zero, TO_ZERO)
            | flag(ty == Type::F16x2, HALVES);
        let (src, dst) = if from_format {
            expect(operands, 2)?;
            (vec![(self.value(&operands[1], Type::B16)?, Type::B16)], (self.maybe_dst(&operands[0])?, Type::B32))
        } else if format == 0 || ty != Type::F32 {
            expect(operands, 2)?;
            let dst = if format == 0 { Type::B32 } else { Type::B16 };
            (vec![(self.value(&operands[1], ty)?, ty)], (self.maybe_dst(&operands[0])?, dst))
        } else {
            expect(operands, 3)?;
            let src = [&operands[2], &operands[1]].map(|operand| self.value(operand, ty));
            let [low, high] = src;
            (vec![(low?, Type::F32), (high?, Type::F32)], (self.maybe_dst(&operands[0])?, Type::B16))
        };
        Ok(Some(Op::Runtime { routine: Routine::ConvertSmall, code, src, dst: vec![dst] }))
    }
}
