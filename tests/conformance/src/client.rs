//! An honest program that does what its standard input says, one word or two a line, and answers each on its standard
//! output: `ok`, or `error` and CUDA's code.
//!
//! | line | meaning |
//! |---|---|
//! | `compute` | has a kernel double some numbers, and checks all of them |
//! | `alloc N` | takes N more bytes |
//! | `fill N` | takes N more bytes, writes all of them, and waits |
//! | `free` | gives back what `alloc` took last |
//! | `sync` | waits for the context |
//! | `spin` | starts a kernel that never ends |
//! | `hide N` | starts one where it is hard to find, in the Nth of the ways below |
//! | `count` | starts a kernel that counts until it is told to finish |
//! | `counted` | how far that has come, instead of `ok` |
//! | `finish` | tells that to finish |
//! | `saturate` | keeps the GPU busy from now on, and answers at once |
//! | `rounds` | how many kernels that has completed so far, instead of `ok` |
//! | `pinned N` | takes N bytes of pinned memory |
//! | `array N` | takes an array of N rows of 1024 numbers |
//! | `unarray` | gives back what `array` took last |
//! | `capture N` | captures N launches into a graph, and keeps it |
//! | `ungraph` | gives back the graph of the last `capture` |
//! | `mixed N` | takes N blocks of mixed sizes, from pools and not, and an array, and fills each with a pattern of its own |
//! | `verify` | compares all of them with their patterns |
//! | `toil` | computes and compares from now on, and answers at once; `rounds` counts it |
//! | `begin`, `end` | begins a capture and leaves it open; ends it |
//! | `quit` | ends as a program should |
//! | `exit N` | ends at once, with nothing given back |
//! | `abort` | ends by a signal |

use std::io::BufRead;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::constants::{array_format, capture_mode};
use cuda_abi::driver::Driver;
use cuda_abi::error::CUresult;
use cuda_abi::types::*;

use crate::backend::Backend;
use crate::calls::{self, DEFAULT_STREAM, NON_BLOCKING, code, ok};

/// What `compute` works on.
const COUNT: usize = 100_000;

/// Serves until standard input ends.
pub fn run() {
    let gpu = Backend::Library("libcuda.so.1".to_owned()).load().unwrap_or_else(|error| panic!("{error}"));
    let context = calls::context(&gpu);
    let module = calls::module(&gpu, calls::KERNELS);
    let mut client = Client {
        double: calls::function(&gpu, module, "double"),
        spin: calls::function(&gpu, module, "spin"),
        count: calls::function(&gpu, module, "count"),
        counter: None,
        data: calls::alloc(&gpu, COUNT * 4),
        taken: Vec::new(),
        arrays: Vec::new(),
        graphs: Vec::new(),
        patterns: Vec::new(),
        pictures: Vec::new(),
        open: null_mut(),
        gpu,
    };
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (word, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: usize = number.parse().expect("a number");
        if word == "rounds" {
            println!("{}", ROUNDS.load(Ordering::Relaxed));
            continue;
        }
        if word == "counted" {
            println!("{}", client.counter.map_or(0, |words| words[1].load(Ordering::Relaxed)));
            continue;
        }
        let code = match word {
            "count" => client.count(),
            "finish" => client.finish(),
            "saturate" => client.saturate(context),
            "compute" => client.compute(),
            "alloc" => client.alloc(number),
            "fill" => client.fill(number),
            "free" => client.taken.pop().map_or(0, |address| code!(&client.gpu, cuMemFree_v2(address))),
            "sync" => code!(&client.gpu, cuCtxSynchronize()),
            "spin" => client.spin(DEFAULT_STREAM),
            "hide" => client.hide(number),
            "elsewhere" => client.elsewhere(),
            "pinned" => code!(&client.gpu, cuMemHostAlloc(&mut null_mut(), number, 0)),
            "array" => client.array(number),
            "unarray" => client.arrays.pop().map_or(0, |array| code!(&client.gpu, cuArrayDestroy(array))),
            "capture" => client.capture(number),
            "mixed" => client.mixed(number),
            "verify" => client.verify(),
            "toil" => client.toil(context),
            "begin" => client.begin(),
            "end" => client.end(),
            "ungraph" => client.graphs.pop().map_or(0, |graph| code!(&client.gpu, cuGraphDestroy(graph))),
            "quit" => {
                ok!(&client.gpu, cuMemFree_v2(client.data));
                ok!(&client.gpu, cuCtxDestroy_v2(context));
                return;
            }
            // SAFETY: ends the process, which is the point.
            "exit" => unsafe { libc::_exit(number as i32) },
            "abort" => std::process::abort(),
            other => panic!("what is {other:?}?"),
        };
        match code {
            0 => println!("ok"),
            code => println!("error {code}"),
        }
    }
}

struct Client {
    gpu: Driver,
    double: CUfunction,
    spin: CUfunction,
    count: CUfunction,
    /// The flag and the count of `count`.
    counter: Option<&'static [AtomicU64; 2]>,
    data: CUdeviceptr,
    taken: Vec<CUdeviceptr>,
    arrays: Vec<CUarray>,
    graphs: Vec<CUgraph>,
    /// What `mixed` took: address and length; arrays.
    patterns: Vec<(CUdeviceptr, usize)>,
    pictures: Vec<CUarray>,
    /// The stream whose capture is open.
    open: CUstream,
}

/// What belongs where.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) as u8).collect()
}

/// Bytes of the array that `mixed` makes.
const ROW: usize = 4096;

/// Kernels that `saturate` has completed.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

impl Client {
    /// A thread that never lets the GPU run dry, until something fails or the process ends. Several batches are under
    /// way at any time, so that the next kernels wait in the worker also while this thread waits for a core.
    fn saturate(&self, context: CUcontext) -> CUresult {
        const BATCHES: usize = 8;
        const KERNELS: u64 = 8;
        let (gpu, double, data) = (self.gpu, self.double as usize, self.data);
        let context = context as usize;
        let run = move || {
            ok!(&gpu, cuCtxSetCurrent(context as CUcontext));
            let ends = [(); BATCHES].map(|()| calls::event(&gpu, 0));
            for round in 0.. {
                let end = ends[round % BATCHES];
                if code!(&gpu, cuEventSynchronize(end)) != 0 {
                    return;
                }
                if round >= BATCHES {
                    ROUNDS.fetch_add(KERNELS, Ordering::Relaxed);
                }
                for _ in 0..KERNELS {
                    if calls::launch(&gpu, double as CUfunction, 400, 256, DEFAULT_STREAM, &[data, COUNT as u64]) != 0
                    {
                        return;
                    }
                }
                if code!(&gpu, cuEventRecord(end, DEFAULT_STREAM)) != 0 {
                    return;
                }
            }
        };
        std::thread::spawn(run);
        0
    }

    fn compute(&self) -> CUresult {
        let values: Vec<u32> = (0..COUNT as u32).collect();
        let sent = code!(&self.gpu, cuMemcpyHtoD_v2(self.data, values.as_ptr().cast(), COUNT * 4));
        let words = [self.data, COUNT as u64];
        let launched = calls::launch(&self.gpu, self.double, 400, 256, DEFAULT_STREAM, &words);
        let mut results = vec![0u32; COUNT];
        let got = code!(&self.gpu, cuMemcpyDtoH_v2(results.as_mut_ptr().cast(), self.data, COUNT * 4));
        let failed = [sent, launched, got].into_iter().find(|code| *code != 0);
        if failed.is_none() {
            let right = values.iter().zip(&results).all(|(value, result)| *result == value * 2);
            assert!(right, "the GPU computed something else");
        }
        failed.unwrap_or(0)
    }

    fn alloc(&mut self, bytes: usize) -> CUresult {
        let mut address = 0;
        let code = code!(&self.gpu, cuMemAlloc_v2(&mut address, bytes));
        if code == 0 {
            self.taken.push(address);
        }
        code
    }

    fn fill(&mut self, bytes: usize) -> CUresult {
        match (self.alloc(bytes), self.taken.last()) {
            (0, Some(address)) => match code!(&self.gpu, cuMemsetD8_v2(*address, 7, bytes)) {
                0 => code!(&self.gpu, cuCtxSynchronize()),
                failed => failed,
            },
            (failed, _) => failed,
        }
    }

    fn array(&mut self, rows: usize) -> CUresult {
        let mut array = null_mut();
        let shape = CUDA_ARRAY_DESCRIPTOR { width: 1024, height: rows, format: array_format::FLOAT, num_channels: 1 };
        let code = code!(&self.gpu, cuArrayCreate_v2(&mut array, &shape));
        if code == 0 {
            self.arrays.push(array);
        }
        code
    }

    fn mixed(&mut self, count: usize) -> CUresult {
        const SIZES: [usize; 7] = [100, 4096, 70_000, 1 << 20, (1 << 20) + 1, 3 << 20, 5_000_000];
        for at in 0..count {
            let (mut address, len) = (0, SIZES[at % SIZES.len()] + at);
            let code = match at % 2 {
                0 => code!(&self.gpu, cuMemAlloc_v2(&mut address, len)),
                _ => code!(&self.gpu, cuMemAllocAsync(&mut address, len, DEFAULT_STREAM)),
            };
            if code != 0 {
                return code;
            }
            let bytes = pattern(address, len);
            ok!(&self.gpu, cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), len));
            self.patterns.push((address, len));
        }
        let mut array = null_mut();
        let shape = CUDA_ARRAY_DESCRIPTOR { width: ROW / 4, height: 0, format: array_format::FLOAT, num_channels: 1 };
        ok!(&self.gpu, cuArrayCreate_v2(&mut array, &shape));
        ok!(&self.gpu, cuMemcpyHtoA_v2(array, 0, pattern(1, ROW).as_ptr().cast(), ROW));
        self.pictures.push(array);
        0
    }

    fn verify(&self) -> CUresult {
        for (address, len) in &self.patterns {
            let mut bytes = vec![0u8; *len];
            let code = code!(&self.gpu, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), *address, *len));
            if code != 0 {
                return code;
            }
            assert!(bytes == pattern(*address, *len), "the {len} bytes at {address:#x} are others");
        }
        for array in &self.pictures {
            let mut bytes = vec![0u8; ROW];
            ok!(&self.gpu, cuMemcpyAtoH_v2(bytes.as_mut_ptr().cast(), *array, 0, ROW));
            assert!(bytes == pattern(1, ROW), "an array has other contents");
        }
        0
    }

    /// A thread that computes on memory of its own, whose contents go through all rounds. What is wrong ends the process.
    fn toil(&self, context: CUcontext) -> CUresult {
        const COUNT: usize = 50_000;
        let (gpu, double) = (self.gpu, self.double as usize);
        let context = context as usize;
        let run = move || {
            ok!(&gpu, cuCtxSetCurrent(context as CUcontext));
            let data = calls::alloc(&gpu, COUNT * 4);
            let stream = calls::stream(&gpu, 1);
            let mut expected: Vec<u32> = (0..COUNT as u32).collect();
            // A copy from pageable memory may return before it is done, and this stream waits for no other.
            ok!(&gpu, cuMemcpyHtoD_v2(data, expected.as_ptr().cast(), COUNT * 4));
            ok!(&gpu, cuCtxSynchronize());
            loop {
                for _ in 0..3 {
                    let words = [data, COUNT as u64];
                    if calls::launch(&gpu, double as CUfunction, 200, 256, stream, &words) != 0 {
                        return;
                    }
                    expected.iter_mut().for_each(|value| *value = value.wrapping_mul(2));
                }
                let (mut extra, mut found) = (0, vec![0u32; COUNT]);
                let taken = code!(&gpu, cuMemAlloc_v2(&mut extra, 3 << 20));
                let waited = code!(&gpu, cuStreamSynchronize(stream));
                let got = code!(&gpu, cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), data, COUNT * 4));
                let given = code!(&gpu, cuMemFree_v2(extra));
                if [taken, waited, got, given] != [0; 4] {
                    return;
                }
                if found != expected {
                    eprintln!("the GPU computed something else");
                    std::process::abort();
                }
                // What doubles for ever becomes 0.
                expected.iter_mut().zip(0..).for_each(|(value, at)| *value = value.wrapping_add(at));
                ok!(&gpu, cuMemcpyHtoD_v2(data, expected.as_ptr().cast(), COUNT * 4));
                ok!(&gpu, cuCtxSynchronize());
                ROUNDS.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::spawn(run);
        0
    }

    fn begin(&mut self) -> CUresult {
        self.open = calls::stream(&self.gpu, 1);
        code!(&self.gpu, cuStreamBeginCapture_v2(self.open, capture_mode::THREAD_LOCAL))
    }

    fn end(&mut self) -> CUresult {
        let mut graph = null_mut();
        let code = code!(&self.gpu, cuStreamEndCapture(self.open, &mut graph));
        self.graphs.push(graph);
        code
    }

    /// The graph is kept, also where not all of them were taken.
    fn capture(&mut self, launches: usize) -> CUresult {
        let (gpu, words) = (&self.gpu, [self.data, COUNT as u64]);
        let stream = calls::stream(gpu, 1);
        ok!(gpu, cuStreamBeginCapture_v2(stream, capture_mode::THREAD_LOCAL));
        let codes = (0..launches).map(|_| calls::launch(gpu, self.double, 1, 32, stream, &words));
        let failed = codes.into_iter().find(|code| *code != 0);
        let mut graph = null_mut();
        ok!(gpu, cuStreamEndCapture(stream, &mut graph));
        ok!(gpu, cuStreamDestroy_v2(stream));
        self.graphs.push(graph);
        failed.unwrap_or(0)
    }

    /// Copies on a stream of the second device, while the first one's context is current.
    fn elsewhere(&self) -> CUresult {
        let gpu = &self.gpu;
        let (mut first, mut second) = (null_mut(), null_mut());
        ok!(gpu, cuCtxGetCurrent(&mut first));
        ok!(gpu, cuDevicePrimaryCtxRetain(&mut second, 1));
        ok!(gpu, cuCtxSetCurrent(second));
        let (stream, memory) = (calls::stream(gpu, 1), calls::alloc(gpu, COUNT * 8));
        ok!(gpu, cuMemsetD8_v2(memory, 7, COUNT * 4));
        ok!(gpu, cuCtxSynchronize());
        ok!(gpu, cuCtxSetCurrent(first));
        let copied = code!(gpu, cuMemcpyDtoDAsync_v2(memory + COUNT as u64 * 4, memory, COUNT * 4, stream));
        ok!(gpu, cuStreamSynchronize(stream));
        ok!(gpu, cuCtxSetCurrent(second));
        let mut bytes = vec![0u8; COUNT * 8];
        ok!(gpu, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory, bytes.len()));
        assert!(copied != 0 || bytes.iter().all(|byte| *byte == 7), "it was copied");
        ok!(gpu, cuMemFree_v2(memory));
        ok!(gpu, cuStreamDestroy_v2(stream));
        ok!(gpu, cuCtxSetCurrent(first));
        copied
    }

    fn count(&mut self) -> CUresult {
        let words = calls::pinned(&self.gpu, 4).as_ptr().cast::<[AtomicU64; 2]>();
        // SAFETY: pages of pinned memory are never freed here, are large and aligned enough, and used in no other way.
        let words = unsafe { &*words };
        self.counter = Some(words);
        calls::launch(&self.gpu, self.count, 1, 1, DEFAULT_STREAM, &[words.as_ptr() as u64])
    }

    fn finish(&self) -> CUresult {
        self.counter.iter().for_each(|words| words[0].store(1, Ordering::Relaxed));
        0
    }

    fn spin(&self, stream: CUstream) -> CUresult {
        let flag = calls::pinned(&self.gpu, 1);
        calls::launch(&self.gpu, self.spin, 1, 1, stream, &[flag.as_ptr() as u64])
    }

    fn hide(&self, way: usize) -> CUresult {
        let gpu = &self.gpu;
        let stream = || calls::stream(gpu, NON_BLOCKING);
        let capture = |stream| ok!(gpu, cuStreamBeginCapture_v2(stream, capture_mode::RELAXED));
        let hidden = stream();
        match way {
            // Many others were used after it.
            0 => {
                let (others, started) = ([(); 100].map(|()| stream()), self.spin(hidden));
                others.into_iter().for_each(|other| ok!(gpu, cuStreamSynchronize(other)));
                started
            }
            // Its stream is gone.
            1 => {
                let started = self.spin(hidden);
                ok!(gpu, cuStreamDestroy_v2(hidden));
                started
            }
            // Its stream is captured by now.
            2 => {
                let started = self.spin(hidden);
                capture(hidden);
                started
            }
            // Another stream is captured, while which default streams cannot be asked.
            3 => {
                capture(hidden);
                self.spin(DEFAULT_STREAM)
            }
            // The same, and it is in a stream of its own.
            4 => {
                capture(hidden);
                self.spin(stream())
            }
            // Another context of its has faulted.
            5 => {
                let (mut first, mut second) = (null_mut(), null_mut());
                ok!(gpu, cuCtxGetCurrent(&mut first));
                ok!(gpu, cuCtxCreate_v2(&mut second, 0, 0));
                let spin = calls::kernel(gpu, "spin");
                let flag = calls::pinned(gpu, 1);
                let started = calls::launch(gpu, spin, 1, 1, stream(), &[flag.as_ptr() as u64]);
                ok!(gpu, cuCtxSetCurrent(first));
                calls::launch(gpu, self.double, 1, 32, DEFAULT_STREAM, &[16, 32]);
                assert_ne!(code!(gpu, cuCtxSynchronize()), 0, "it has faulted");
                started
            }
            _ => panic!("there is no way {way}"),
        }
    }
}
