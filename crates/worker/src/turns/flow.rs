//! What a worker has under way on the GPU.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_abi::error::*;
use cuda_abi::types::CUstream;

use super::marks::{self, Marks};
use crate::Worker;
use crate::handles::Object;
use crate::ops::graph::capture;
use control::dispatch::{Report, UNBOUNDED};

/// How long a batch should take the GPU: long enough to hide that this process has to be woken for the next one, short
/// against a turn, and shorter where somebody more important may come.
const BATCH: Duration = Duration::from_micros(2_000);
const BATCH_BELOW: Duration = Duration::from_micros(500);
const MOST_IN_BATCH: u32 = 512;
/// More is to be expected for so long after the last work: a program that waits for each of its kernels would else lose
/// its turn after the first.
const LINGER: Duration = Duration::from_micros(300);
/// The same for a zone above all others, which gets the GPU back whenever it likes; shorter still once it has waited.
const LINGER_ABOVE: Duration = Duration::from_micros(150);
const LINGER_SYNCED: Duration = Duration::from_micros(30);

struct Batch {
    /// Words and the numbers that they will have.
    marks: Vec<(usize, u64)>,
    size: u32,
    began: Instant,
}

pub(super) struct Flow {
    pub tracked: bool,
    /// Threads that were let in and have not come back.
    pub inside: u32,
    pub synced: bool,
    pub reported: Report,
    /// Streams with work that has no mark yet, by context.
    unmarked: Vec<(u32, Arc<Object>)>,
    size: u32,
    began: Instant,
    batches: VecDeque<Batch>,
    free_words: Vec<usize>,
    number: u64,
    /// Pieces of work in a batch, and how long it should take.
    limit: u32,
    aim: Duration,
    last_given: Instant,
    last_done: Instant,
}

impl Flow {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            tracked: false,
            inside: 0,
            synced: false,
            reported: Report::default(),
            unmarked: Vec::new(),
            size: 0,
            began: now,
            batches: VecDeque::new(),
            free_words: (0..marks::COUNT).collect(),
            number: 0,
            limit: 1,
            aim: BATCH,
            last_given: now,
            last_done: now,
        }
    }

    /// The dispatch state is free: what is given from now on is not tracked. What was given before still is.
    pub(super) fn forget(&mut self, marks: &Marks) {
        // Words still to be written cannot be used again before they are.
        self.retire(marks);
        self.tracked = false;
        self.size = 0;
    }

    pub(super) fn has_room(&self, depth: u8) -> bool {
        depth == UNBOUNDED || self.batches.len() < usize::from(depth)
    }

    /// Is there work on the GPU, or on its way?
    pub(super) fn is_busy(&self) -> bool {
        self.inside > 0 || !self.unmarked.is_empty() || !self.batches.is_empty()
    }

    /// Is there, or will there be in a moment?
    pub(super) fn is_lingering(&self, depth: u8) -> bool {
        let linger = match depth {
            UNBOUNDED if self.synced => LINGER_SYNCED,
            UNBOUNDED => LINGER_ABOVE,
            _ => LINGER,
        };
        self.is_busy() || self.last_given.elapsed() < linger
    }

    /// Is more on its way that could go into the same batch?
    pub(super) fn is_lingering_with_more(&self) -> bool {
        self.inside > 0 || self.last_given.elapsed() < LINGER_SYNCED
    }

    pub(super) fn has_unmarked(&self) -> bool {
        !self.unmarked.is_empty()
    }

    /// Notes a stream that has work without a mark.
    pub(super) fn touch(&mut self, context: u32, stream: Arc<Object>) {
        if !self.unmarked.iter().any(|(known, object)| *known == context && object.serial == stream.serial) {
            self.unmarked.push((context, stream));
        }
    }

    /// Work was given to a stream.
    pub(super) fn give(&mut self, worker: &Worker, marks: &Marks, depth: u8, context: u32, stream: Arc<Object>) {
        if capture::is_captured(worker, stream.raw as CUstream) {
            return;
        }
        self.aim = if depth == 1 { BATCH_BELOW } else { BATCH };
        self.last_given = Instant::now();
        self.synced = false;
        if self.size == 0 {
            self.began = self.last_given;
        }
        self.size += 1;
        self.touch(context, stream);
        // Who may have any amount under way needs to know only when all of it is done.
        if self.size >= if depth == UNBOUNDED { MOST_IN_BATCH } else { self.limit } {
            self.mark(worker, marks);
        }
    }

    /// Ends the batch: asks the GPU to say when it is done.
    pub(super) fn mark(&mut self, worker: &Worker, marks: &Marks) {
        if self.unmarked.is_empty() {
            return;
        }
        let mut batch = Batch { marks: Vec::new(), size: self.size, began: self.began };
        let before = worker.context_tag();
        for (context, stream) in std::mem::take(&mut self.unmarked) {
            let raw = stream.raw as CUstream;
            let Some(word) = self.free_words.pop() else {
                self.unmarked.push((context, stream));
                continue;
            };
            self.number += 1;
            let held = worker.enter_quietly(context);
            // The default streams wait for others, which a capture does not allow them.
            let implicit = stream.raw <= 1 && worker.graphs.is_capturing();
            if held.is_ok() && (implicit || capture::is_captured(worker, raw)) {
                // Until the capture ends nobody knows.
                self.free_words.push(word);
                self.unmarked.push((context, stream));
                continue;
            }
            // SAFETY: the stream is held, its context is current, and the word is registered and lives as long as we.
            let marked = held.is_ok().then(|| unsafe {
                (worker.driver.cuStreamWriteValue64_v2)(raw, marks.address(word), self.number, 0)
            });
            if marked == Some(CUDA_SUCCESS) {
                batch.marks.push((word, self.number));
            } else {
                // Nothing more comes of a context that is gone or faulted.
                self.free_words.push(word);
            }
        }
        if worker.context_tag() != before {
            // The thread may be in the middle of something.
            let _ = worker.enter_quietly(before);
        }
        if !batch.marks.is_empty() || self.unmarked.is_empty() {
            self.size = 0;
            self.batches.push_back(batch);
        }
    }

    /// Takes out what is done, and learns from it how long work takes; answers how many batches that are.
    pub(super) fn retire(&mut self, marks: &Marks) -> u64 {
        let mut done = 0;
        while let Some(batch) = self.batches.front()
            && batch.marks.iter().all(|(word, number)| marks.reached(*word, *number))
        {
            let now = Instant::now();
            let took = now.saturating_duration_since(batch.began.max(self.last_done));
            let (size, words) = (batch.size, batch.marks.iter().map(|(word, _)| *word));
            self.free_words.extend(words);
            self.last_done = now;
            self.batches.pop_front();
            done += 1;
            if size > 0 {
                let fitting = self.aim.as_nanos() * u128::from(size) / took.as_nanos().max(1);
                let most = (self.limit * 2).min(MOST_IN_BATCH);
                self.limit = u32::try_from(fitting).unwrap_or(most).clamp(1, most);
            }
        }
        done
    }

    pub(super) fn forget_context(&mut self, context: u32) {
        self.unmarked.retain(|(known, _)| *known != context);
    }

    /// None of it will ever be done. The words of it are not used again.
    pub(super) fn abandon(&mut self) {
        self.unmarked.clear();
        self.batches.clear();
        self.size = 0;
    }
}
