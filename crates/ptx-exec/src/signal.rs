//! Faults of the machine that belong to a kernel.
//!
//! A kernel that touches unmapped memory in the window raises SIGSEGV or SIGBUS, one that overflows its stack check
//! runs into an invalid instruction. While a fiber runs, a thread-local names it; the handler then lets the fiber
//! return to the scheduler with a `Trap`. Everything else goes to the handlers that were installed before ours.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Once, OnceLock};

use corosensei::trap::CoroutineTrapHandler;

use super::context::Trap;
use crate::window;

struct Running {
    handler: CoroutineTrapHandler<Trap>,
    code: (u64, u64),
}

thread_local! {
    /// The fiber that runs on this thread. Const-initialised and without a destructor, so a signal handler may read it.
    static RUNNING: Cell<*const Running> = const { Cell::new(ptr::null()) };
}

const SIGNALS: [libc::c_int; 3] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL];

static PREVIOUS: [OnceLock<libc::sigaction>; 3] = [const { OnceLock::new() }; 3];

/// Installs the handlers, once in the process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS) {
            let mut old = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: both structures are valid, and the handler does only what a signal handler may.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigemptyset(&mut action.sa_mask);
                // Asked first, so that the handler never runs without knowing its predecessor.
                libc::sigaction(signal, ptr::null(), old.as_mut_ptr());
                let _ = previous.set(old.assume_init());
                libc::sigaction(signal, &action, ptr::null_mut());
            }
        }
    });
}

/// Runs `body`, which resumes the fiber of `handler`, with the signals of the fiber's code caught.
pub(crate) fn guarded<T>(handler: &CoroutineTrapHandler<Trap>, code: (u64, u64), body: impl FnOnce() -> T) -> T {
    let running = Running { handler: *handler, code };
    RUNNING.set(&running);
    let result = body();
    RUNNING.set(ptr::null());
    result
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers.
    let (address, registers) =
        unsafe { ((*info).si_addr() as u64, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let running = RUNNING.get();
    if !running.is_null() {
        // SAFETY: set while `guarded` is on this thread's stack.
        let running = unsafe { &*running };
        let stack_pointer = registers[libc::REG_RSP as usize] as usize;
        let pc = registers[libc::REG_RIP as usize] as u64;
        let trap = match signal {
            libc::SIGILL => (running.code.0..running.code.1).contains(&pc).then_some(Trap::StackOverflow { pc }),
            _ => (window::BASE..window::BASE + window::SIZE)
                .contains(&address)
                .then_some(Trap::Address { address, pc }),
        };
        if let Some(trap) = trap.filter(|_| running.handler.stack_ptr_in_bounds(stack_pointer)) {
            // SAFETY: the stack pointer is in the fiber, whose frames have nothing to drop, and the registers are
            // updated as required.
            let set = unsafe { running.handler.setup_trap_handler(move || trap) };
            registers[libc::REG_RIP as usize] = set.rip as i64;
            registers[libc::REG_RSP as usize] = set.rsp as i64;
            registers[libc::REG_RBP as usize] = set.rbp as i64;
            registers[libc::REG_RDI as usize] = set.rdi as i64;
            registers[libc::REG_RSI as usize] = set.rsi as i64;
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Does what would have happened without us.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let slot = SIGNALS.iter().position(|s| *s == signal).and_then(|index| PREVIOUS[index].get());
    if let Some(previous) = slot {
        let handler = previous.sa_sigaction;
        if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
            // SAFETY: the previous owner of the signal registered this function with this type.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    let function: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    function(signal, info, context);
                } else {
                    let function: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                    function(signal);
                }
            }
            return;
        }
    }
    // The instruction runs again and the default action ends the process, as it should.
    // SAFETY: resetting a signal to its default is allowed in a handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
}
