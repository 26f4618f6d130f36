//! Random programs: what a thread can do here, and how statements are drawn.
//!
//! Whatever makes threads wait for each other stands only where all threads of the block (or of half a warp) come by, so
//! that each program has one right result.

use testkit::Random;

/// Registers of a kind.
pub const WORDS: usize = 8;
pub const SHARED_BY_ALL: usize = 3;
pub const LONGS: usize = 2;
pub const FLOATS: usize = 3;
pub const FLAGS: usize = 3;
/// Words of a thread's local array, and of its own piece of shared memory.
pub const LOCAL: usize = 16;
pub const OWN: usize = 4;
/// Words of the table in global memory.
pub const TABLE: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arith {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    Min,
    Max,
    Shl,
    Shr,
}

#[derive(Clone, Copy, Debug)]
pub enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Debug)]
pub enum Stmt {
    Arith {
        op: Arith,
        dst: usize,
        a: usize,
        b: usize,
    },
    Literal {
        dst: usize,
        value: u32,
    },
    /// `d += a * b` in 64 bits.
    Wide {
        dst: usize,
        a: usize,
        b: usize,
    },
    /// Both halves of a long.
    Fold {
        dst: usize,
        src: usize,
    },
    Float {
        op: Arith,
        dst: usize,
        a: usize,
        b: usize,
    },
    ToFloat {
        dst: usize,
        src: usize,
    },
    FromFloat {
        dst: usize,
        src: usize,
    },
    Compare {
        dst: usize,
        a: usize,
        b: usize,
    },
    Guarded {
        flag: usize,
        negated: bool,
        inner: Box<Stmt>,
    },
    LocalStore {
        index: usize,
        src: usize,
    },
    LocalLoad {
        dst: usize,
        index: usize,
    },
    /// Several places of the table at constant distances, with a pause behind each that `pauses` names.
    Ladder {
        dst: usize,
        index: usize,
        steps: usize,
        pauses: u32,
        flag: usize,
    },
    /// The same in the thread's own piece of shared memory, written and read again.
    OwnLadder {
        dst: usize,
        src: usize,
        pauses: u32,
        flag: usize,
    },
    /// Adds to a word of its own and gets what was there.
    OwnAtomic {
        dst: usize,
        src: usize,
    },
    Sleep,
    If {
        flag: usize,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    /// As many rounds as the lowest bits of a register say, which differ from thread to thread.
    Rounds {
        count: usize,
        body: Vec<Stmt>,
    },

    // From here on: only where all threads of the block come by.
    Uniform {
        op: Arith,
        dst: usize,
        a: usize,
        b: usize,
    },
    Barrier {
        id: u32,
    },
    /// Each thread gets what another one of the block has.
    Exchange {
        dst: usize,
        src: usize,
        distance: u32,
    },
    /// `bar.red.popc`
    Count {
        dst: usize,
        flag: usize,
    },
    /// `bar.red.and`, or `or`
    Vote {
        dst: usize,
        flag: usize,
        all: bool,
    },
    /// The sum of the block.
    Sum {
        dst: usize,
        src: usize,
    },
    /// Each thread waits in a loop until the one before it has been there.
    Relay {
        dst: usize,
    },
    UniformIf {
        word: usize,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    UniformRounds {
        count: usize,
        body: Vec<Stmt>,
    },
    /// Lanes below 16 do one thing, the others another.
    Halves {
        low: Vec<Stmt>,
        high: Vec<Stmt>,
    },

    // From here on: only where all lanes of `mask` come by.
    Shuffle {
        kind: Shuffle,
        dst: usize,
        src: usize,
        amount: u32,
        mask: u32,
    },
    Ballot {
        dst: usize,
        flag: usize,
        mask: u32,
    },
    Any {
        dst: usize,
        flag: usize,
        mask: u32,
    },
    Match {
        dst: usize,
        src: usize,
        mask: u32,
    },
    Redux {
        dst: usize,
        src: usize,
        mask: u32,
    },
}

#[derive(Debug)]
pub struct Program {
    pub body: Vec<Stmt>,
    pub block: u32,
}

/// Who comes by where a statement stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Thread,
    Half(u32),
    Block,
}

struct Draw {
    random: Random,
    block: u32,
    /// Whether warps are full, so that lanes may do things together.
    warps: bool,
    left: usize,
}

pub fn draw(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let block = [32, 64, 96, 256, 1, 7, 50, 130][random.below(8)];
    let left = 20 + random.below(60);
    let mut draw = Draw { random, block, warps: block % 32 == 0, left };
    let mut body = Vec::new();
    while draw.left > 0 {
        body.push(draw.stmt(Where::Block, 0));
    }
    Program { body, block }
}

impl Draw {
    fn body(&mut self, place: Where, depth: usize) -> Vec<Stmt> {
        (0..1 + self.random.below(5)).map(|_| self.stmt(place, depth + 1)).collect()
    }

    fn stmt(&mut self, place: Where, depth: usize) -> Stmt {
        self.left = self.left.saturating_sub(1);
        let kind = match place {
            Where::Block => self.random.below(if self.warps { 100 } else { 88 }),
            Where::Half(_) => [self.random.below(50), 93 + self.random.below(7)][self.random.below(2)],
            Where::Thread => self.random.below(60),
        };
        match kind {
            0..50 => self.simple(),
            50..55 if depth < 3 => {
                let flag = self.random.below(FLAGS);
                Stmt::If { flag, then: self.body(Where::Thread, depth), otherwise: self.body(Where::Thread, depth) }
            }
            55..60 if depth < 3 => {
                Stmt::Rounds { count: self.random.below(WORDS), body: self.body(Where::Thread, depth) }
            }
            60..63 => {
                let (op, dst) = (self.operation(), self.random.below(SHARED_BY_ALL));
                Stmt::Uniform { op, dst, a: self.random.below(SHARED_BY_ALL), b: self.random.below(SHARED_BY_ALL) }
            }
            63..65 => Stmt::Barrier { id: self.random.below(4) as u32 },
            65..69 => Stmt::Exchange { dst: self.word(), src: self.word(), distance: self.random.below(300) as u32 },
            69..71 => Stmt::Count { dst: self.random.below(SHARED_BY_ALL), flag: self.random.below(FLAGS) },
            71..73 => Stmt::Vote {
                dst: self.random.below(FLAGS),
                flag: self.random.below(FLAGS),
                all: self.random.chance(50),
            },
            73..75 => Stmt::Sum { dst: self.random.below(SHARED_BY_ALL), src: self.word() },
            // Each thread may take a tick of the clock, so only where there are few.
            75 if self.block <= 64 => Stmt::Relay { dst: self.word() },
            76..81 if depth < 3 => Stmt::UniformIf {
                word: self.random.below(SHARED_BY_ALL),
                then: self.body(Where::Block, depth),
                otherwise: self.body(Where::Block, depth),
            },
            81..88 if depth < 3 => {
                Stmt::UniformRounds { count: self.random.below(SHARED_BY_ALL), body: self.body(Where::Block, depth) }
            }
            88..92 if depth < 3 => {
                let low = self.body(Where::Half(0xffff), depth);
                Stmt::Halves { low, high: self.body(Where::Half(0xffff_0000), depth) }
            }
            92..100 => self.together(place),
            _ => self.simple(),
        }
    }

    fn word(&mut self) -> usize {
        self.random.below(WORDS)
    }

    fn operation(&mut self) -> Arith {
        use Arith::*;
        [Add, Sub, Mul, And, Or, Xor, Min, Max, Shl, Shr][self.random.below(10)]
    }

    /// What a thread does alone.
    fn simple(&mut self) -> Stmt {
        let (dst, a, b) = (self.word(), self.word(), self.word());
        match self.random.below(30) {
            0..6 => Stmt::Arith { op: self.operation(), dst, a, b },
            6 => Stmt::Literal { dst, value: self.random.below(1 << 30) as u32 },
            7..9 => Stmt::Wide { dst: self.random.below(LONGS), a, b },
            9 => Stmt::Fold { dst, src: self.random.below(LONGS) },
            10..12 => Stmt::Float {
                op: [Arith::Add, Arith::Sub, Arith::Mul][self.random.below(3)],
                dst: self.random.below(FLOATS),
                a: self.random.below(FLOATS),
                b: self.random.below(FLOATS),
            },
            12 => Stmt::ToFloat { dst: self.random.below(FLOATS), src: a },
            13 => Stmt::FromFloat { dst, src: self.random.below(FLOATS) },
            14..17 => Stmt::Compare { dst: self.random.below(FLAGS), a, b },
            17..20 => {
                let inner = match self.simple() {
                    inner @ (Stmt::Arith { .. }
                    | Stmt::Literal { .. }
                    | Stmt::Wide { .. }
                    | Stmt::Compare { .. }
                    | Stmt::Sleep) => inner,
                    _ => Stmt::Sleep,
                };
                let flag = self.random.below(FLAGS);
                Stmt::Guarded { flag, negated: self.random.chance(50), inner: Box::new(inner) }
            }
            20 => Stmt::LocalStore { index: a, src: b },
            21 => Stmt::LocalLoad { dst, index: a },
            22..25 => Stmt::Ladder {
                dst,
                index: a,
                steps: 2 + self.random.below(5),
                pauses: self.random.below(64) as u32,
                flag: self.random.below(FLAGS),
            },
            25..27 => {
                Stmt::OwnLadder { dst, src: a, pauses: self.random.below(64) as u32, flag: self.random.below(FLAGS) }
            }
            27 => Stmt::OwnAtomic { dst, src: a },
            28 => Stmt::Sleep,
            _ => Stmt::Arith { op: Arith::Add, dst, a, b },
        }
    }

    /// What lanes do together.
    fn together(&mut self, place: Where) -> Stmt {
        let (dst, src, flag) = (self.word(), self.word(), self.random.below(FLAGS));
        let mask = if let Where::Half(mask) = place { mask } else { !0 };
        match self.random.below(8) {
            0..4 => {
                let (kind, amount) = match (self.random.below(4), place) {
                    (0, Where::Block) => (Shuffle::Up, self.random.below(32)),
                    (1, Where::Block) => (Shuffle::Down, self.random.below(32)),
                    (2, _) => (Shuffle::Index, self.random.below(16) + mask.trailing_zeros() as usize),
                    _ => (Shuffle::Butterfly, self.random.below(16)),
                };
                Stmt::Shuffle { kind, dst, src, amount: amount as u32, mask }
            }
            4 => Stmt::Ballot { dst, flag, mask },
            5 => Stmt::Any { dst: flag, flag: self.random.below(FLAGS), mask },
            6 => Stmt::Match { dst, src, mask },
            _ => Stmt::Redux { dst, src, mask },
        }
    }
}
