//! Our libraries export what the driver's export: a program that was linked or looks names up against those finds the same
//! names here, whatever the functions then answer.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_void};
use std::path::Path;

use conformance::harness::Binaries;
use object::{Object, ObjectSymbol};

/// A name, and why it is on one side alone.
type Difference = (&'static str, &'static str);

/// Functions of the driver's that we do not export. None: what we do not do is exported and answers that it is not
/// supported, because programs ask for names before they know whether they need them.
const CUDA_WE_LACK: &[Difference] = &[];
const NVML_WE_LACK: &[Difference] = &[];

const CUDA_WE_ADD: &[Difference] =
    &[("bulkhead_libvgpu", "tells our library from the driver's, so that a worker never loads it as its backend")];
const NVML_WE_ADD: &[Difference] = &[];

fn names(list: &str) -> BTreeSet<String> {
    list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// The dynamic symbols that the file defines.
fn exports(library: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(library).expect("a built library");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let defined = elf.dynamic_symbols().filter(|symbol| symbol.is_definition());
    defined.map(|symbol| symbol.name().expect("a name").to_owned()).collect()
}

/// The sets differ in exactly what the lists say: a name on a list that is on both sides, or on none, is wrong as well.
fn compare(library: &Path, driver: &str, lack: &[Difference], add: &[Difference]) {
    let (ours, driver) = (exports(library), names(driver));
    let listed =
        |list: &[Difference]| -> BTreeSet<String> { list.iter().map(|(name, _)| (*name).to_owned()).collect() };
    let lacking: BTreeSet<String> = driver.difference(&ours).cloned().collect();
    let added: BTreeSet<String> = ours.difference(&driver).cloned().collect();
    assert_eq!(lacking, listed(lack), "exported by the driver and not by {}", library.display());
    assert_eq!(added, listed(add), "exported by {} and not by the driver", library.display());
}

fn binaries() -> Binaries {
    Binaries::find().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn libcuda_exports_what_the_drivers_does() {
    compare(&binaries().library, include_str!("exports/libcuda.txt"), CUDA_WE_LACK, CUDA_WE_ADD);
}

#[test]
fn libnvidia_ml_exports_what_the_drivers_does() {
    compare(&binaries().nvml(), include_str!("exports/libnvidia-ml.txt"), NVML_WE_LACK, NVML_WE_ADD);
}

/// CUDA's own libraries do not link against names, they ask for them; what they ask for is one of the exports.
#[test]
fn what_programs_look_up_is_found() {
    let path = binaries().library;
    let exported = exports(&path);
    // SAFETY: our own library, whose initialisers do nothing before `cuInit`.
    let library = unsafe { libloading::Library::new(&path) }.expect("it loads");
    type GetProcAddress = unsafe extern "C" fn(*const i8, *mut *mut c_void, i32, u64, *mut i32) -> u32;
    // SAFETY: the prototype of the driver API.
    let look_up = unsafe { library.get::<GetProcAddress>(b"cuGetProcAddress_v2") }.expect("exported");
    for name in names(include_str!("exports/looked-up.txt")) {
        let (mut found, mut status) = (std::ptr::null_mut(), -1);
        let asked = CString::new(name.as_str()).expect("a name");
        // SAFETY: the name ends with NUL; both results are ours.
        let code = unsafe { look_up(asked.as_ptr(), &mut found, cuda_abi::CUDA_VERSION as i32, 0, &mut status) };
        assert_eq!((code, status), (0, 0), "{name}");
        let symbol = name_of(found).unwrap_or_else(|| panic!("{name} is found at {found:?}, which is no function"));
        let is_variant = symbol.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
        assert!(is_variant && exported.contains(&symbol), "{name} is found as {symbol}");
    }
}

/// The dynamic symbol at an address.
fn name_of(address: *const c_void) -> Option<String> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; the result is ours.
    let info = unsafe {
        libc::dladdr(address, info.as_mut_ptr());
        info.assume_init()
    };
    // SAFETY: names are part of the loaded library's string table.
    (!info.dli_sname.is_null()).then(|| unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy().into_owned())
}
