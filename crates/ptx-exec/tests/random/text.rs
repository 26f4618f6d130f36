//! Programs as PTX.

use std::fmt::Write;

use super::program::*;

/// The text of a program, with `name` as its kernel: `name(out, table)`.
pub fn kernel(program: &Program, name: &str) -> String {
    let mut text = Text { out: String::new(), labels: 0 };
    text.head(name, program.block);
    text.body(&program.body);
    text.tail();
    text.out
}

struct Text {
    out: String,
    labels: u32,
}

fn name(op: Arith) -> &'static str {
    match op {
        Arith::Add => "add.u32",
        Arith::Sub => "sub.u32",
        Arith::Mul => "mul.lo.u32",
        Arith::And => "and.b32",
        Arith::Or => "or.b32",
        Arith::Xor => "xor.b32",
        Arith::Min => "min.u32",
        Arith::Max => "max.u32",
        Arith::Shl => "shl.b32",
        Arith::Shr => "shr.u32",
    }
}

/// Bytes of shared memory that a thread has alone.
const PIECE: usize = 4 * OWN + 16;

impl Text {
    fn line(&mut self, text: std::fmt::Arguments) {
        // Writing to a string never fails.
        let _ = writeln!(self.out, "{text}");
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn head(&mut self, name: &str, block: u32) {
        let own = block as usize * PIECE;
        self.line(format_args!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry {name}(.param .u64 out, .param .u64 table)\n{{\n\
             .reg .pred %p<{FLAGS}>, %q<4>;\n.reg .b32 %r<{WORDS}>, %u<{SHARED_BY_ALL}>, %t<16>;\n\
             .reg .b64 %d<{LONGS}>, %a<8>;\n.reg .f32 %f<{FLOATS}>;\n\
             .shared .align 16 .b8 cells[{}];\n.shared .align 16 .b8 own[{own}];\n.shared .align 4 .b32 common;\n\
             .local .align 4 .b8 array[{}];\n\
             ld.param.u64 %a0, [out];\nld.param.u64 %a1, [table];\nmov.u32 %t0, %tid.x;\nmov.u32 %t1, %ctaid.x;\n\
             mov.u32 %t2, %laneid;\nmov.u32 %t3, own;\nmad.lo.u32 %t3, %t0, {PIECE}, %t3;\nmov.u32 %t4, cells;",
            4 * block,
            4 * LOCAL,
        ));
        for word in 0..WORDS {
            self.line(format_args!("mul.lo.u32 %r{word}, %t0, {};", 0x9e37_79b1u32 + 2 * word as u32));
            self.line(format_args!("add.u32 %t5, %t1, {word};\nxor.b32 %r{word}, %r{word}, %t5;"));
        }
        for word in 0..SHARED_BY_ALL {
            self.line(format_args!("add.u32 %u{word}, %t1, {};", word + 1));
        }
        for at in 0..LONGS {
            self.line(format_args!("mov.u64 %d{at}, 0;"));
        }
        for at in 0..FLOATS {
            self.line(format_args!("mov.f32 %f{at}, 0f3F800000;"));
        }
        for at in 0..FLAGS {
            self.line(format_args!("setp.ne.u32 %p{at}, 0, 0;"));
        }
        self.line(format_args!("mov.u64 %a2, array;"));
        for at in 0..LOCAL {
            self.line(format_args!("st.local.u32 [%a2+{}], 0;", 4 * at));
        }
        for at in 0..=OWN {
            self.line(format_args!("st.shared.u32 [%t3+{}], 0;", 4 * at));
        }
    }

    fn tail(&mut self) {
        let results = super::reference::RESULTS;
        self.line(format_args!(
            "mov.u32 %t5, %ntid.x;\nmad.lo.u32 %t5, %t1, %t5, %t0;\nmul.wide.u32 %a3, %t5, {};\nadd.s64 %a0, %a0, %a3;",
            4 * results
        ));
        let mut at = 0;
        let mut put = |text: &mut Text, register: &str| {
            text.line(format_args!("st.global.u32 [%a0+{at}], {register};"));
            at += 4;
        };
        (0..WORDS).for_each(|word| put(self, &format!("%r{word}")));
        (0..SHARED_BY_ALL).for_each(|word| put(self, &format!("%u{word}")));
        for long in 0..LONGS {
            self.line(format_args!("mov.b64 {{%t5, %t6}}, %d{long};"));
            put(self, "%t5");
            put(self, "%t6");
        }
        for float in 0..FLOATS {
            self.line(format_args!("cvt.rzi.u32.f32 %t5, %f{float};"));
            put(self, "%t5");
        }
        self.line(format_args!("mov.u32 %t5, 0;"));
        for flag in 0..FLAGS {
            self.line(format_args!("@%p{flag} or.b32 %t5, %t5, {};", 1 << flag));
        }
        put(self, "%t5");
        self.line(format_args!("ret;\n}}"));
    }

    fn body(&mut self, body: &[Stmt]) {
        body.iter().for_each(|stmt| self.stmt(stmt));
    }

    /// Pauses behind step `at`, if its two bits say so: always, or where a flag is set.
    fn pause(&mut self, pauses: u32, at: usize, flag: usize) {
        match pauses >> (2 * (at % 3)) & 3 {
            1 => self.line(format_args!("nanosleep.u32 20;")),
            2 => self.line(format_args!("@%p{flag} nanosleep.u32 20;")),
            _ => {}
        }
    }

    /// Both ways of a branch on `%q0`.
    fn branch(&mut self, then: &[Stmt], otherwise: &[Stmt]) {
        let label = self.label();
        self.line(format_args!("@!%q0 bra ELSE{label};"));
        self.body(then);
        self.line(format_args!("bra.uni END{label};\nELSE{label}:"));
        self.body(otherwise);
        self.line(format_args!("END{label}:"));
    }

    /// A loop of as many rounds as `count & 3` says.
    fn rounds(&mut self, count: &str, body: &[Stmt]) {
        let label = self.label();
        self.line(format_args!(
            "{{\n.reg .b32 %n;\n.reg .pred %more;\nand.b32 %n, {count}, 3;\nsetp.eq.u32 %more, %n, 0;\n\
             @%more bra DONE{label};\nHEAD{label}:"
        ));
        self.body(body);
        self.line(format_args!(
            "sub.u32 %n, %n, 1;\nsetp.ne.u32 %more, %n, 0;\n@%more bra HEAD{label};\nDONE{label}:\n}}"
        ));
    }

    fn arith(&mut self, guard: &str, op: Arith, dst: &str, a: &str, b: &str) {
        if matches!(op, Arith::Shl | Arith::Shr) {
            self.line(format_args!("and.b32 %t5, {b}, 31;\n{guard}{} {dst}, {a}, %t5;", name(op)));
        } else {
            self.line(format_args!("{guard}{} {dst}, {a}, {b};", name(op)));
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Guarded { flag, negated, inner } => {
                let sign = if *negated { "!" } else { "" };
                self.alone(inner, &format!("@{sign}%p{flag} "));
            }
            Stmt::If { flag, then, otherwise } => {
                self.line(format_args!("mov.pred %q0, %p{flag};"));
                self.branch(then, otherwise);
            }
            Stmt::Rounds { count, body } => self.rounds(&format!("%r{count}"), body),
            Stmt::UniformIf { word, then, otherwise } => {
                self.line(format_args!("and.b32 %t5, %u{word}, 1;\nsetp.ne.u32 %q0, %t5, 0;"));
                self.branch(then, otherwise);
            }
            Stmt::UniformRounds { count, body } => self.rounds(&format!("%u{count}"), body),
            Stmt::Halves { low, high } => {
                self.line(format_args!("setp.lt.u32 %q0, %t2, 16;"));
                self.branch(low, high);
            }
            Stmt::Uniform { op, dst, a, b } => {
                self.arith("", *op, &format!("%u{dst}"), &format!("%u{a}"), &format!("%u{b}"));
            }
            Stmt::Barrier { id } => self.line(format_args!("bar.sync {id};")),
            Stmt::Exchange { dst, src, distance } => self.line(format_args!(
                "shl.b32 %t5, %t0, 2;\nadd.u32 %t5, %t5, %t4;\nst.shared.u32 [%t5], %r{src};\nbar.sync 0;\n\
                 mov.u32 %t6, %ntid.x;\nadd.u32 %t7, %t0, {distance};\nrem.u32 %t7, %t7, %t6;\nshl.b32 %t7, %t7, 2;\n\
                 add.u32 %t7, %t7, %t4;\nld.shared.u32 %r{dst}, [%t7];\nbar.sync 0;"
            )),
            Stmt::Count { dst, flag } => self.line(format_args!("bar.red.popc.u32 %u{dst}, 0, %p{flag};")),
            Stmt::Vote { dst, flag, all } => {
                let op = if *all { "and" } else { "or" };
                self.line(format_args!("bar.red.{op}.pred %p{dst}, 0, %p{flag};"));
            }
            Stmt::Sum { dst, src } => self.line(format_args!(
                "setp.eq.u32 %q1, %t0, 0;\n@%q1 st.shared.u32 [common], 0;\nbar.sync 0;\n\
                 red.shared.add.u32 [common], %r{src};\nbar.sync 0;\nld.shared.u32 %u{dst}, [common];\nbar.sync 0;"
            )),
            Stmt::Relay { dst } => {
                let label = self.label();
                self.line(format_args!(
                    "setp.eq.u32 %q1, %t0, 0;\n@%q1 st.volatile.shared.u32 [common], 0;\nbar.sync 0;\nWAIT{label}:\n\
                     ld.volatile.shared.u32 %t5, [common];\nsetp.ne.u32 %q1, %t5, %t0;\n@%q1 bra WAIT{label};\n\
                     add.u32 %r{dst}, %r{dst}, %t5;\nadd.u32 %t5, %t5, 1;\nst.volatile.shared.u32 [common], %t5;\n\
                     bar.sync 0;"
                ));
            }
            Stmt::Shuffle { kind, dst, src, amount, mask } => {
                let (kind, clamp) = match kind {
                    Shuffle::Up => ("up", 0),
                    Shuffle::Down => ("down", 31),
                    Shuffle::Butterfly => ("bfly", 31),
                    Shuffle::Index => ("idx", 31),
                };
                self.line(format_args!("shfl.sync.{kind}.b32 %r{dst}|%q1, %r{src}, {amount}, {clamp}, {mask:#x};"));
            }
            Stmt::Ballot { dst, flag, mask } => {
                self.line(format_args!("vote.sync.ballot.b32 %r{dst}, %p{flag}, {mask:#x};"));
            }
            Stmt::Any { dst, flag, mask } => {
                self.line(format_args!("vote.sync.any.pred %p{dst}, %p{flag}, {mask:#x};"));
            }
            Stmt::Match { dst, src, mask } => {
                self.line(format_args!("match.any.sync.b32 %r{dst}, %r{src}, {mask:#x};"));
            }
            Stmt::Redux { dst, src, mask } => {
                self.line(format_args!("redux.sync.add.u32 %r{dst}, %r{src}, {mask:#x};"));
            }
            _ => self.alone(stmt, ""),
        }
    }

    fn alone(&mut self, stmt: &Stmt, guard: &str) {
        match *stmt {
            Stmt::Arith { op, dst, a, b } => {
                self.arith(guard, op, &format!("%r{dst}"), &format!("%r{a}"), &format!("%r{b}"));
            }
            Stmt::Literal { dst, value } => self.line(format_args!("{guard}mov.u32 %r{dst}, {value};")),
            Stmt::Wide { dst, a, b } => {
                self.line(format_args!("{guard}mad.wide.u32 %d{dst}, %r{a}, %r{b}, %d{dst};"))
            }
            Stmt::Fold { dst, src } => {
                self.line(format_args!("mov.b64 {{%t5, %t6}}, %d{src};\nxor.b32 %r{dst}, %t5, %t6;"));
            }
            Stmt::Float { op, dst, a, b } => {
                let op = match op {
                    Arith::Add => "add",
                    Arith::Sub => "sub",
                    _ => "mul",
                };
                self.line(format_args!("{op}.rn.f32 %f{dst}, %f{a}, %f{b};"));
            }
            Stmt::ToFloat { dst, src } => {
                self.line(format_args!("and.b32 %t5, %r{src}, 65535;\ncvt.rn.f32.u32 %f{dst}, %t5;"));
            }
            Stmt::FromFloat { dst, src } => self.line(format_args!("cvt.rzi.u32.f32 %r{dst}, %f{src};")),
            Stmt::Compare { dst, a, b } => self.line(format_args!("{guard}setp.lt.u32 %p{dst}, %r{a}, %r{b};")),
            Stmt::LocalStore { index, src } => {
                self.local(index);
                self.line(format_args!("st.local.u32 [%a3], %r{src};"));
            }
            Stmt::LocalLoad { dst, index } => {
                self.local(index);
                self.line(format_args!("ld.local.u32 %r{dst}, [%a3];"));
            }
            Stmt::Ladder { dst, index, steps, pauses, flag } => {
                self.line(format_args!(
                    "and.b32 %t5, %r{index}, 63;\nmul.wide.u32 %a3, %t5, 4;\nadd.s64 %a3, %a1, %a3;\nmov.u32 %t6, 0;"
                ));
                for at in 0..steps {
                    self.line(format_args!("ld.global.u32 %t5, [%a3+{}];\nadd.u32 %t6, %t6, %t5;", 4 * at));
                    self.pause(pauses, at, flag);
                }
                self.line(format_args!("mov.u32 %r{dst}, %t6;"));
            }
            Stmt::OwnLadder { dst, src, pauses, flag } => {
                self.line(format_args!("mov.u32 %t5, %r{src};"));
                for at in 0..OWN {
                    self.line(format_args!("st.shared.u32 [%t3+{}], %t5;\nadd.u32 %t5, %t5, 1;", 4 * at));
                    self.pause(pauses, at, flag);
                }
                self.line(format_args!("mov.u32 %t6, 0;"));
                for at in (0..OWN).rev() {
                    self.line(format_args!("ld.shared.u32 %t5, [%t3+{}];\nadd.u32 %t6, %t6, %t5;", 4 * at));
                    self.pause(pauses, at + 1, flag);
                }
                self.line(format_args!("mov.u32 %r{dst}, %t6;"));
            }
            Stmt::OwnAtomic { dst, src } => {
                self.line(format_args!("atom.shared.add.u32 %r{dst}, [%t3+{}], %r{src};", 4 * OWN));
            }
            Stmt::Sleep => self.line(format_args!("{guard}nanosleep.u32 20;")),
            _ => {}
        }
    }

    /// `%a3`: a place in the local array.
    fn local(&mut self, index: usize) {
        self.line(format_args!(
            "and.b32 %t5, %r{index}, {};\nmul.wide.u32 %a3, %t5, 4;\nadd.s64 %a3, %a2, %a3;",
            LOCAL - 1
        ));
    }
}
