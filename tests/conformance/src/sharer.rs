//! A program that shares memory and events with others like it, as its standard input says, and answers each line: `ok`,
//! `error` and CUDA's code, or what was asked for.
//!
//! | line | meaning |
//! |---|---|
//! | `alloc N` | takes N bytes; from here on they are what the others speak of |
//! | `pooled N` | the same from a pool that can be shared |
//! | `create N` | the same by virtual memory management |
//! | `fill V` | fills the memory with the number V, and waits |
//! | `begin V` | fills it when `go` is said, and not before; others can see that it is under way by the event |
//! | `go` | lets `begin` go on |
//! | `watch` | a kernel reads the first number of the memory until it is not 0 |
//! | `watched` | waits until it has seen that |
//! | `later` | copies the memory, in the order of the stream, for `result` to look at |
//! | `result` | waits for the stream, and says what `later` copied |
//! | `read` | says which number the memory is full of, or `mixed` |
//! | `handle`, `open H`, `close` | the handle of the memory; opens one; closes it |
//! | `export`, `import H` | the same by pools, or by descriptors: then H is a process and a descriptor of it |
//! | `free` | frees the memory |
//! | `event`, `record`, `wait`, `query`, `meet`, `drop` | makes an event; records it; has the stream wait for it; asks; waits for it; destroys it |
//! | `event-handle`, `open-event H` | the handle of the event; opens one |
//! | `free-bytes` | how much memory the zone has left |
//! | `surroundings` | what the process sees of where it is |
//! | `quit` | ends as a program should |

use std::io::BufRead;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;

use cuda_abi::constants::{allocation_type, handle_type};
use cuda_abi::driver::Driver;
use cuda_abi::error::CUresult;
use cuda_abi::types::*;

use crate::backend::Backend;
use crate::calls::{self, NON_BLOCKING, code, ok};

const INTERPROCESS: u32 = 4 | 2;
const DEVICE: CUmemLocation = CUmemLocation { kind: 1, id: 0 };

/// What a line is answered with: CUDA's code if it is not 0, else a text.
type Answer = Result<String, CUresult>;

/// Serves on a GPU until standard input ends.
pub fn run(device: CUdevice) {
    let gpu = Backend::Library("libcuda.so.1".to_owned()).load().unwrap_or_else(|error| panic!("{error}"));
    ok!(&gpu, cuInit(0));
    let mut context = null_mut();
    ok!(&gpu, cuCtxCreate_v2(&mut context, 0, device));
    let mut sharer = Sharer {
        stream: calls::stream(&gpu, NON_BLOCKING),
        spin: calls::kernel(&gpu, "spin"),
        flag: calls::pinned(&gpu, 1),
        copy: &mut [],
        memory: 0,
        len: 0,
        physical: 0,
        pool: null_mut(),
        event: null_mut(),
        gpu,
    };
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        if word == "quit" {
            ok!(&sharer.gpu, cuCtxDestroy_v2(context));
            return;
        }
        match sharer.obey(word, rest) {
            Ok(text) if text.is_empty() => println!("ok"),
            Ok(text) => println!("{text}"),
            Err(code) => println!("error {code}"),
        }
    }
}

struct Sharer {
    gpu: Driver,
    stream: CUstream,
    spin: CUfunction,
    flag: &'static mut [u32],
    copy: &'static mut [u32],
    memory: CUdeviceptr,
    len: usize,
    physical: CUmemGenericAllocationHandle,
    pool: CUmemoryPool,
    event: CUevent,
}

fn done(code: CUresult) -> Answer {
    if code == 0 { Ok(String::new()) } else { Err(code) }
}

fn from_hex(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    hex::decode_to_slice(text, &mut bytes).expect("128 hexadecimal digits");
    bytes
}

/// A descriptor of another process's, as if it had come over a socket.
fn descriptor(text: &str) -> OwnedFd {
    let (pid, fd) = text.split_once(' ').expect("a process and a descriptor");
    std::fs::File::open(format!("/proc/{pid}/fd/{fd}")).expect("its descriptor").into()
}

fn uniform(words: &[u32]) -> String {
    match words {
        [first, rest @ ..] if rest.iter().all(|word| word == first) => first.to_string(),
        _ => "mixed".to_owned(),
    }
}

impl Sharer {
    fn obey(&mut self, word: &str, rest: &str) -> Answer {
        let number: usize = rest.parse().unwrap_or(0);
        let gpu = &self.gpu;
        match word {
            "alloc" => {
                self.len = number;
                done(code!(gpu, cuMemAlloc_v2(&mut self.memory, number)))
            }
            "pooled" => self.pooled(number),
            "create" => self.create(number),
            "fill" => done(self.fill(number as u32)).and_then(|_| done(self.synchronize())),
            "begin" => {
                let words = [self.flag.as_ptr() as u64];
                let spun = calls::launch(gpu, self.spin, 1, 1, self.stream, &words);
                done(spun).and_then(|_| done(self.fill(number as u32)))
            }
            "watch" => done(calls::launch(gpu, self.spin, 1, 1, self.stream, &[self.memory])),
            "watched" => done(self.synchronize()),
            "go" => {
                // SAFETY: pinned memory of ours, which a kernel looks at.
                unsafe { self.flag.as_mut_ptr().write_volatile(1) };
                Ok(String::new())
            }
            "later" => {
                self.copy = calls::pinned(gpu, self.len / 4);
                let to = self.copy.as_mut_ptr().cast();
                done(code!(gpu, cuMemcpyDtoHAsync_v2(to, self.memory, self.len, self.stream)))
            }
            "result" => {
                done(self.synchronize())?;
                Ok(uniform(self.copy))
            }
            "read" => {
                let mut words = vec![0u32; self.len / 4];
                done(code!(gpu, cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), self.memory, self.len)))?;
                Ok(uniform(&words))
            }
            "handle" => {
                let mut handle = CUipcMemHandle::default();
                done(code!(gpu, cuIpcGetMemHandle(&mut handle, self.memory)))?;
                Ok(hex::encode(handle.0))
            }
            "open" => {
                let handle = CUipcMemHandle(from_hex(rest));
                done(code!(gpu, cuIpcOpenMemHandle_v2(&mut self.memory, handle, 1)))?;
                let mut len = 0;
                done(code!(gpu, cuMemGetAddressRange_v2(null_mut(), &mut len, self.memory)))?;
                self.len = len;
                Ok(format!("{:#x} {len}", self.memory))
            }
            "close" => done(code!(gpu, cuIpcCloseMemHandle(self.memory))),
            "export" => self.export(),
            "import" => self.import(rest),
            "free" => done(code!(gpu, cuMemFree_v2(self.memory))),
            "event" => done(code!(gpu, cuEventCreate(&mut self.event, INTERPROCESS))),
            "record" => done(code!(gpu, cuEventRecord(self.event, self.stream))),
            "wait" => done(code!(gpu, cuStreamWaitEvent(self.stream, self.event, 0))),
            "query" => done(code!(gpu, cuEventQuery(self.event))),
            "meet" => done(code!(gpu, cuEventSynchronize(self.event))),
            "drop" => done(code!(gpu, cuEventDestroy_v2(self.event))),
            "event-handle" => {
                let mut handle = CUipcEventHandle::default();
                done(code!(gpu, cuIpcGetEventHandle(&mut handle, self.event)))?;
                Ok(hex::encode(handle.0))
            }
            "open-event" => done(code!(gpu, cuIpcOpenEventHandle(&mut self.event, CUipcEventHandle(from_hex(rest))))),
            "surroundings" => Ok(crate::truth_table::surroundings()),
            "free-bytes" => {
                let mut free = 0;
                done(code!(gpu, cuMemGetInfo_v2(&mut free, null_mut())))?;
                Ok(free.to_string())
            }
            other => panic!("what is {other:?}?"),
        }
    }

    fn fill(&self, value: u32) -> CUresult {
        code!(&self.gpu, cuMemsetD32Async(self.memory, value, self.len / 4, self.stream))
    }

    fn synchronize(&self) -> CUresult {
        code!(&self.gpu, cuStreamSynchronize(self.stream))
    }

    fn pooled(&mut self, bytes: usize) -> Answer {
        let gpu = &self.gpu;
        let wanted = CUmemPoolProps {
            alloc_type: allocation_type::PINNED,
            handle_types: handle_type::POSIX_FILE_DESCRIPTOR,
            location: DEVICE,
            ..Default::default()
        };
        done(code!(gpu, cuMemPoolCreate(&mut self.pool, &wanted)))?;
        self.len = bytes;
        done(code!(gpu, cuMemAllocFromPoolAsync(&mut self.memory, bytes, self.pool, self.stream)))
    }

    fn create(&mut self, bytes: usize) -> Answer {
        let wanted = CUmemAllocationProp {
            kind: allocation_type::PINNED,
            requested_handle_types: handle_type::POSIX_FILE_DESCRIPTOR,
            location: DEVICE,
            ..Default::default()
        };
        done(code!(&self.gpu, cuMemCreate(&mut self.physical, bytes, &wanted, 0)))?;
        self.map(bytes)
    }

    fn map(&mut self, bytes: usize) -> Answer {
        let gpu = &self.gpu;
        let access = CUmemAccessDesc { location: DEVICE, flags: 3 };
        self.len = bytes;
        done(code!(gpu, cuMemAddressReserve(&mut self.memory, bytes, 0, 0, 0)))?;
        done(code!(gpu, cuMemMap(self.memory, bytes, 0, self.physical, 0)))?;
        done(code!(gpu, cuMemSetAccess(self.memory, bytes, &access, 1)))
    }

    /// Of a pool: its descriptor and the pointer's handle; otherwise the descriptor of physical memory.
    fn export(&mut self) -> Answer {
        let (gpu, mut fd) = (&self.gpu, -1i32);
        let out = (&raw mut fd).cast::<c_void>();
        if self.pool.is_null() {
            done(code!(
                gpu,
                cuMemExportToShareableHandle(out, self.physical, handle_type::POSIX_FILE_DESCRIPTOR, 0)
            ))?;
            return Ok(format!("{} {fd}", std::process::id()));
        }
        let mut pointer = CUmemPoolPtrExportData::default();
        done(code!(gpu, cuMemPoolExportToShareableHandle(out, self.pool, handle_type::POSIX_FILE_DESCRIPTOR, 0)))?;
        done(code!(gpu, cuMemPoolExportPointer(&mut pointer, self.memory)))?;
        Ok(format!("{} {fd} {}", std::process::id(), hex::encode(pointer.0)))
    }

    fn import(&mut self, text: &str) -> Answer {
        let gpu = &self.gpu;
        match text.rsplit_once(' ') {
            Some((place, pointer)) if pointer.len() == 128 => {
                let fd = descriptor(place);
                let number = fd.as_raw_fd() as usize as *mut c_void;
                done(code!(
                    gpu,
                    cuMemPoolImportFromShareableHandle(&mut self.pool, number, handle_type::POSIX_FILE_DESCRIPTOR, 0)
                ))?;
                let mut data = CUmemPoolPtrExportData(from_hex(pointer));
                done(code!(gpu, cuMemPoolImportPointer(&mut self.memory, self.pool, &mut data)))?;
                let mut len = 0;
                done(code!(gpu, cuMemGetAddressRange_v2(null_mut(), &mut len, self.memory)))?;
                self.len = len;
                Ok(String::new())
            }
            _ => {
                let fd = descriptor(text);
                let number = fd.as_raw_fd() as usize as *mut c_void;
                done(code!(
                    gpu,
                    cuMemImportFromShareableHandle(&mut self.physical, number, handle_type::POSIX_FILE_DESCRIPTOR)
                ))?;
                self.map(2 << 20)
            }
        }
    }
}
