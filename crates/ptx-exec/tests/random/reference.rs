//! What a program should compute: all threads of a block side by side, statement by statement.

use super::program::*;

/// What a thread has at the end, in the order in which kernels write it.
pub const RESULTS: usize = WORDS + SHARED_BY_ALL + 2 * LONGS + FLOATS + 1;

#[derive(Clone)]
struct Thread {
    words: [u32; WORDS],
    uniform: [u32; SHARED_BY_ALL],
    longs: [u64; LONGS],
    floats: [f32; FLOATS],
    flags: [bool; FLAGS],
    local: [u32; LOCAL],
    own: [u32; OWN + 1],
}

pub struct Block<'a> {
    threads: Vec<Thread>,
    table: &'a [u32],
}

fn arith(op: Arith, a: u32, b: u32) -> u32 {
    match op {
        Arith::Add => a.wrapping_add(b),
        Arith::Sub => a.wrapping_sub(b),
        Arith::Mul => a.wrapping_mul(b),
        Arith::And => a & b,
        Arith::Or => a | b,
        Arith::Xor => a ^ b,
        Arith::Min => a.min(b),
        Arith::Max => a.max(b),
        Arith::Shl => a << (b & 31),
        Arith::Shr => a >> (b & 31),
    }
}

/// The result of one block, thread by thread.
pub fn block(program: &Program, number: u32, table: &[u32]) -> Vec<[u32; RESULTS]> {
    let thread = |index: u32| Thread {
        words: std::array::from_fn(|word| start(index, number, word as u32)),
        uniform: std::array::from_fn(|word| number + 1 + word as u32),
        longs: [0; LONGS],
        floats: [1.0; FLOATS],
        flags: [false; FLAGS],
        local: [0; LOCAL],
        own: [0; OWN + 1],
    };
    let mut block = Block { threads: (0..program.block).map(thread).collect(), table };
    let all: Vec<usize> = (0..program.block as usize).collect();
    block.run(&program.body, &all);
    block.threads.iter().map(results).collect()
}

/// What a register holds in the beginning.
pub fn start(thread: u32, block: u32, word: u32) -> u32 {
    thread.wrapping_mul(0x9e37_79b1 + 2 * word) ^ (block + word)
}

fn results(thread: &Thread) -> [u32; RESULTS] {
    let mut out = thread.words.to_vec();
    out.extend(thread.uniform);
    out.extend(thread.longs.iter().flat_map(|long| [*long as u32, (*long >> 32) as u32]));
    out.extend(thread.floats.map(|float| float as u32));
    out.push(thread.flags.iter().enumerate().map(|(at, flag)| u32::from(*flag) << at).sum());
    out.try_into().unwrap_or([0; RESULTS])
}

impl Block<'_> {
    fn run(&mut self, body: &[Stmt], active: &[usize]) {
        for stmt in body {
            self.step(stmt, active);
        }
    }

    fn chosen(&self, active: &[usize], yes: impl Fn(&Thread) -> bool) -> (Vec<usize>, Vec<usize>) {
        active.iter().copied().partition(|index| yes(&self.threads[*index]))
    }

    fn step(&mut self, stmt: &Stmt, active: &[usize]) {
        let total = self.threads.len();
        match stmt {
            Stmt::If { flag, then, otherwise } => {
                let (yes, no) = self.chosen(active, |thread| thread.flags[*flag]);
                self.run(then, &yes);
                self.run(otherwise, &no);
            }
            Stmt::Guarded { flag, negated, inner } => {
                let (yes, _) = self.chosen(active, |thread| thread.flags[*flag] != *negated);
                self.step(inner, &yes);
            }
            Stmt::Rounds { count, body } => {
                let counts: Vec<u32> = active.iter().map(|index| self.threads[*index].words[*count] & 3).collect();
                for round in 0..3 {
                    let on = active.iter().zip(&counts).filter(|(_, count)| **count > round);
                    let on: Vec<usize> = on.map(|(index, _)| *index).collect();
                    self.run(body, &on);
                }
            }
            Stmt::UniformIf { word, then, otherwise } => {
                let yes = self.threads[0].uniform[*word] & 1 == 1;
                self.run(if yes { then } else { otherwise }, active);
            }
            Stmt::UniformRounds { count, body } => {
                for _ in 0..self.threads[0].uniform[*count] & 3 {
                    self.run(body, active);
                }
            }
            Stmt::Halves { low, high } => {
                let (first, second): (Vec<usize>, Vec<usize>) =
                    active.iter().copied().partition(|index| index % 32 < 16);
                self.run(low, &first);
                self.run(high, &second);
            }
            Stmt::Exchange { dst, src, distance } => {
                let old: Vec<u32> = self.threads.iter().map(|thread| thread.words[*src]).collect();
                for index in 0..total {
                    self.threads[index].words[*dst] = old[(index + *distance as usize) % total];
                }
            }
            Stmt::Count { dst, flag } => {
                let count = self.threads.iter().filter(|thread| thread.flags[*flag]).count() as u32;
                self.threads.iter_mut().for_each(|thread| thread.uniform[*dst] = count);
            }
            Stmt::Vote { dst, flag, all } => {
                let mut flags = self.threads.iter().map(|thread| thread.flags[*flag]);
                let answer = if *all { flags.all(|flag| flag) } else { flags.any(|flag| flag) };
                self.threads.iter_mut().for_each(|thread| thread.flags[*dst] = answer);
            }
            Stmt::Sum { dst, src } => {
                let sum = self.threads.iter().fold(0u32, |sum, thread| sum.wrapping_add(thread.words[*src]));
                self.threads.iter_mut().for_each(|thread| thread.uniform[*dst] = sum);
            }
            Stmt::Shuffle { .. }
            | Stmt::Ballot { .. }
            | Stmt::Any { .. }
            | Stmt::Match { .. }
            | Stmt::Redux { .. } => {
                for warp in active.chunk_by(|a, b| a / 32 == b / 32) {
                    self.together(stmt, warp);
                }
            }
            _ => active.iter().for_each(|index| self.alone(stmt, *index)),
        }
    }

    fn alone(&mut self, stmt: &Stmt, index: usize) {
        let table = self.table;
        let thread = &mut self.threads[index];
        let words = &mut thread.words;
        match *stmt {
            Stmt::Arith { op, dst, a, b } => words[dst] = arith(op, words[a], words[b]),
            Stmt::Literal { dst, value } => words[dst] = value,
            Stmt::Wide { dst, a, b } => {
                let product = u64::from(words[a]) * u64::from(words[b]);
                thread.longs[dst] = thread.longs[dst].wrapping_add(product);
            }
            Stmt::Fold { dst, src } => words[dst] = thread.longs[src] as u32 ^ (thread.longs[src] >> 32) as u32,
            Stmt::Float { op, dst, a, b } => {
                let (a, b) = (thread.floats[a], thread.floats[b]);
                thread.floats[dst] = match op {
                    Arith::Add => a + b,
                    Arith::Sub => a - b,
                    _ => a * b,
                };
            }
            Stmt::ToFloat { dst, src } => thread.floats[dst] = (words[src] & 0xffff) as f32,
            Stmt::FromFloat { dst, src } => words[dst] = thread.floats[src] as u32,
            Stmt::Compare { dst, a, b } => thread.flags[dst] = words[a] < words[b],
            Stmt::LocalStore { index, src } => thread.local[words[index] as usize % LOCAL] = words[src],
            Stmt::LocalLoad { dst, index } => words[dst] = thread.local[words[index] as usize % LOCAL],
            Stmt::Ladder { dst, index, steps, .. } => {
                let first = words[index] as usize & 63;
                let sum = table[first..first + steps].iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
                words[dst] = sum;
            }
            Stmt::OwnLadder { dst, src, .. } => {
                thread.own[..OWN]
                    .copy_from_slice(&std::array::from_fn::<u32, OWN, _>(|at| words[src].wrapping_add(at as u32)));
                words[dst] = words[src].wrapping_mul(OWN as u32).wrapping_add((0..OWN as u32).sum());
            }
            Stmt::OwnAtomic { dst, src } => {
                let old = thread.own[OWN];
                thread.own[OWN] = old.wrapping_add(words[src]);
                words[dst] = old;
            }
            Stmt::Uniform { op, dst, a, b } => {
                thread.uniform[dst] = arith(op, thread.uniform[a], thread.uniform[b]);
            }
            Stmt::Relay { dst } => words[dst] = words[dst].wrapping_add(index as u32),
            _ => {}
        }
    }

    /// What the lanes of one warp do together.
    fn together(&mut self, stmt: &Stmt, lanes: &[usize]) {
        let old: Vec<Thread> = lanes.iter().map(|index| self.threads[*index].clone()).collect();
        let bit = |index: usize| 1u32 << (index % 32);
        let lanes_with = |yes: &dyn Fn(&Thread) -> bool| {
            lanes.iter().zip(&old).filter(|(_, thread)| yes(thread)).map(|(index, _)| bit(*index)).sum::<u32>()
        };
        for (at, index) in lanes.iter().enumerate() {
            let lane = (index % 32) as u32;
            let thread = &mut self.threads[*index];
            match *stmt {
                Stmt::Shuffle { kind, dst, src, amount, .. } => {
                    let from = match kind {
                        Shuffle::Up => lane.checked_sub(amount).unwrap_or(lane),
                        Shuffle::Down => {
                            if lane + amount < 32 {
                                lane + amount
                            } else {
                                lane
                            }
                        }
                        Shuffle::Butterfly => lane ^ amount,
                        Shuffle::Index => amount,
                    };
                    let first = (lanes[0] % 32) as u32;
                    thread.words[dst] = old[(from - first) as usize].words[src];
                }
                Stmt::Ballot { dst, flag, .. } => thread.words[dst] = lanes_with(&|thread| thread.flags[flag]),
                Stmt::Any { dst, flag, .. } => thread.flags[dst] = lanes_with(&|thread| thread.flags[flag]) != 0,
                Stmt::Match { dst, src, .. } => {
                    let mine = old[at].words[src];
                    thread.words[dst] = lanes_with(&|thread| thread.words[src] == mine);
                }
                Stmt::Redux { dst, src, .. } => {
                    thread.words[dst] = old.iter().fold(0u32, |sum, thread| sum.wrapping_add(thread.words[src]));
                }
                _ => {}
            }
        }
    }
}
