//! Modules, libraries and launches.

#[macro_use]
mod common;

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Context, KERNELS, alloc, download, function, launch, module, pinned, stream, upload};
use cuda_abi::constants::{function_attribute, launch_extra};
use cuda_abi::error::*;
use cuda_abi::types::*;

#[test]
fn a_kernel_changes_memory() {
    let _context = Context::new();
    let double = function(module(KERNELS), "double");
    let values: Vec<u32> = (0..10_000).collect();
    let data = upload(&values);
    assert_eq!(launch(double, 40, 256, null_mut(), &[data, 10_000]), 0);
    let expected: Vec<u32> = values.iter().map(|value| value * 2).collect();
    assert_eq!(download::<u32>(data, 10_000), expected);
}

#[test]
fn a_reduction_with_shared_memory_and_atomics() {
    let _context = Context::new();
    let sum = function(module(KERNELS), "sum");
    let values: Vec<u32> = (0..256 * 64).collect();
    let (data, out) = (upload(&values), alloc(4));
    assert_eq!(launch(sum, 64, 256, null_mut(), &[data, out]), 0);
    assert_eq!(download::<u32>(out, 1), [values.iter().sum::<u32>()]);
}

#[test]
fn launches_are_asynchronous_and_in_order() {
    let _context = Context::new();
    let kernels = module(KERNELS);
    let (spin, double) = (function(kernels, "spin"), function(kernels, "double"));
    let stream = stream(1);
    // SAFETY: pinned memory that lives until the context ends.
    let flag = unsafe { AtomicU32::from_ptr(pinned(1).as_mut_ptr()) };
    let data = upload(&[1u32, 2, 3]);
    assert_eq!(launch(spin, 1, 1, stream, &[flag.as_ptr() as u64]), 0);
    for _ in 0..3 {
        assert_eq!(launch(double, 1, 32, stream, &[data, 3]), 0);
    }
    assert_eq!(code!(cuStreamQuery(stream)), CUDA_ERROR_NOT_READY);
    flag.store(1, Ordering::Release);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(download::<u32>(data, 3), [8, 16, 24]);
}

#[test]
fn variables_have_their_values_and_addresses() {
    let _context = Context::new();
    let kernels = module(KERNELS);
    let (mut address, mut size) = (0, 0);
    ok!(cuModuleGetGlobal_v2(&mut address, &mut size, kernels, c"answer".as_ptr()));
    assert_eq!(size, 4);
    assert_eq!(download::<u32>(address, 1), [42]);
    let mut pointer = 0;
    ok!(cuModuleGetGlobal_v2(&mut pointer, null_mut(), kernels, c"pointer".as_ptr()));
    assert_eq!(download::<u64>(pointer, 1), [address]);
    assert_eq!(
        code!(cuModuleGetGlobal_v2(&mut address, &mut size, kernels, c"question".as_ptr())),
        CUDA_ERROR_NOT_FOUND
    );
    let out = alloc(4);
    ok!(cuMemsetD32_v2(address, 43, 1));
    assert_eq!(launch(function(kernels, "read_pointer"), 1, 1, null_mut(), &[out]), 0);
    assert_eq!(download::<u32>(out, 1), [43]);
    ok!(cuModuleUnload(kernels));
    let mut gone = null_mut();
    assert_eq!(code!(cuModuleGetFunction(&mut gone, kernels, c"double".as_ptr())), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuMemsetD32_v2(address, 43, 1)), CUDA_ERROR_INVALID_VALUE, "gone with the module");
}

#[test]
fn wrong_launches_are_refused_at_once_and_leave_nothing() {
    let _context = Context::new();
    let kernels = module(KERNELS);
    let (double, bounded) = (function(kernels, "double"), function(kernels, "bounded"));
    let data = upload(&[1u32]);
    let words = [data, 1u64];
    assert_eq!(launch(double, 0, 1, null_mut(), &words), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(launch(double, 1, 0, null_mut(), &words), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(launch(double, 1, 1025, null_mut(), &words), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(launch(bounded, 1, 65, null_mut(), &words), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_eq!(launch(bounded, 1, 64, null_mut(), &words), 0);
    assert_eq!(launch(0x1234 as CUfunction, 1, 1, null_mut(), &words), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(launch(double, 1, 1, 0x1230 as CUstream, &words), CUDA_ERROR_INVALID_HANDLE);
    let mut params: Vec<*mut c_void> = words.iter().map(|word| (&raw const *word).cast_mut().cast()).collect();
    let mut with = |shared: u32, grid_y: u32, block_z: u32| {
        let params = params.as_mut_ptr();
        code!(cuLaunchKernel(double, 1, grid_y, 1, 1, 1, block_z, shared, null_mut(), params, null_mut()))
    };
    assert_eq!(with(48 << 10, 1, 1), 0);
    assert_eq!(with((48 << 10) + 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(with(0, 65536, 1), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(with(0, 1, 65), CUDA_ERROR_INVALID_VALUE);
    ok!(cuFuncSetAttribute(double, 8, 100 << 10));
    assert_eq!(with(100 << 10, 1, 1), 0);
    assert_eq!(code!(cuFuncSetAttribute(double, 8, 228 << 10)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(
        code!(cuLaunchKernel(double, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut())),
        CUDA_ERROR_INVALID_VALUE,
        "parameters are missing"
    );
    ok!(cuCtxSynchronize());
}

#[test]
fn parameters_can_come_as_one_buffer() {
    let _context = Context::new();
    let double = function(module(KERNELS), "double");
    let data = upload(&[5u32]);
    let (mut buffer, size) = ([data, 1u64], Cell::new(16usize));
    let mut extra: [*mut c_void; 5] = [
        launch_extra::BUFFER_POINTER as *mut c_void,
        buffer.as_mut_ptr().cast(),
        launch_extra::BUFFER_SIZE as *mut c_void,
        size.as_ptr().cast(),
        null_mut(),
    ];
    ok!(cuLaunchKernel(double, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), extra.as_mut_ptr()));
    assert_eq!(download::<u32>(data, 1), [10]);
    size.set(8);
    assert_eq!(
        code!(cuLaunchKernel(double, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), extra.as_mut_ptr())),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut attributes = [CUlaunchAttribute { id: 6, ..Default::default() }; 2];
    let mut config = CUlaunchConfig {
        grid: [1; 3],
        block: [1; 3],
        attrs: attributes.as_mut_ptr(),
        num_attrs: 2,
        ..Default::default()
    };
    size.set(16);
    ok!(cuLaunchKernelEx(&config, double, null_mut(), extra.as_mut_ptr()));
    assert_eq!(download::<u32>(data, 1), [20]);
    attributes[1] = CUlaunchAttribute { id: 4, value: [2 | 1 << 32, 1, 0, 0, 0, 0, 0, 0], ..Default::default() };
    config.attrs = attributes.as_mut_ptr();
    assert_eq!(code!(cuLaunchKernelEx(&config, double, null_mut(), extra.as_mut_ptr())), CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn a_fault_poisons_its_context_and_no_other() {
    let healthy = Context::new();
    let data = upload(&[1u32]);
    let hurt = Context::new();
    let kernels = module(KERNELS);
    let (wild, double) = (function(kernels, "wild"), function(kernels, "double"));
    assert_eq!(launch(wild, 1, 1, null_mut(), &[0x2fff_0000_0000]), 0, "asynchronous");
    assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    let (mut pointer, mut current) = (0, null_mut());
    assert_eq!(code!(cuMemAlloc_v2(&mut pointer, 4)), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(launch(double, 1, 1, null_mut(), &[data, 1]), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code!(cuStreamSynchronize(null_mut())), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code!(cuMemcpyHtoD_v2(data, (&raw const pointer).cast(), 4)), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok!(cuCtxGetCurrent(&mut current));
    assert_eq!(current, hurt.0);
    ok!(cuCtxSetCurrent(healthy.0));
    assert_eq!(download::<u32>(data, 1), [1]);
    ok!(cuCtxSynchronize());
    drop(hurt);
}

#[test]
fn each_fault_has_its_code() {
    for (address, expected) in [(0x10, CUDA_ERROR_ILLEGAL_ADDRESS), (1, CUDA_ERROR_MISALIGNED_ADDRESS)] {
        let _context = Context::new();
        let wild = function(module(KERNELS), "wild");
        let address = if expected == CUDA_ERROR_MISALIGNED_ADDRESS { alloc(8) + address } else { address };
        let stream = stream(1);
        assert_eq!(launch(wild, 1, 1, stream, &[address]), 0);
        assert_eq!(code!(cuStreamSynchronize(stream)), expected);
    }
}

#[test]
fn a_context_can_end_while_a_kernel_spins() {
    let context = Context::new();
    let spin = function(module(KERNELS), "spin");
    assert_eq!(launch(spin, 1, 1, null_mut(), &[pinned(1).as_ptr() as u64]), 0);
    drop(context);
}

#[test]
fn libraries_work_without_a_context_and_in_each() {
    ok!(cuCtxSetCurrent(null_mut()));
    let text = CString::new(KERNELS).unwrap();
    let mut library = null_mut();
    let none = null_mut();
    ok!(cuLibraryLoadData(&mut library, text.as_ptr().cast(), none, null_mut(), 0, none, null_mut(), 0));
    let (mut kernel, mut count) = (null_mut(), 0);
    ok!(cuLibraryGetKernel(&mut kernel, library, c"double".as_ptr()));
    ok!(cuLibraryGetKernelCount(&mut count, library));
    assert_eq!(count, 7);
    let mut kernels = vec![null_mut(); 8];
    ok!(cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 8, library));
    assert_eq!(kernels.iter().filter(|kernel| !kernel.is_null()).count(), 7);
    assert!(kernels.contains(&kernel));
    let mut name = std::ptr::null();
    ok!(cuKernelGetName(&mut name, kernel));
    // SAFETY: the driver answered with a NUL-terminated name that lives as long as the library.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"double");
    let (mut offset, mut size) = (0, 0);
    ok!(cuKernelGetParamInfo(kernel, 1, &mut offset, &mut size));
    assert_eq!((offset, size), (8, 8));
    assert_eq!(code!(cuKernelGetParamInfo(kernel, 2, &mut offset, &mut size)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuKernelSetAttribute(function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, 60 << 10, kernel, 0));

    for device in [0, 1] {
        let _context = Context::on(device);
        let data = upload(&[3u32]);
        // A kernel's handle is good for a function's.
        assert_eq!(launch(kernel, 1, 1, null_mut(), &[data, 1]), 0);
        assert_eq!(download::<u32>(data, 1), [6]);
        let mut function = null_mut();
        ok!(cuKernelGetFunction(&mut function, kernel));
        let mut shared = 0;
        ok!(cuFuncGetAttribute(&mut shared, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
        assert_eq!(shared, if device == 0 { 60 << 10 } else { 48 << 10 }, "settings are the device's");
        assert_eq!(code!(cuFuncGetParamInfo(kernel, 0, &mut offset, &mut size)), CUDA_ERROR_INVALID_HANDLE);
        ok!(cuFuncGetParamInfo(function, 0, &mut offset, &mut size));
        let mut address = 0;
        ok!(cuLibraryGetGlobal(&mut address, null_mut(), library, c"answer".as_ptr()));
        assert_eq!(download::<u32>(address, 1), [42]);
    }
    ok!(cuLibraryUnload(library));
    assert_eq!(code!(cuLibraryUnload(library)), CUDA_ERROR_INVALID_HANDLE);
    let mut function = null_mut();
    assert_eq!(code!(cuKernelGetFunction(&mut function, kernel)), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn bad_images_have_their_codes_and_a_log() {
    let _context = Context::new();
    let mut made = null_mut();
    let mut load = |image: &[u8]| code!(cuModuleLoadData(&mut made, image.as_ptr().cast()));
    assert_eq!(load(b"no image at all\0"), CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(load(&[b"\x7fELF".as_slice(), &[0; 60]].concat()), CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(load(b".version 8.0\n.target sm_75\nnonsense;\n\0"), CUDA_ERROR_INVALID_PTX);
    assert_eq!(code!(cuModuleLoadData(&mut made, std::ptr::null())), CUDA_ERROR_INVALID_VALUE);

    let mut log = [1u8; 64];
    let mut options = [5, 6];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), 64 as *mut c_void];
    let image = c".version 8.0\n.target sm_75\nnonsense;\n";
    let (options, values_at) = (options.as_mut_ptr(), values.as_mut_ptr());
    let code = code!(cuModuleLoadDataEx(&mut made, image.as_ptr().cast(), 2, options, values_at));
    assert_eq!(code, CUDA_ERROR_INVALID_PTX);
    let message = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
    assert!(message.contains("line 3"), "{message}");
    assert!((1..=64).contains(&(values[1] as usize)));
    assert_eq!(code!(cuModuleLoad(&mut made, c"/nowhere".as_ptr())), CUDA_ERROR_FILE_NOT_FOUND);
}

#[test]
fn functions_tell_what_they_are() {
    let _context = Context::new();
    let kernels = module(KERNELS);
    let (sum, bounded) = (function(kernels, "sum"), function(kernels, "bounded"));
    let attribute = |function, which| {
        let mut value = -9;
        ok!(cuFuncGetAttribute(&mut value, which, function));
        value
    };
    assert_eq!(
        (
            attribute(sum, function_attribute::MAX_THREADS_PER_BLOCK),
            attribute(bounded, function_attribute::MAX_THREADS_PER_BLOCK)
        ),
        (1024, 64)
    );
    assert_eq!(
        (
            attribute(sum, function_attribute::SHARED_SIZE_BYTES),
            attribute(sum, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES)
        ),
        (1024, 47 << 10)
    );
    assert_eq!(
        (attribute(sum, function_attribute::PTX_VERSION), attribute(sum, function_attribute::BINARY_VERSION)),
        (75, 90)
    );
    let mut value = 0;
    assert_eq!(code!(cuFuncGetAttribute(&mut value, 99, sum)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut value, sum, 256, 0));
    assert!((1..=8).contains(&value));
    let (mut grid, mut block) = (0, 0);
    ok!(cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, bounded, None, 0, 0));
    assert!(block == 64 && grid > 0);
    let mut of = null_mut();
    ok!(cuFuncGetModule(&mut of, sum));
    assert_eq!(of, kernels);
    assert_eq!(function(kernels, "sum"), sum, "the same handle each time");
}

#[test]
fn kernels_reach_all_memory_of_the_window() {
    let _context = Context::new();
    let double = function(module(KERNELS), "double");
    let run = |address: u64| {
        // SAFETY: the memory is mapped in this process and the device is idle.
        let word = unsafe { &*(address as *const AtomicU32) };
        word.store(21, Ordering::Relaxed);
        assert_eq!(launch(double, 1, 1, null_mut(), &[address, 1]), 0);
        ok!(cuCtxSynchronize());
        assert_eq!(word.load(Ordering::Relaxed), 42);
    };
    run(pinned(1).as_ptr() as u64);
    let mut managed = 0;
    ok!(cuMemAllocManaged(&mut managed, 4, 1));
    run(managed);
    // Memory that somebody else mapped in the window and registered.
    let address = cuda_abi::plan::HOST_BASE + (1 << 30);
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the address is free, or the call fails.
    let mapped = unsafe { libc::mmap(address as _, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_eq!(mapped as u64, address);
    ok!(cuMemHostRegister_v2(mapped, 4096, 0));
    let mut pointer = 0;
    ok!(cuMemHostGetDevicePointer_v2(&mut pointer, mapped, 0));
    assert_eq!(pointer, address);
    run(address);
    ok!(cuMemHostUnregister(mapped));
}

#[test]
fn kernels_obey_the_access_of_a_mapping() {
    let prop = CUmemAllocationProp { kind: 1, location: CUmemLocation { kind: 1, id: 0 }, ..Default::default() };
    let (mut handle, mut address, size) = (0, 0, 2 << 20);
    ok!(cuMemCreate(&mut handle, size, &prop, 0));
    ok!(cuMemAddressReserve(&mut address, size, 0, 0, 0));
    ok!(cuMemMap(address, size, 0, handle, 0));
    for (flags, expected) in [(3, 0), (1, CUDA_ERROR_ILLEGAL_ADDRESS), (0, CUDA_ERROR_ILLEGAL_ADDRESS)] {
        let _context = Context::new();
        let wild = function(module(KERNELS), "wild");
        let access = CUmemAccessDesc { location: prop.location, flags };
        ok!(cuMemSetAccess(address, size, &access, 1));
        assert_eq!(launch(wild, 1, 1, null_mut(), &[address]), 0);
        assert_eq!(code!(cuCtxSynchronize()), expected, "access {flags}");
    }
    ok!(cuMemUnmap(address, size));
    let _context = Context::new();
    assert_eq!(launch(function(module(KERNELS), "wild"), 1, 1, null_mut(), &[address]), 0);
    assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok!(cuMemRelease(handle));
    ok!(cuMemAddressFree(address, size));
}

#[test]
fn what_kernels_print_goes_to_the_sink() {
    static PRINTED: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    softgpu::set_output(Box::new(|bytes| PRINTED.lock().unwrap().extend(bytes)));
    let _context = Context::new();
    assert_eq!(launch(function(module(KERNELS), "greet"), 2, 1, null_mut(), &[7]), 0);
    ok!(cuCtxSynchronize());
    assert_eq!(*PRINTED.lock().unwrap(), b"hello 7\nhello 7\n");
}

#[test]
fn kernels_that_ask_for_clusters_are_refused_by_name() {
    let text = |blocks: u32| {
        format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n\
             .visible .entry k() .explicitcluster .reqnctapercluster {blocks}, 1, 1 {{ ret; }}\n"
        )
    };
    let refused = |blocks: u32| {
        let module = ptx_exec::Module::from_ptx(&text(blocks)).unwrap();
        module.kernels()[0].unsupported.clone()
    };
    assert_eq!(refused(1), None);
    assert!(refused(2).is_some_and(|why| why.contains("clusters of thread blocks")), "{:?}", refused(2));
}
