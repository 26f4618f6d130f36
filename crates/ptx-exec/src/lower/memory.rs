//! Loads, stores and atomics. Every address is checked before it is used.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, BlockArg, InstBuilder, MemFlagsData, Value, types};
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{Address, AtomicOp, Base, Reg, Space, Symbol, Type};

use super::registers::{machine, untyped};
use super::sanitize::single;
use super::{Lower, trusted};
use crate::context::Context;
use crate::helpers::{Helper, READ_ONLY, SIZE_OF_ACCESS, access_info};
use crate::window;
use crate::{atomics, marks};

// The check below takes the window for one power of two.
const _: () = assert!(window::BASE == window::SIZE && window::SIZE.is_power_of_two());

/// A checked place in memory.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(super) pointer: Value,
    pub(super) offset: i32,
    pub(super) flags: MemFlagsData,
}

impl Place {
    pub(crate) fn new(pointer: Value, offset: i32, flags: MemFlagsData) -> Place {
        Place { pointer, offset, flags }
    }
}

impl Lower<'_, '_> {
    /// The native address of an access of `size` bytes, after all checks.
    fn place(&mut self, space: Space, address: Address, size: u32, write: bool) -> Place {
        let offset = address.offset;
        match address.base {
            // Checked when the instruction was decoded: inside of the slot.
            Base::Slot(index) => {
                let pointer = self.b.ins().stack_addr(types::I64, self.slots[index], offset as i32);
                return Place { pointer, offset: 0, flags: trusted() };
            }
            Base::Argument(index) => return self.native_param(self.function.signature.returns.len() + index, offset),
            Base::Result(index) => return self.native_param(index, offset),
            Base::Symbol(Symbol::Param(base)) if space == Space::Param => {
                // Checked when the instruction was decoded: inside of the buffer, whose size the launch checks.
                let pointer = self.field(types::I64, offset_of!(Context, params));
                return Place { pointer, offset: (i64::from(base) + offset) as i32, flags: super::constant() };
            }
            _ => {}
        }
        if let Some(place) = self.merged_place(address) {
            return place;
        }
        let info = access_info(size, space as u32, self.line) | if write { 0 } else { READ_ONLY };
        let checked = MemFlagsData::new();
        match space {
            Space::Global | Space::Const => {
                let address = self.effective(address, types::I64);
                self.check_window(address, size, info);
                Place { pointer: address, offset: 0, flags: checked }
            }
            Space::Generic => {
                let address = self.effective(address, types::I64);
                let pointer = self.generic(address, size, info);
                Place { pointer, offset: 0, flags: checked }
            }
            Space::Shared => {
                self.bounded(address, size, info, offset_of!(Context, shared), offset_of!(Context, shared_size))
            }
            Space::Local => {
                self.bounded(address, size, info, offset_of!(Context, local), offset_of!(Context, local_size))
            }
            Space::Param => {
                // A computed address: the offset in the parameter buffer.
                let offset = self.effective(address, types::I64);
                let limit = self.int(types::I64, i64::from(self.function.param_bytes));
                let rotated = self.rotate(offset, size);
                let room = self.b.ins().ushr_imm_u(limit, i64::from(size.trailing_zeros()));
                let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, rotated, room);
                self.check(ok, offset, info);
                let base = self.field(types::I64, offset_of!(Context, params));
                let pointer = self.b.ins().iadd(base, offset);
                Place { pointer, offset: 0, flags: trusted() }
            }
        }
    }

    fn native_param(&mut self, index: usize, offset: i64) -> Place {
        let Some(entry) = self.b.func.layout.entry_block() else {
            return Place { pointer: self.context, offset: 0, flags: trusted() };
        };
        let pointer = self.b.block_params(entry)[index + 1];
        Place { pointer, offset: offset as i32, flags: trusted() }
    }

    /// Base plus offset. Addresses in 32-bit registers wrap in 32 bits.
    pub(crate) fn effective(&mut self, address: Address, wanted: cranelift_codegen::ir::Type) -> Value {
        let value = match address.base {
            Base::Reg(reg) => {
                let ty = untyped(self.body.registers[reg as usize]);
                let value = self.get(Operand::Reg(reg), ty);
                if address.offset == 0 { value } else { self.add_offset(value, address.offset) }
            }
            Base::Symbol(symbol) => self.symbol(symbol, address.offset),
            _ => self.int(types::I64, address.offset),
        };
        self.fit(value, wanted, false)
    }

    fn add_offset(&mut self, value: Value, offset: i64) -> Value {
        let class = self.b.func.dfg.value_type(value);
        if class.bits() > 64 {
            return value;
        }
        let offset = self.int(class, offset);
        self.b.ins().iadd(value, offset)
    }

    /// Brings the bits that must be zero in an aligned address to the top, where they make it huge.
    pub(crate) fn rotate(&mut self, value: Value, size: u32) -> Value {
        if size <= 1 { value } else { self.b.ins().rotr_imm_u(value, i64::from(size.trailing_zeros())) }
    }

    /// 1 when an aligned access at `address` is in the window: one rotate, one shift, one comparison.
    pub(crate) fn in_window(&mut self, address: Value, size: u32) -> Value {
        let rotated = self.rotate(address, size);
        let shift = window::BASE.trailing_zeros() - size.trailing_zeros();
        let top = self.b.ins().ushr_imm_u(rotated, i64::from(shift));
        self.b.ins().icmp_imm_u(IntCC::Equal, top, 1)
    }

    fn check_window(&mut self, address: Value, size: u32, info: i64) {
        let ok = self.in_window(address, size);
        self.check(ok, address, info);
        self.check_marks(address, info);
    }

    /// In kernels that are checked: goes on only where the place in the window is allocated.
    fn check_marks(&mut self, address: Value, info: i64) {
        if !self.unit.checked {
            return;
        }
        let marks = self.field(types::I64, offset_of!(Context, marks));
        let granule = self.b.ins().ushr_imm_u(address, i64::from(marks::GRANULE.trailing_zeros()));
        let place = self.b.ins().ishl_imm_u(granule, 1);
        let place = self.b.ins().iadd(marks, place);
        let word = self.b.ins().uload16(types::I32, trusted(), place, 0);
        let [some, bad, good] = [(); 3].map(|()| self.b.create_block());
        self.b.set_cold_block(bad);
        self.b.ins().brif(word, some, &[], good, &[]);
        // An aligned access lies in one granule: does it end before the unallocated part?
        self.b.switch_to_block(some);
        let low = self.b.ins().ireduce(types::I32, address);
        let low = self.b.ins().band_imm_u(low, marks::GRANULE as i64 - 1);
        let sum = self.b.ins().iadd(low, word);
        let size = info & SIZE_OF_ACCESS;
        let fits = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, sum, marks::GRANULE as i64 - size);
        self.b.ins().brif(fits, good, &[], bad, &[]);
        self.b.switch_to_block(bad);
        let info = self.int(types::I64, info);
        self.helper(Helper::Marked, &[self.context, address, info]);
        self.b.ins().jump(good, &[]);
        self.b.switch_to_block(good);
    }

    pub(crate) fn check(&mut self, ok: Value, address: Value, info: i64) {
        let fault = self.fault_target();
        let good = self.b.create_block();
        let info = self.int(types::I64, info & !READ_ONLY);
        self.b.ins().brif(ok, good, &[], fault, &[BlockArg::Value(address), BlockArg::Value(info)]);
        self.b.switch_to_block(good);
    }

    /// A generic address: in the window as it is, elsewhere through a helper that knows the other spaces.
    fn generic(&mut self, address: Value, size: u32, info: i64) -> Value {
        let ok = self.in_window(address, size);
        let (good, other) = (self.b.create_block(), self.b.create_block());
        self.b.append_block_param(good, types::I64);
        self.b.set_cold_block(other);
        if self.unit.checked {
            let inside = self.b.create_block();
            self.b.ins().brif(ok, inside, &[], other, &[]);
            self.b.switch_to_block(inside);
            self.check_marks(address, info);
            self.b.ins().jump(good, &[BlockArg::Value(address)]);
        } else {
            self.b.ins().brif(ok, good, &[BlockArg::Value(address)], other, &[]);
        }
        self.b.switch_to_block(other);
        let info = self.int(types::I64, info);
        let pointer = self.ask(Helper::Resolve, &[self.context, address, info], types::I64);
        self.b.ins().jump(good, &[BlockArg::Value(pointer)]);
        self.b.switch_to_block(good);
        self.b.block_params(good)[0]
    }

    /// Shared or local memory: an offset below a limit, both multiples of 16 so that the limit divides.
    fn bounded(&mut self, address: Address, size: u32, info: i64, base: usize, limit: usize) -> Place {
        let narrow = match address.base {
            Base::Reg(reg) => self.body.registers[reg as usize].bits() == 32,
            _ => false,
        };
        let class = if narrow { types::I32 } else { types::I64 };
        let offset = self.effective(address, class);
        let rotated = self.rotate(offset, size);
        let limit = self.field(types::I64, limit);
        let room = self.b.ins().ushr_imm_u(limit, i64::from(size.trailing_zeros()));
        let room = self.fit(room, class, false);
        let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, rotated, room);
        let wide = self.fit(offset, types::I64, false);
        self.check(ok, wide, info);
        let in_frame = if base == offset_of!(Context, local) { self.local_in_frame() } else { None };
        let base = in_frame.unwrap_or_else(|| self.field(types::I64, base));
        let pointer = self.b.ins().iadd(base, wide);
        Place { pointer, offset: 0, flags: trusted() }
    }

    pub(crate) fn load(&mut self, space: Space, ty: Type, strong: bool, dst: &[Option<Reg>], address: Address) {
        let bytes = ty.bytes();
        self.lockstep(space, address);
        let place = self.place(space, address, bytes * dst.len() as u32, false);
        for (index, reg) in dst.iter().enumerate().filter(|(_, reg)| reg.is_some()) {
            let address = Address { offset: address.offset + index as i64 * i64::from(bytes), ..address };
            let touch = self.touch_of(space, bytes).reads().strong(strong).acquires(reg.is_some());
            self.touch(space, address, touch, None);
        }
        if strong {
            return self.strong_load(place, ty, dst);
        }
        for (index, reg) in dst.iter().enumerate() {
            let class = self.memory_class(ty, *reg);
            let at = place.offset + index as i32 * bytes as i32;
            let value = self.b.ins().load(class, place.flags, place.pointer, at);
            if let Some(reg) = reg {
                self.set(*reg, value, ty);
            }
        }
    }

    /// Loads straight into the kind of machine register where the value will live.
    fn memory_class(&self, ty: Type, reg: Option<Reg>) -> cranelift_codegen::ir::Type {
        let class = machine(ty);
        match reg.map(|reg| self.classes[reg as usize]) {
            Some(home) if home.bits() == class.bits() => home,
            _ => class,
        }
    }

    pub(crate) fn store(&mut self, space: Space, ty: Type, strong: bool, src: &[Operand], address: Address) {
        let bytes = ty.bytes();
        self.lockstep(space, address);
        let touch = self.touch_of(space, bytes * src.len() as u32).writes().strong(strong);
        if strong {
            let words = self.strong_words(ty, src);
            let place = self.place(space, address, bytes * src.len() as u32, true);
            self.touch(space, address, touch, single(src, ty));
            return self.strong_store(place, &words);
        }
        let values: Vec<Value> = src
            .iter()
            .map(|operand| match operand {
                Operand::Reg(reg) if self.memory_class(ty, Some(*reg)) != machine(ty) => {
                    let float = if ty.bits() == 32 { Type::F32 } else { Type::F64 };
                    let as_home = if self.classes[*reg as usize].is_float() { float } else { untyped(ty) };
                    self.get(*operand, as_home)
                }
                _ => self.get(*operand, ty),
            })
            .collect();
        let place = self.place(space, address, bytes * src.len() as u32, true);
        self.touch(space, address, touch, single(src, ty));
        for (index, value) in values.into_iter().enumerate() {
            let at = place.offset + index as i32 * bytes as i32;
            self.b.ins().store(place.flags, value, place.pointer, at);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(crate) fn atomic(
        &mut self,
        space: Space,
        op: AtomicOp,
        ty: Type,
        dst: Option<Reg>,
        address: Address,
        src: Operand,
        swap: Option<Operand>,
    ) {
        self.lockstep(space, address);
        let place = self.place(space, address, ty.bytes(), true);
        let touch = self.touch_of(space, ty.bytes()).reads().writes().strong(true).acquires(dst.is_some());
        self.touch(space, address, touch, None);
        let bits = untyped(ty);
        let operand = self.get(src, bits);
        let swap = swap.map(|value| self.get(value, bits));
        let rmw = match (op, ty.is_signed()) {
            (AtomicOp::Add, _) => Some(AtomicRmwOp::Add),
            (AtomicOp::And, _) => Some(AtomicRmwOp::And),
            (AtomicOp::Or, _) => Some(AtomicRmwOp::Or),
            (AtomicOp::Xor, _) => Some(AtomicRmwOp::Xor),
            (AtomicOp::Exch, _) => Some(AtomicRmwOp::Xchg),
            (AtomicOp::Min, true) => Some(AtomicRmwOp::Smin),
            (AtomicOp::Max, true) => Some(AtomicRmwOp::Smax),
            (AtomicOp::Min, false) => Some(AtomicRmwOp::Umin),
            (AtomicOp::Max, false) => Some(AtomicRmwOp::Umax),
            (AtomicOp::Cas | AtomicOp::Inc | AtomicOp::Dec, _) => None,
        };
        let float = ty.is_float() || ty.is_packed();
        let old = match (op, swap, rmw) {
            (AtomicOp::Cas, Some(swap), _) => self.b.ins().atomic_cas(place.flags, place.pointer, operand, swap),
            (_, _, Some(rmw)) if !float || op == AtomicOp::Exch => {
                self.b.ins().atomic_rmw(machine(bits), place.flags, rmw, place.pointer, operand)
            }
            _ => {
                let Some(code) = atomics::code(op, ty) else { return self.abort(3) };
                self.note_line();
                let code = self.int(types::I32, code);
                let wide = self.fit(operand, types::I64, false);
                let zero = self.int(types::I64, 0);
                let old = self.ask(Helper::Atomic, &[place.pointer, code, wide, zero], types::I64);
                self.fit(old, machine(bits), false)
            }
        };
        if let Some(dst) = dst {
            self.set(dst, old, bits);
        }
    }
}
