//! The one table of the driver API, read from `table/*.abi`.
//!
//! An entry is a head line and, indented below it, the arguments:
//!
//! ```text
//! cuMemsetD32Async 3020 ptsz@7000 post
//!     dst: dev[n*4], value: u32, n: usize, stream: CUstream
//! ```
//!
//! The head says: the exported symbol; the lowest `cudaVersion` for which `cuGetProcAddress` hands it out under its base
//! name (the symbol without `_v2`…; `-` if it never does); optionally the suffix of its per-thread-stream variant and the
//! version of that; how the call is [carried](Carry); and one of these words:
//!
//! | word | meaning |
//! |---|---|
//! | `early` | may be called before `cuInit` |
//! | `pure`, `settled`, `settled-until-launch` | the client may remember the [answer](Lasting); only of what is carried as `call` |
//! | `unsettles` | ends what is settled |
//! | `launches` | starts kernels |
//! | `progress` | asks how far a stream is: what the client has seen done is done |
//!
//! An argument is `name: type`. A type is a C type in Rust's notation, or one of these, which say how generated code
//! carries it and as which type of [`border`](crate::border) hand-written code gets it:
//!
//! | form | C type | meaning |
//! |---|---|---|
//! | `CUstream`, … | the handle | a handle, checked by the worker |
//! | `close CUstream` | the handle | as above, and gone when the call succeeds |
//! | `out T`, `out? T` | `*mut T` | one value out; with `?` the pointer may be NULL |
//! | `in T`, `inout T` | `*const T`, `*mut T` | one plain struct in (and out) |
//! | `in [T; n]` | `*const T` | an array; `n` is a length ([`length_code`]) over other arguments |
//! | `out [T; n]` | `*mut T` | room for an array; with `*n`, `n` points to its length |
//! | `in any`, `out any` | `*const c_void`, `*mut c_void` | a place whose type another argument says |
//! | `versioned T` | `*mut T` | a struct whose first word says which of its versions it is (NVML) |
//! | `str` | `*const c_char` | a NUL-terminated string in |
//! | `dev[n]`, `dev4[n]` | `CUdeviceptr` | a device address of which `n` bytes are used, a multiple of 4; checked |
//! | `set[n]`, `set4[n]` | `CUdeviceptr` | as above, and in a capture any address: the GPU finds out when the graph runs |

use std::fmt;

/// How a call reaches the driver. ARCHITECTURE.md, "Order", says what each means for the order of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// Answered in the client, by hand-written code.
    Local,
    /// Put on the ring; nobody waits.
    Post,
    /// Put on the ring in order; the executor replies.
    Call,
    /// Put in the caller's lane, so that it may block without holding up the ring.
    Block,
    /// Hand-written on both sides.
    Custom,
    /// Answers `CUDA_ERROR_NOT_SUPPORTED`.
    Deny,
}

/// How long the answer of a call stays the same for the same arguments in the same context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// `pure`: until memory is freed or unmapped.
    Pure,
    /// `settled`: until something is set, unloaded or destroyed.
    Settled,
    /// `settled-until-launch`: as `settled`, and until something is launched that was not before: the driver makes room for
    /// the stack that a kernel needs.
    SettledUntilLaunch,
}

/// What an argument is to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Passed as it is.
    Value,
    /// A handle, which the worker checks.
    Handle,
    /// A handle that is gone when the call succeeds.
    Close,
    /// One value out.
    Out {
        /// The pointer may be NULL.
        optional: bool,
    },
    /// One plain struct in.
    In,
    /// One plain struct in and out.
    InOut,
    /// An array in.
    InArray {
        /// Its length over other arguments, as [`length_code`] reads it.
        count: String,
    },
    /// Room for an array.
    OutArray {
        /// Its length over other arguments; with `*`, the argument points to it.
        count: String,
    },
    /// A place whose type another argument says.
    Any {
        /// The call writes there.
        written: bool,
    },
    /// A struct whose first word says which of its versions it is.
    Versioned,
    /// A NUL-terminated string in.
    Str,
    /// A device address with the number of bytes the call touches there, and what it must be a multiple of.
    Span {
        /// How many bytes, over other arguments.
        bytes: String,
        /// 1 where any address is allowed.
        align: u32,
        /// Natively nobody looks at the address while a stream is captured, and cuDNN captures with made-up ones.
        any_in_capture: bool,
    },
}

/// An argument of a function.
#[derive(Clone, Debug)]
pub struct Arg {
    /// Also the name of the parameter in generated code.
    pub name: String,
    /// How it is carried.
    pub role: Role,
    /// The type that the role speaks of (`T` in `out T`); for plain values the C type itself.
    pub inner: String,
}

/// An entry of the table.
#[derive(Clone, Debug)]
pub struct Function {
    /// The file of the table that it is in.
    pub family: &'static str,
    /// The exported symbol, e.g. `cuMemAlloc_v2`.
    pub symbol: String,
    /// The lowest version asked of `cuGetProcAddress` that yields this symbol.
    pub since: Option<u32>,
    /// Its variant for per-thread default streams.
    pub per_thread: Option<PerThread>,
    /// How the call reaches the driver.
    pub carry: Carry,
    /// May be called before `cuInit`.
    pub early: bool,
    /// How long the same arguments give the same answer.
    pub lasting: Option<Lasting>,
    /// What it ends of that.
    pub ends: Option<Lasting>,
    /// It asks how far a stream is.
    pub progress: bool,
    /// In the order of the C prototype.
    pub args: Vec<Arg>,
}

/// The variant of a function whose NULL stream is the calling thread's own.
#[derive(Clone, Copy, Debug)]
pub struct PerThread {
    /// `ptsz` or `ptds`.
    pub suffix: &'static str,
    /// The lowest version asked of `cuGetProcAddress` that yields it.
    pub since: u32,
}

/// Types that are handles of ours in the client and pointers of the driver's in the worker.
pub const HANDLES: &[&str] = &[
    "CUcontext",
    "CUmodule",
    "CUfunction",
    "CUlibrary",
    "CUkernel",
    "CUstream",
    "CUevent",
    "CUarray",
    "CUmipmappedArray",
    "CUmemoryPool",
    "CUgraph",
    "CUgraphExec",
    "CUgraphNode",
    "CUlinkState",
    "CUuserObject",
    "CUmemGenericAllocationHandle",
    "CUexternalMemory",
    "CUexternalSemaphore",
    "CUtexref",
    "CUsurfref",
];

macro_rules! families {
    ($($name:literal)*) => {
        const SOURCES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/table/", $name, ".abi")))),*];
    };
}

families! {
    "device" "context" "module" "library" "function" "launch" "stream" "event" "memory" "copy" "pool" "vmm" "ipc"
    "graph" "texture" "interop" "tools"
}

impl Function {
    /// The name under which `cuGetProcAddress` knows this function.
    pub fn base(&self) -> &str {
        match self.symbol.rsplit_once("_v") {
            Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => base,
            _ => &self.symbol,
        }
    }

    /// Every symbol of this entry: itself and its per-thread variant.
    pub fn symbols(&self) -> impl Iterator<Item = String> + '_ {
        let variant = self.per_thread.map(|p| format!("{}_{}", self.symbol, p.suffix));
        std::iter::once(self.symbol.clone()).chain(variant)
    }
}

impl Arg {
    /// The argument's type in the C prototype, in Rust's notation.
    pub fn c_type(&self) -> String {
        match &self.role {
            Role::Value | Role::Handle | Role::Close => self.inner.clone(),
            Role::Out { .. } | Role::InOut | Role::OutArray { .. } | Role::Versioned => {
                format!("*mut {}", self.inner)
            }
            Role::Any { written: true } => "*mut c_void".to_owned(),
            Role::Any { written: false } => "*const c_void".to_owned(),
            Role::In | Role::InArray { .. } => format!("*const {}", self.inner),
            Role::Str => "*const c_char".to_owned(),
            Role::Span { .. } => "CUdeviceptr".to_owned(),
        }
    }

    /// Rust code that makes of the C argument what a function behind the [`border`](crate::border) takes. Of a pointer
    /// that the table gives no role, that is the pointer.
    pub fn at_border(&self) -> String {
        let name = &self.name;
        let length = |count: &str| match count.strip_prefix('*') {
            Some(place) => format!("border::room({place})"),
            None if count.contains(|c: char| !c.is_alphanumeric() && c != '_') => length_code(count),
            None => format!("border::count({count})"),
        };
        match &self.role {
            Role::Value | Role::Handle | Role::Close | Role::Span { .. } => name.clone(),
            Role::Out { .. } => format!("unsafe {{ border::Out::from_raw({name}) }}"),
            Role::In => format!("unsafe {{ border::In::from_raw({name}) }}"),
            Role::InOut => format!("unsafe {{ border::InOut::from_raw({name}) }}"),
            Role::Versioned => format!("unsafe {{ border::Versioned::from_raw({name}) }}"),
            Role::InArray { count } => {
                format!("unsafe {{ border::InSlice::from_raw({name}, {}) }}", length(count))
            }
            Role::OutArray { count } => {
                format!("unsafe {{ border::OutSlice::from_raw({name}, {}) }}", length(count))
            }
            Role::Any { written: true } => format!("unsafe {{ border::Untyped::from_raw({name}) }}"),
            Role::Any { written: false } => format!("unsafe {{ border::Untyped::from_raw({name}.cast_mut()) }}"),
            Role::Str => format!("unsafe {{ border::Str::from_raw({name}) }}"),
        }
    }

    /// A pointer that stays one behind the border: only its function knows what it is good for.
    pub fn is_raw(&self) -> bool {
        self.role == Role::Value && self.inner.starts_with('*')
    }

    /// Its type is one of [`HANDLES`].
    pub fn is_handle(&self) -> bool {
        HANDLES.contains(&self.inner.as_str())
    }
}

impl Carry {
    /// How it is carried, in words.
    pub fn about(self) -> &'static str {
        match self {
            Carry::Local => "answered in the client",
            Carry::Post => "posted on the ring, without a reply",
            Carry::Call => "called on the ring, with a reply",
            Carry::Block => "blocks in the caller's lane",
            Carry::Custom => "hand-written on both sides",
            Carry::Deny => "not supported",
        }
    }
}

impl fmt::Display for Carry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Carry::Local => "local",
            Carry::Post => "post",
            Carry::Call => "call",
            Carry::Block => "block",
            Carry::Custom => "custom",
            Carry::Deny => "deny",
        })
    }
}

/// All functions, in an order that never depends on anything but the files: their index is the opcode on the wire.
pub fn functions() -> Vec<Function> {
    SOURCES.iter().flat_map(|(family, text)| parse(family, text)).collect()
}

/// Rust code for a length of the table: sums of products of arguments, computed in `u64` without overflow from whatever
/// the client sent. A factor is an argument, a number, or `(argument-1)`.
pub fn length_code(text: &str) -> String {
    let factor = |factor: &str| {
        let bare = factor.trim().trim_start_matches('(').trim_end_matches(')');
        match bare.split_once('-') {
            Some((name, less)) => format!("({name} as u64).saturating_sub({less})"),
            None => format!("({bare} as u64)"),
        }
    };
    let product = |product: &str| {
        let factors: Vec<String> = product.split('*').map(factor).collect();
        factors.iter().skip(1).fold(factors[0].clone(), |so_far, next| format!("{so_far}.saturating_mul({next})"))
    };
    let terms: Vec<String> = text.split('+').map(product).collect();
    terms.iter().skip(1).fold(terms[0].clone(), |sum, term| format!("({sum}).saturating_add({term})"))
}

/// A number that changes whenever the table does.
pub fn fingerprint() -> u64 {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    hash(START, SOURCES.iter().flat_map(|(_, text)| text.bytes()))
}

/// FNV-1a: good enough to notice a change, and nobody gains anything by forging it.
pub(crate) fn hash(start: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn parse(family: &'static str, text: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut arguments: Vec<String> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fail = |what: &str| -> ! { panic!("table/{family}.abi:{}: {what}: {line}", number + 1) };
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with(' ') {
            match arguments.last_mut() {
                Some(list) => list.push_str(line.trim()),
                None => fail("arguments without a function"),
            }
            continue;
        }
        match head(family, line) {
            Some(function) => functions.push(function),
            None => fail("cannot read"),
        }
        arguments.push(String::new());
    }
    for (function, list) in functions.iter_mut().zip(&arguments) {
        function.args = split(list).into_iter().map(|text| argument(&function.symbol, text)).collect();
    }
    functions
}

fn head(family: &'static str, line: &str) -> Option<Function> {
    let mut words = line.split_whitespace();
    let symbol = words.next()?.to_owned();
    let since = match words.next()? {
        "-" => None,
        version => Some(version.parse().ok()?),
    };
    let mut word = words.next()?;
    let mut per_thread = None;
    if let Some((suffix, version)) = word.split_once('@') {
        let suffix = ["ptsz", "ptds"].into_iter().find(|known| *known == suffix)?;
        per_thread = Some(PerThread { suffix, since: version.parse().ok()? });
        word = words.next()?;
    }
    let carry = match word {
        "local" => Carry::Local,
        "post" => Carry::Post,
        "call" => Carry::Call,
        "block" => Carry::Block,
        "custom" => Carry::Custom,
        "deny" => Carry::Deny,
        _ => return None,
    };
    let (mut early, mut lasting, mut ends, mut progress) = (false, None, None, false);
    match words.next() {
        None => {}
        Some("early") => early = true,
        Some("pure") if carry == Carry::Call => lasting = Some(Lasting::Pure),
        Some("settled") if carry == Carry::Call => lasting = Some(Lasting::Settled),
        Some("settled-until-launch") if carry == Carry::Call => lasting = Some(Lasting::SettledUntilLaunch),
        Some("progress") if carry == Carry::Call => progress = true,
        Some("unsettles") if matches!(carry, Carry::Call | Carry::Post) => ends = Some(Lasting::Settled),
        Some("launches") if carry == Carry::Post => ends = Some(Lasting::SettledUntilLaunch),
        Some(_) => return None,
    }
    Some(Function { family, symbol, since, per_thread, carry, early, lasting, ends, progress, args: Vec::new() })
}

/// Splits at the commas that separate arguments.
fn split(list: &str) -> Vec<&str> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Reads `dev[n]`, `set4[n]` and the like.
fn span(kind: &str) -> Option<Role> {
    let any_in_capture = kind.starts_with("set");
    let (align, bytes) = kind.strip_prefix("dev").or(kind.strip_prefix("set"))?.strip_suffix(']')?.split_once('[')?;
    let align = if align.is_empty() { 1 } else { align.parse().ok()? };
    Some(Role::Span { bytes: bytes.to_owned(), align, any_in_capture })
}

/// Reads one argument of a function: `name: type`.
///
/// # Panics
/// If it is not that: a table is part of the source.
pub fn argument(symbol: &str, text: &str) -> Arg {
    let Some((name, kind)) = text.split_once(':') else { panic!("{symbol}: argument without a type: {text}") };
    let (name, kind) = (name.trim().to_owned(), kind.trim());
    let array = |rest: &str| -> Option<(String, String)> {
        let (element, count) = rest.strip_prefix('[')?.strip_suffix(']')?.split_once(';')?;
        Some((element.trim().to_owned(), count.trim().to_owned()))
    };
    let (role, inner) = if kind == "str" {
        (Role::Str, "c_char".to_owned())
    } else if let Some(span) = span(kind) {
        (span, "CUdeviceptr".to_owned())
    } else if let Some(inner) = kind.strip_prefix("close ") {
        (Role::Close, inner.to_owned())
    } else if let Some(inner) = kind.strip_prefix("out? ") {
        (Role::Out { optional: true }, inner.to_owned())
    } else if let Some(written) = ["in any", "out any"].iter().position(|known| *known == kind) {
        (Role::Any { written: written == 1 }, "c_void".to_owned())
    } else if let Some(rest) = kind.strip_prefix("out ") {
        match array(rest) {
            Some((element, count)) => (Role::OutArray { count }, element),
            None => (Role::Out { optional: false }, rest.to_owned()),
        }
    } else if let Some(inner) = kind.strip_prefix("versioned ") {
        (Role::Versioned, inner.to_owned())
    } else if let Some(inner) = kind.strip_prefix("inout ") {
        (Role::InOut, inner.to_owned())
    } else if let Some(rest) = kind.strip_prefix("in ") {
        match array(rest) {
            Some((element, count)) => (Role::InArray { count }, element),
            None => (Role::In, rest.to_owned()),
        }
    } else if HANDLES.contains(&kind) {
        (Role::Handle, kind.to_owned())
    } else {
        (Role::Value, kind.to_owned())
    };
    Arg { name, role, inner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_holds_all_symbols_of_cuda_13_0_once() {
        let symbols: Vec<String> = functions().iter().flat_map(|f| f.symbols().collect::<Vec<_>>()).collect();
        assert_eq!(symbols.len(), 682);
        assert_eq!(symbols.iter().collect::<BTreeSet<_>>().len(), 682);
    }

    #[test]
    fn lengths_become_arithmetic_that_cannot_overflow() {
        assert_eq!(length_code("n"), "(n as u64)");
        assert_eq!(length_code("n*4"), "(n as u64).saturating_mul((4 as u64))");
        assert_eq!(length_code("rank-1"), "(rank as u64).saturating_sub(1)");
        assert_eq!(
            length_code("pitch*(height-1)+width*2"),
            "((pitch as u64).saturating_mul((height as u64).saturating_sub(1)))\
             .saturating_add((width as u64).saturating_mul((2 as u64)))"
        );
    }

    #[test]
    fn lookups_know_477_names_in_671_rows() {
        let functions = functions();
        let known: Vec<&Function> = functions.iter().filter(|f| f.since.is_some()).collect();
        assert_eq!(known.iter().map(|f| f.base()).collect::<BTreeSet<_>>().len(), 477);
        assert_eq!(known.len() + known.iter().filter(|f| f.per_thread.is_some()).count(), 671);
    }

    #[test]
    fn what_is_carried_has_roles_that_can_be_carried() {
        for function in functions() {
            if !matches!(function.carry, Carry::Post | Carry::Call | Carry::Block) {
                continue;
            }
            for arg in &function.args {
                assert!(!arg.inner.contains('*'), "{}: {} is a raw pointer", function.symbol, arg.name);
                let only_local = matches!(arg.role, Role::OutArray { .. } | Role::Any { .. } | Role::Versioned);
                assert!(!only_local, "{}: {} has a role that nothing carries", function.symbol, arg.name);
                let answers = matches!(arg.role, Role::Out { .. } | Role::InOut);
                assert!(!(function.carry == Carry::Post && answers), "{} is posted but answers", function.symbol);
            }
        }
    }

    #[test]
    fn only_addresses_that_programs_own_stay_raw_behind_the_border() {
        for function in functions().iter().filter(|f| matches!(f.carry, Carry::Local | Carry::Custom)) {
            for arg in function.args.iter().filter(|arg| arg.is_raw()) {
                let known = ["*mut c_void", "*const c_void", "*mut *mut c_void"].contains(&arg.inner.as_str());
                assert!(known, "{}: {} should have a role", function.symbol, arg.name);
            }
        }
    }
}
