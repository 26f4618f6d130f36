//! Accesses that are checked together.
//!
//! Unrolled loops read many places at constant distances from one register. When nothing in between changes the register
//! or lets other threads run, one check of the lowest and the highest place stands for all of them. All of them are
//! certain to be executed once the first is: a fault comes a little earlier than it would, and ends the kernel anyway.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, types};
use ptx_passes::ir::{Address, Base, Inst, Op, Reg, Space, Type};
use ptx_passes::{live, pauses};

use super::memory::Place;
use super::{Lower, trusted};
use crate::context::Context;
use crate::helpers::{READ_ONLY, access_info};
use crate::window;

/// Accesses of one width, relative to one register.
pub(super) struct Group {
    space: Space,
    reg: Reg,
    size: u32,
    lowest: i64,
    highest: i64,
    count: u32,
    /// The native address of the lowest place, once it is checked.
    pointer: Option<Value>,
}

/// The farthest that places of a group may be apart.
const MAX_SPAN: i64 = 1 << 20;

/// The groups of a basic block.
#[derive(Default)]
pub(super) struct Plan {
    groups: Vec<Group>,
    /// By instruction.
    of: Vec<Option<usize>>,
}

fn access(op: &Op) -> Option<(Space, Type, usize, Address)> {
    match op {
        Op::Load { space, ty, dst, address, volatile: false } => Some((*space, *ty, dst.len(), *address)),
        Op::Store { space, ty, src, address, volatile: false } => Some((*space, *ty, src.len(), *address)),
        _ => None,
    }
}

impl Plan {
    /// The plan of a block. Where accesses are `checked`, each to global memory is on its own.
    pub(super) fn of(insts: &[Inst], checked: bool) -> Plan {
        let mut plan = Plan { groups: Vec::new(), of: vec![None; insts.len()] };
        let mut open: Vec<usize> = Vec::new();
        for (at, inst) in insts.iter().enumerate() {
            if let (None, Some((space, ty, lanes, address))) = (inst.guard, access(&inst.op))
                && let Base::Reg(reg) = address.base
                && (space == Space::Shared || space == Space::Global && !checked)
            {
                plan.add(&mut open, at, space, reg, ty.bytes() * lanes as u32, address.offset);
            }
            // What may end the thread ends the certainty that the accesses behind it happen.
            if pauses::at(inst) || matches!(inst.op, Op::Runtime { .. } | Op::Call { .. } | Op::Trap) {
                open.clear();
            }
            live::writes(&inst.op, &mut |reg| open.retain(|group| plan.groups[*group].reg != reg));
        }
        // One check for two is no gain where it takes two comparisons.
        let worth = |group: &Group| group.count >= if group.space == Space::Shared { 2 } else { 3 };
        for slot in &mut plan.of {
            *slot = slot.filter(|group| worth(&plan.groups[*group]));
        }
        plan
    }

    fn add(&mut self, open: &mut Vec<usize>, at: usize, space: Space, reg: Reg, size: u32, offset: i64) {
        let fits = |group: &Group| {
            let (low, high) = (group.lowest.min(offset), group.highest.max(offset));
            group.space == space
                && group.reg == reg
                && group.size == size
                && (offset - group.lowest) % i64::from(size) == 0
                && high.saturating_sub(low) <= MAX_SPAN
        };
        let found = open.iter().copied().find(|group| fits(&self.groups[*group]));
        let number = found.unwrap_or_else(|| {
            let group = Group { space, reg, size, lowest: offset, highest: offset, count: 0, pointer: None };
            self.groups.push(group);
            open.push(self.groups.len() - 1);
            self.groups.len() - 1
        });
        let group = &mut self.groups[number];
        group.lowest = group.lowest.min(offset);
        group.highest = group.highest.max(offset);
        group.count += 1;
        self.of[at] = Some(number);
    }

    /// The group of an instruction.
    fn group(&mut self, at: usize) -> Option<&mut Group> {
        let number = (*self.of.get(at)?)?;
        self.groups.get_mut(number)
    }
}

impl Lower<'_, '_> {
    /// The place of an access that is checked with others.
    pub(crate) fn merged_place(&mut self, address: Address) -> Option<Place> {
        let group = self.plan.group(self.at)?;
        let (space, reg, size) = (group.space, group.reg, group.size);
        let (lowest, span) = (group.lowest, group.highest - group.lowest);
        let pointer = match group.pointer {
            Some(pointer) => pointer,
            None => {
                let lowest = Address { base: Base::Reg(reg), offset: lowest };
                let pointer = if space == Space::Shared {
                    self.shared_range(lowest, size, span)
                } else {
                    self.global_range(lowest, size, span)
                };
                if let Some(group) = self.plan.group(self.at) {
                    group.pointer = Some(pointer);
                }
                pointer
            }
        };
        let flags = if space == Space::Shared { trusted() } else { MemFlagsData::new() };
        Some(Place::new(pointer, (address.offset - lowest) as i32, flags))
    }

    fn shared_range(&mut self, lowest: Address, size: u32, span: i64) -> Value {
        let Base::Reg(reg) = lowest.base else { return self.context };
        let narrow = self.body.registers[reg as usize].bits() == 32;
        let class = if narrow { types::I32 } else { types::I64 };
        let info = access_info(size, Space::Shared as u32, self.line);
        let offset = self.effective(lowest, class);
        let rotated = self.rotate(offset, size);
        let limit = self.field(types::I64, offset_of!(Context, shared_size));
        let room = self.b.ins().ushr_imm_u(limit, i64::from(size.trailing_zeros()));
        let room = self.fit(room, class, false);
        // Places above the lowest must have room too; without any room nothing is below it.
        let above = self.int(class, span / i64::from(size));
        let most = self.b.ins().umax(room, above);
        let room = self.b.ins().isub(most, above);
        let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, rotated, room);
        let wide = self.fit(offset, types::I64, false);
        self.check_range(ok, wide, (size, span), limit, info);
        let base = self.field(types::I64, offset_of!(Context, shared));
        self.b.ins().iadd(base, wide)
    }

    /// As `check`, for places from `lowest` on: what is reported is the one that is wrong, as far as that can be said.
    fn check_range(&mut self, ok: Value, lowest: Value, (size, span): (u32, i64), limit: Value, info: i64) {
        let (good, bad, fault) = (self.b.create_block(), self.b.create_block(), self.fault_target());
        self.b.set_cold_block(bad);
        self.b.ins().brif(ok, good, &[], bad, &[]);
        self.b.switch_to_block(bad);
        // Where the lowest is inside, those behind the limit are not: the first of them that is aligned.
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, lowest, limit);
        let aligned = self.b.ins().band_imm_s(lowest, i64::from(size) - 1);
        let aligned = self.b.ins().icmp_imm_u(IntCC::Equal, aligned, 0);
        let highest = self.b.ins().iadd_imm_s(lowest, span);
        let limit = self.b.ins().band_imm_s(limit, -i64::from(size));
        let outside = self.b.ins().umin(highest, limit);
        let behind = self.b.ins().band(inside, aligned);
        let address = self.b.ins().select(behind, outside, lowest);
        let info = self.int(types::I64, info & !READ_ONLY);
        self.b.ins().jump(fault, &[BlockArg::Value(address), BlockArg::Value(info)]);
        self.b.switch_to_block(good);
    }

    fn global_range(&mut self, lowest: Address, size: u32, span: i64) -> Value {
        let info = access_info(size, Space::Global as u32, self.line);
        let address = self.effective(lowest, types::I64);
        let first = self.in_window(address, size);
        let last = self.b.ins().iadd_imm_s(address, span);
        let top = self.b.ins().ushr_imm_u(last, i64::from(window::BASE.trailing_zeros()));
        let last = self.b.ins().icmp_imm_u(IntCC::Equal, top, 1);
        let ok = self.b.ins().band(first, last);
        self.check(ok, address, info);
        address
    }
}
