//! What the lanes of a warp do together.
//!
//! Every lane is a thread of its own here. Lanes that name the same mask and operation form a group; when all of its
//! lanes have arrived or ended, each gets its answer. Nothing depends on where in the program a lane arrives.

use ptx_passes::ir::WarpOp;
use ptx_passes::matrix::MOVES;

use super::matrix;

/// One operation that lanes have begun.
pub struct Group {
    op: WarpOp,
    mask: u32,
    /// Tells apart where `activemask` is asked; 0 otherwise.
    site: u64,
    arrived: u32,
    fibers: [u32; 32],
    inputs: [Input; 32],
}

/// What a lane brings along.
#[derive(Clone, Copy, Debug, Default)]
pub struct Input {
    pub a: u64,
    pub b: u32,
    pub c: u32,
}

/// Set in the site of lanes that run in lockstep.
pub(crate) const LOCKSTEP: u64 = 1 << 32;

/// A warp.
pub struct Warp {
    /// Lanes that have ended or never were.
    pub exited: u32,
    pub groups: Vec<Group>,
}

impl Warp {
    pub fn new(exited: u32) -> Warp {
        Warp { exited, groups: Vec::new() }
    }

    /// A lane arrives. Its own answer, if it needs not wait; and the fibers that need not wait any longer.
    pub fn arrive(
        &mut self,
        op: WarpOp,
        mask: u32,
        site: u64,
        lane: u32,
        fiber: u32,
        input: Input,
    ) -> (Option<u64>, Vec<(u32, u64)>) {
        let mask = mask | 1 << lane;
        let found = self
            .groups
            .iter()
            .position(|g| g.mask == mask && g.op == op && g.site == site && g.arrived & 1 << lane == 0);
        let index = found.unwrap_or_else(|| {
            self.groups.push(Group::new(op, mask, site));
            self.groups.len() - 1
        });
        let group = &mut self.groups[index];
        group.join(lane, fiber, input);
        if !group.complete(self.exited) {
            return (None, Vec::new());
        }
        let group = self.groups.swap_remove(index);
        group.finish();
        let (mut own, mut others) = (None, Vec::with_capacity(31));
        group.each_answer(|other, answer| match other == lane {
            true => own = Some(answer),
            false => others.push((group.fibers[other as usize], answer)),
        });
        (own, others)
    }

    /// After a lane has ended: groups that waited for it only.
    pub fn complete_groups(&mut self) -> Vec<(u32, u64)> {
        let exited = self.exited;
        self.release(|group| group.complete(exited))
    }

    /// No thread of the block can run: the lanes that asked for the active mask at one place are the active ones.
    pub fn settle(&mut self) -> Vec<(u32, u64)> {
        self.release(|group| group.op == WarpOp::ActiveMask)
    }

    /// As `settle`, where warps run in lockstep: only those lanes go on that come first in the text, so that others meet them
    /// where their ways join.
    pub fn settle_first(&mut self) -> Vec<(u32, u64)> {
        let places = self.groups.iter().filter(|group| group.op == WarpOp::ActiveMask).map(|group| group.site);
        match places.min_by_key(|site| site & !LOCKSTEP) {
            Some(first) => self.release(|group| group.op == WarpOp::ActiveMask && group.site == first),
            None => Vec::new(),
        }
    }

    /// Whether lanes wait for one that ends now, because their mask names it.
    pub fn miss(&self, lane: u32) -> bool {
        let named =
            |group: &Group| !matches!(group.op, WarpOp::ActiveMask | WarpOp::Together) && group.mask >> lane & 1 == 1;
        self.groups.iter().any(|group| named(group) && group.complete(self.exited))
    }

    /// Takes out the groups that are `ready`: their fibers, and what each of them is told.
    fn release(&mut self, ready: impl Fn(&Group) -> bool) -> Vec<(u32, u64)> {
        let mut out = Vec::new();
        let mut index = 0;
        while index < self.groups.len() {
            if ready(&self.groups[index]) {
                let group = self.groups.swap_remove(index);
                group.finish();
                group.each_answer(|lane, answer| out.push((group.fibers[lane as usize], answer)));
            } else {
                index += 1;
            }
        }
        out
    }
}

fn lanes(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

impl Group {
    #[inline]
    pub fn new(op: WarpOp, mask: u32, site: u64) -> Group {
        Group { op, mask, site, arrived: 0, fibers: [0; 32], inputs: [Input::default(); 32] }
    }

    #[inline]
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Lanes that have come.
    #[inline]
    pub fn arrived(&self) -> u32 {
        self.arrived
    }

    #[inline]
    pub fn join(&mut self, lane: u32, fiber: u32, input: Input) {
        self.arrived |= 1 << lane;
        self.fibers[lane as usize] = fiber;
        self.inputs[lane as usize] = input;
    }

    /// Whether no lane is missing, when these lanes have ended.
    #[inline]
    pub fn complete(&self, gone: u32) -> bool {
        (self.arrived | gone) & self.mask == self.mask
    }

    /// The answers of all lanes that have come.
    pub fn each_answer(&self, mut take: impl FnMut(u32, u64)) {
        let same = self.op.answers_all_alike().then(|| self.answer(self.arrived.trailing_zeros()));
        lanes(self.arrived).for_each(|lane| take(lane, same.unwrap_or_else(|| self.answer(lane))));
    }

    /// What is done once, when all lanes have come. A routine needs all of them.
    fn finish(&self) {
        if self.op == WarpOp::Together && self.arrived == !0 {
            let lanes = self.inputs.map(|input| input.a as *mut u64);
            // SAFETY: every lane waits in the routine with this code, its words on its stack.
            unsafe {
                if self.site & MOVES == 0 {
                    matrix::multiply(self.site, &lanes);
                } else {
                    matrix::move_matrices(self.site, &lanes);
                }
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = u64> + '_ {
        lanes(self.arrived).map(|lane| self.inputs[lane as usize].a)
    }

    /// The result in the low half, the predicate in bit 32.
    #[inline]
    fn answer(&self, lane: u32) -> u64 {
        let input = self.inputs[lane as usize];
        let signed = |value: u64| value as u32 as i32;
        let vote = |yes: bool| u64::from(yes);
        match self.op {
            WarpOp::ShflUp | WarpOp::ShflDown | WarpOp::ShflBfly | WarpOp::ShflIdx => self.shuffle(lane),
            WarpOp::VoteAll => vote(self.values().all(|v| v != 0)),
            WarpOp::VoteAny => vote(self.values().any(|v| v != 0)),
            WarpOp::VoteUni => vote(self.values().all(|v| (v != 0) == (input.a != 0))),
            WarpOp::Ballot => {
                let yes = lanes(self.arrived).filter(|lane| self.inputs[*lane as usize].a != 0);
                u64::from(yes.fold(0u32, |mask, lane| mask | 1 << lane))
            }
            WarpOp::Sync | WarpOp::Together => 0,
            WarpOp::ActiveMask => u64::from(self.arrived),
            WarpOp::MatchAny => u64::from(self.equal_to(input.a)),
            WarpOp::MatchAll => {
                let all = self.equal_to(input.a) == self.arrived;
                if all { u64::from(self.arrived) | 1 << 32 } else { 0 }
            }
            WarpOp::ReduxAdd => u64::from(self.values().fold(0u32, |sum, v| sum.wrapping_add(v as u32))),
            WarpOp::ReduxMinU => self.values().min().unwrap_or(0),
            WarpOp::ReduxMaxU => self.values().max().unwrap_or(0),
            WarpOp::ReduxMinS => u64::from(self.values().map(signed).min().unwrap_or(0) as u32),
            WarpOp::ReduxMaxS => u64::from(self.values().map(signed).max().unwrap_or(0) as u32),
            WarpOp::ReduxAnd => self.values().fold(!0, |all, v| all & v),
            WarpOp::ReduxOr => self.values().fold(0, |all, v| all | v),
            WarpOp::ReduxXor => self.values().fold(0, |all, v| all ^ v),
            WarpOp::Elect => {
                let leader = self.arrived.trailing_zeros();
                u64::from(leader) | vote(leader == lane) << 32
            }
        }
    }

    fn equal_to(&self, value: u64) -> u32 {
        lanes(self.arrived)
            .filter(|lane| self.inputs[*lane as usize].a == value)
            .fold(0, |mask, lane| mask | 1 << lane)
    }

    /// The rules of `shfl`: c holds the clamp in bits 0 to 4 and the segment mask in bits 8 to 12.
    #[inline]
    fn shuffle(&self, lane: u32) -> u64 {
        let Input { b, c, .. } = self.inputs[lane as usize];
        let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
        let max_lane = lane & segment | clamp & !segment;
        let min_lane = lane & segment;
        let (source, inside) = match self.op {
            WarpOp::ShflUp => (lane.wrapping_sub(b), lane as i32 - b as i32 >= max_lane as i32),
            WarpOp::ShflDown => (lane + b, lane + b <= max_lane),
            WarpOp::ShflBfly => (lane ^ b, lane ^ b <= max_lane),
            _ => (min_lane | b & !segment, min_lane | b & !segment <= max_lane),
        };
        let source = if inside { source & 31 } else { lane };
        // A lane that does not take part has no defined value; ours is as good as any.
        let known = if self.arrived & 1 << source != 0 { source } else { lane };
        self.inputs[known as usize].a & 0xffff_ffff | u64::from(inside) << 32
    }
}
