//! Typed instructions to Cranelift's.
//!
//! A kernel becomes one function that runs the threads of its block one after another: the loop over threads is part
//! of the code, so that a thread costs no call. Registers are SSA variables. Parameters and results of device
//! functions are passed as pointers to stack slots; every device function returns whether the thread has ended.
//! Hostile code ends in `fault` blocks, which never come back.

mod arith;
mod call;
mod convert;
mod float;
mod flow;
mod int;
pub(crate) mod interleave;
mod memory;
mod merge;
mod registers;
mod runtime;
mod sanitize;
mod special;
mod strong;
mod sync;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::Imm64;
use cranelift_codegen::ir::{
    AbiParam, Block, FuncRef, Function, InstBuilder, MemFlagsData, SigRef, Signature, SourceLoc, StackSlot, TrapCode,
    Type, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};
use ptx_passes::ir;
use ptx_passes::pauses::Pauses;
use ptx_passes::reach::Reach;

use super::helpers::{Arg, Helper};
use super::sanitize::Checks;

/// What the functions of one kernel share.
pub(crate) struct Unit<'m> {
    pub module: &'m ir::Module,
    pub reach: &'m Reach,
    /// Offsets of shared variables by index.
    pub shared: Vec<Option<u32>>,
    /// Whether threads of a block may wait for each other.
    pub waits: bool,
    /// Whether a thread always runs to its end before the next one starts: no waiting, no loop, no call.
    pub straight: bool,
    /// Numbers of signatures, for the check of indirect calls.
    pub signatures: Vec<ir::Signature>,
    /// Where threads pause, if one fiber interleaves all threads of a block.
    pub pauses: Option<Pauses>,
    /// Then: bytes of a thread's frame, and where local memory begins in it.
    pub frame: Option<(u32, u32)>,
    pub has_fma: bool,
    /// Whether each access to global memory looks for marks.
    pub checked: bool,
    /// What the sanitizer looks for.
    pub checks: Checks,
}

impl Unit<'_> {
    /// The number of a signature; sizes count, alignment does not.
    pub(crate) fn signature_number(&self, signature: &ir::Signature) -> Option<u64> {
        let sizes = |slots: &[ir::Slot]| slots.iter().map(|slot| slot.size).collect::<Vec<_>>();
        let same = |other: &ir::Signature| {
            sizes(&other.returns) == sizes(&signature.returns) && sizes(&other.params) == sizes(&signature.params)
        };
        self.signatures.iter().position(same).map(|number| number as u64 + 1)
    }
}

/// The machine signature of a device function, or of a kernel's entry point.
pub(crate) fn native_signature(function: &ir::Function) -> Signature {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.push(AbiParam::special(types::I64, cranelift_codegen::ir::ArgumentPurpose::VMContext));
    if !function.entry {
        pointers(&mut signature, &function.signature);
    }
    signature
}

/// Adds a pointer for each result and parameter, and the flag that says whether the thread has ended.
fn pointers(signature: &mut Signature, shape: &ir::Signature) {
    for _ in 0..shape.returns.len() + shape.params.len() {
        signature.params.push(AbiParam::new(types::I64));
    }
    signature.returns.push(AbiParam::new(types::I32));
}

/// Memory that is there for certain.
fn trusted() -> MemFlagsData {
    MemFlagsData::trusted()
}

/// Memory that is there and never changes while the code runs.
fn constant() -> MemFlagsData {
    MemFlagsData::trusted().with_readonly().with_can_move()
}

/// One function being lowered.
pub(crate) struct Lower<'f, 'm> {
    b: FunctionBuilder<'f>,
    unit: &'f Unit<'m>,
    function: &'f ir::Function,
    body: &'f ir::Body,
    context: Value,
    variables: Vec<Option<Variable>>,
    classes: Vec<Type>,
    blocks: Vec<Block>,
    slots: Vec<StackSlot>,
    helpers: Vec<(Helper, SigRef)>,
    functions: Vec<(usize, FuncRef)>,
    /// Where threads end: in kernels the head of the thread loop's next iteration.
    exit: Block,
    /// Reports a bad access: address and info are its parameters.
    fault: Option<Block>,
    /// Local address of this function's frame.
    frame: Option<Value>,
    /// In kernels: the thread's coordinates and its number in the block.
    thread: Option<[Value; 4]>,
    /// Present where threads are interleaved.
    interleaved: Option<interleave::Interleaved>,
    /// Which accesses of the current block are checked together.
    plan: merge::Plan,
    /// The current instruction in its block.
    at: usize,
    line: u32,
}

impl<'f, 'm> Lower<'f, 'm> {
    /// Lowers `function` into `b`'s function.
    pub(crate) fn lower(
        b: FunctionBuilder<'f>,
        unit: &'f Unit<'m>,
        function: &'f ir::Function,
        body: &'f ir::Body,
    ) -> FunctionBuilder<'f> {
        let mut b = b;
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let context = b.block_params(entry)[0];
        let blocks = body.blocks.iter().map(|_| b.create_block()).collect();
        let slots = body.slots.iter().map(|slot| registers::stack_slot(&mut b, slot.size)).collect();
        let exit = b.create_block();
        let mut lower = Lower {
            b,
            unit,
            function,
            body,
            context,
            variables: vec![None; body.registers.len()],
            classes: registers::classes(body),
            blocks,
            slots,
            helpers: Vec::new(),
            functions: Vec::new(),
            exit,
            fault: None,
            frame: None,
            thread: None,
            interleaved: None,
            plan: merge::Plan::default(),
            at: 0,
            line: 0,
        };
        if let (true, Some(pauses), Some((bytes, local))) = (function.entry, &unit.pauses, unit.frame) {
            lower.interleave(pauses, bytes, local);
        } else if function.entry {
            lower.thread_loop();
        } else {
            lower.function_prologue();
        }
        lower.body();
        lower.fault_block();
        lower.b.seal_all_blocks();
        lower.b
    }

    fn body(&mut self) {
        for (index, block) in self.body.blocks.iter().enumerate() {
            self.b.switch_to_block(self.blocks[index]);
            self.plan = merge::Plan::of(&block.insts, self.unit.checked);
            for (at, inst) in block.insts.iter().enumerate() {
                self.at = at;
                self.line = inst.line;
                self.b.set_srcloc(SourceLoc::new(inst.line));
                self.guarded(inst);
            }
            self.end(index, &block.end);
        }
    }

    /// An instruction under its guard. Branching around it keeps faults and calls of switched-off ones away.
    fn guarded(&mut self, inst: &ir::Inst) {
        let Some(guard) = inst.guard else { return self.op(&inst.op) };
        let condition = self.guard(guard);
        let (then, after) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(condition, then, &[], after, &[]);
        self.b.switch_to_block(then);
        self.op(&inst.op);
        self.b.ins().jump(after, &[]);
        self.b.switch_to_block(after);
    }

    fn op(&mut self, op: &ir::Op) {
        match op {
            ir::Op::Compute { op, ty, mods, dst, src } => self.compute(*op, *ty, *mods, *dst, src),
            ir::Op::Carry { op, ty, dst, src, reads, writes, carry } => {
                self.carry(*op, *ty, *dst, src, *reads, *writes, *carry);
            }
            ir::Op::Convert { to, from, rounding, integral, mods, dst, src } => {
                self.convert(*to, *from, *rounding, *integral, *mods, *dst, *src);
            }
            ir::Op::ConvertPair { to, mods, dst, high, low } => self.convert_pair(*to, *mods, *dst, *high, *low),
            ir::Op::SetP { compare, ty, combine, dst, complement, a, b, .. } if ty.is_packed() => {
                let halves = self.compare_packed(*compare, *ty, *a, *b);
                for (half, dst) in halves.into_iter().zip([dst, complement]) {
                    if let Some(dst) = dst {
                        let combined = self.combine(half, combine);
                        self.set(*dst, combined, ir::Type::Pred);
                    }
                }
            }
            ir::Op::SetP { compare, ty, ftz, combine, dst, complement, a, b } => {
                let result = self.compare(*compare, *ty, *ftz, *a, *b);
                let combined = self.combine(result, combine);
                if let Some(dst) = dst {
                    self.set(*dst, combined, ir::Type::Pred);
                }
                if let Some(complement) = complement {
                    let inverse = self.b.ins().bxor_imm_s(result, 1);
                    let combined = self.combine(inverse, combine);
                    self.set(*complement, combined, ir::Type::Pred);
                }
            }
            ir::Op::Set { compare, to, ty, combine, dst, a, b, .. } if ty.is_packed() => {
                let halves = self.compare_packed(*compare, *ty, *a, *b);
                self.set_halves(halves, combine, *to, *dst);
            }
            ir::Op::Set { compare, to, ty, ftz, combine, dst, a, b } => {
                let result = self.compare(*compare, *ty, *ftz, *a, *b);
                let combined = self.combine(result, combine);
                self.set_number(combined, *to, *dst);
            }
            ir::Op::Load { space, ty, volatile, dst, address } => self.load(*space, *ty, *volatile, dst, *address),
            ir::Op::Store { space, ty, src, address, volatile } => self.store(*space, *ty, *volatile, src, *address),
            ir::Op::Atomic { space, op, ty, dst, address, src, swap } => {
                self.atomic(*space, *op, *ty, *dst, *address, *src, *swap);
            }
            ir::Op::Pack { ty, dst, src } => self.pack(*ty, *dst, src),
            ir::Op::Unpack { ty, dst, src } => self.unpack(*ty, dst, *src),
            ir::Op::Call { callee, returns, args } => self.call(callee, returns, args),
            ir::Op::Barrier { op, id, count, predicate, dst } => self.barrier(*op, *id, *count, *predicate, *dst),
            ir::Op::Warp { .. } => self.warp(op),
            ir::Op::Runtime { routine, code, src, dst } => self.runtime(*routine, *code, src, dst),
            ir::Op::Fence => {
                self.b.ins().fence();
            }
            ir::Op::Sleep(_) if self.yield_thread() => {}
            ir::Op::Sleep(time) => {
                let time = self.get(*time, ir::Type::U32);
                self.helper(Helper::Sleep, &[self.context, time]);
            }
            ir::Op::Trap => self.abort(0),
        }
    }

    /// Calls a helper.
    fn helper(&mut self, helper: Helper, args: &[Value]) -> Option<Value> {
        let signature = match self.helpers.iter().find(|(known, _)| *known == helper) {
            Some((_, signature)) => *signature,
            None => {
                let machine = |arg: &Arg| {
                    AbiParam::new(match arg {
                        Arg::I32 => types::I32,
                        Arg::I64 => types::I64,
                        Arg::F32 => types::F32,
                        Arg::F64 => types::F64,
                    })
                };
                let (params, result) = helper.signature();
                let mut signature = Signature::new(CallConv::SystemV);
                signature.params.extend(params.iter().map(machine));
                signature.returns.extend(result.iter().map(machine));
                let imported = self.b.import_signature(signature);
                self.helpers.push((helper, imported));
                imported
            }
        };
        let table = self.field(types::I64, std::mem::offset_of!(super::context::Context, helpers));
        let address = self.b.ins().load(types::I64, constant(), table, helper as i32 * 8);
        let call = self.b.ins().call_indirect(signature, address, args);
        self.b.inst_results(call).first().copied()
    }

    /// A helper whose result is wanted.
    fn ask(&mut self, helper: Helper, args: &[Value], ty: Type) -> Value {
        match self.helper(helper, args) {
            Some(value) => value,
            // The table says that it has one; a zero keeps the types right should it ever not.
            None => self.zero(ty),
        }
    }

    fn zero(&mut self, ty: Type) -> Value {
        match ty {
            types::F32 => self.b.ins().f32const(0.0),
            types::F64 => self.b.ins().f64const(0.0),
            types::I128 => {
                let half = self.b.ins().iconst(types::I64, 0);
                self.b.ins().iconcat(half, half)
            }
            _ => self.b.ins().iconst(ty, 0),
        }
    }

    /// A field of the context that does not change while the code runs.
    fn field(&mut self, ty: Type, offset: usize) -> Value {
        self.b.ins().load(ty, constant(), self.context, offset as i32)
    }

    /// An integer literal of any width up to 64.
    fn int(&mut self, ty: Type, value: i64) -> Value {
        let bits = ty.bits();
        let value = if bits < 64 { value & ((1i64 << bits) - 1) } else { value };
        self.b.ins().iconst(ty, Imm64::new(value))
    }

    /// Goes on only where `ok` holds; elsewhere ends the thread with a fault of kind `kind`.
    fn require(&mut self, ok: Value, kind: i64) {
        let (good, bad) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(bad);
        self.b.ins().brif(ok, good, &[], bad, &[]);
        self.b.switch_to_block(bad);
        self.note_line();
        let kind = self.int(types::I32, kind);
        self.helper(Helper::Abort, &[self.context, kind]);
        self.b.ins().trap(TrapCode::unwrap_user(1));
        self.b.switch_to_block(good);
    }

    /// Leaves the current line where a fault finds it.
    fn note_line(&mut self) {
        let line = self.int(types::I32, i64::from(self.line));
        let place = std::mem::offset_of!(super::context::Context, line) as i32;
        self.b.ins().store(trusted(), line, self.context, place);
    }

    /// Ends the thread with a fault; what follows is unreachable but must be somewhere.
    fn abort(&mut self, kind: i64) {
        self.note_line();
        let kind = self.int(types::I32, kind);
        self.helper(Helper::Abort, &[self.context, kind]);
    }

    /// The fault block of this function, made when first needed.
    fn fault_target(&mut self) -> Block {
        match self.fault {
            Some(block) => block,
            None => {
                let block = self.b.create_block();
                self.b.append_block_param(block, types::I64);
                self.b.append_block_param(block, types::I64);
                self.b.set_cold_block(block);
                self.fault = Some(block);
                block
            }
        }
    }

    fn fault_block(&mut self) {
        if let Some(block) = self.fault {
            self.b.switch_to_block(block);
            let params = self.b.block_params(block).to_vec();
            self.helper(Helper::Fault, &[self.context, params[0], params[1]]);
            self.b.ins().trap(TrapCode::unwrap_user(1));
        }
    }

    fn not(&mut self, predicate: Value) -> Value {
        self.b.ins().icmp_imm_u(IntCC::Equal, predicate, 0)
    }
}

/// An empty function to lower into.
pub(crate) fn shell(number: u32, function: &ir::Function) -> Function {
    use cranelift_codegen::ir::{GlobalValueData, UserExternalName, UserFuncName};
    let name = UserFuncName::User(UserExternalName { namespace: 0, index: number });
    let mut out = Function::with_name_signature(name, native_signature(function));
    // Checks the stack before the frame is used, however large it is.
    let context = out.create_global_value(GlobalValueData::VMContext);
    let flags = out.dfg.mem_flags.insert_unchecked(constant());
    let offset = std::mem::offset_of!(super::context::Context, stack_limit) as i32;
    let limit = out.create_global_value(GlobalValueData::Load {
        base: context,
        offset: offset.into(),
        global_type: types::I64,
        flags,
    });
    out.stack_limit = Some(limit);
    out
}
