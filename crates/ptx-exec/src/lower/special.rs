//! Special registers.

use std::mem::offset_of;

use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx_passes::ir::{Relation, Special};
use ptx_passes::reach::RESERVED_SHARED;

use super::{Lower, trusted};
use crate::context::Context;
use crate::helpers::Helper;

impl Lower<'_, '_> {
    /// The value of a special register, in its natural width.
    pub(crate) fn special(&mut self, special: Special) -> Value {
        let word = |axis: u8| usize::from(axis) * 4;
        match special {
            Special::Tid(axis) => match self.thread {
                Some(thread) => thread[usize::from(axis.min(2))],
                None => self.moving(offset_of!(Context, thread) + word(axis)),
            },
            Special::Ntid(axis) => self.field(types::I32, offset_of!(Context, block_size) + word(axis)),
            Special::Ctaid(axis) => self.field(types::I32, offset_of!(Context, block_index) + word(axis)),
            Special::Nctaid(axis) => self.field(types::I32, offset_of!(Context, grid_size) + word(axis)),
            Special::LaneId => {
                let linear = self.linear();
                self.b.ins().band_imm_u(linear, 31)
            }
            Special::WarpId => {
                let linear = self.linear();
                self.b.ins().ushr_imm_u(linear, 5)
            }
            Special::NWarpId => self.int(types::I32, 32),
            Special::SmId => self.int(types::I32, 0),
            Special::NSmId => self.int(types::I32, 1),
            Special::GridId => self.int(types::I64, 1),
            Special::LaneMask(relation) => self.lane_mask(relation),
            Special::GlobalTimer => self.clock(0),
            Special::GlobalTimerLo => self.clock_half(0, false),
            Special::GlobalTimerHi => self.clock_half(0, true),
            Special::Clock64 => self.clock(1),
            Special::Clock => self.clock_half(1, false),
            Special::ClockHi => self.clock_half(1, true),
            Special::DynamicShared => self.field(types::I32, offset_of!(Context, dynamic_shared)),
            Special::TotalShared => self.field(types::I32, offset_of!(Context, shared_size)),
            Special::ReservedShared(place) => {
                let size = self.field(types::I32, offset_of!(Context, shared_size));
                self.b.ins().iadd_imm_s(size, i64::from(place) - i64::from(RESERVED_SHARED))
            }
            Special::Workspace(upper) => {
                let address = self.field(types::I64, offset_of!(Context, workspace));
                let shifted = if upper { self.b.ins().ushr_imm_u(address, 32) } else { address };
                self.b.ins().ireduce(types::I32, shifted)
            }
            Special::Constant(value) => self.int(types::I32, i64::from(value)),
        }
    }

    /// The number of the thread in its block.
    fn linear(&mut self) -> Value {
        match self.thread {
            Some(thread) => thread[3],
            None => self.moving(offset_of!(Context, linear)),
        }
    }

    /// A field that differs from thread to thread.
    fn moving(&mut self, offset: usize) -> Value {
        self.b.ins().load(types::I32, trusted(), self.context, offset as i32)
    }

    fn clock(&mut self, which: i64) -> Value {
        let which = self.int(types::I32, which);
        self.ask(Helper::Clock, &[which], types::I64)
    }

    fn clock_half(&mut self, which: i64, high: bool) -> Value {
        let time = self.clock(which);
        let shifted = if high { self.b.ins().ushr_imm_u(time, 32) } else { time };
        self.b.ins().ireduce(types::I32, shifted)
    }

    fn lane_mask(&mut self, relation: Relation) -> Value {
        let lane = self.special(Special::LaneId);
        let one = self.int(types::I32, 1);
        let own = self.b.ins().ishl(one, lane);
        let below = self.b.ins().iadd_imm_s(own, -1);
        match relation {
            Relation::Eq => own,
            Relation::Lt => below,
            Relation::Le => self.b.ins().bor(own, below),
            Relation::Ge => self.b.ins().bnot(below),
            Relation::Gt => {
                let not_above = self.b.ins().bor(own, below);
                self.b.ins().bnot(not_above)
            }
        }
    }
}
