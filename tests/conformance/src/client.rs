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
//! | `saturate` | keeps the GPU busy from now on, and answers at once |
//! | `rounds` | how many kernels that has completed so far, instead of `ok` |
//! | `pinned N` | takes N bytes of pinned memory |
//! | `array N` | takes an array of N rows of 1024 numbers |
//! | `unarray` | gives back what `array` took last |
//! | `capture N` | captures N launches into a graph, and keeps it |
//! | `ungraph` | gives back the graph of the last `capture` |
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
use crate::calls::{self, DEFAULT_STREAM, code, ok};

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
        data: calls::alloc(&gpu, COUNT * 4),
        taken: Vec::new(),
        arrays: Vec::new(),
        graphs: Vec::new(),
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
        let code = match word {
            "saturate" => client.saturate(context),
            "compute" => client.compute(),
            "alloc" => client.alloc(number),
            "fill" => client.fill(number),
            "free" => client.taken.pop().map_or(0, |address| code!(&client.gpu, cuMemFree_v2(address))),
            "sync" => code!(&client.gpu, cuCtxSynchronize()),
            "spin" => client.spin(),
            "pinned" => code!(&client.gpu, cuMemHostAlloc(&mut null_mut(), number, 0)),
            "array" => client.array(number),
            "unarray" => client.arrays.pop().map_or(0, |array| code!(&client.gpu, cuArrayDestroy(array))),
            "capture" => client.capture(number),
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
    data: CUdeviceptr,
    taken: Vec<CUdeviceptr>,
    arrays: Vec<CUarray>,
    graphs: Vec<CUgraph>,
}

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

    fn spin(&self) -> CUresult {
        let flag = calls::pinned(&self.gpu, 1);
        calls::launch(&self.gpu, self.spin, 1, 1, DEFAULT_STREAM, &[flag.as_ptr() as u64])
    }
}
