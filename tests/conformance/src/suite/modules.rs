//! Images, and the functions and variables in them.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

use cuda_abi::constants::{function_attribute, jit_input, jit_option};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, KERNELS, answers, code, context, download, function, kernel, launch, module, ok, upload,
};

super::tests! {
    "modules":
    a_module_has_its_functions,
    functions_have_attributes,
    functions_know_their_parameters,
    functions_know_their_names_and_modules,
    variables_have_addresses_and_values,
    modules_have_variables_of_their_own,
    variables_come_and_go,
    bad_images_are_refused,
    a_large_image,
    an_unloaded_module_is_gone,
    a_library_without_a_context,
    kernels_of_a_library_are_launched,
    functions_are_enumerated,
    a_listed_function_is_launched,
    functions_of_a_large_module_are_enumerated,
    a_file_that_is_not_there,
    one_text_is_linked,
    several_texts_are_linked,
    a_link_that_fails_says_so,
    a_module_that_fails_says_why,
    a_module_is_loaded_with_options,
}

fn a_module_has_its_functions(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    for name in ["double", "sum", "nothing", "mixed"] {
        assert!(!function(gpu, kernels, name).is_null());
    }
    assert_eq!(function(gpu, kernels, "double"), function(gpu, kernels, "double"));
    let mut none = null_mut();
    for name in [c"no_such_kernel", c"answer", c"doubl"] {
        answers!(gpu, CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&mut none, kernels, name.as_ptr()));
    }
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&mut none, kernels, c"".as_ptr()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(null_mut(), kernels, c"double".as_ptr()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&mut none, kernels, null()));
}

fn attribute(gpu: &Driver, which: u32, function: CUfunction) -> i32 {
    let mut value = -1;
    ok!(gpu, cuFuncGetAttribute(&mut value, which, function));
    value
}

fn functions_have_attributes(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let (sum, bounded) = (function(gpu, kernels, "sum"), function(gpu, kernels, "bounded"));
    assert_eq!(attribute(gpu, function_attribute::MAX_THREADS_PER_BLOCK, bounded), 64);
    assert!((256..=1024).contains(&attribute(gpu, function_attribute::MAX_THREADS_PER_BLOCK, sum)));
    assert_eq!(attribute(gpu, function_attribute::SHARED_SIZE_BYTES, sum), 1024);
    assert!(attribute(gpu, function_attribute::CONST_SIZE_BYTES, sum) >= 0);
    assert!(attribute(gpu, function_attribute::NUM_REGS, sum) > 0);
    // The architectures of the text and of the machine code, not the version of the text's language.
    assert_eq!(attribute(gpu, function_attribute::PTX_VERSION, sum), 75);
    assert!(attribute(gpu, function_attribute::BINARY_VERSION, sum) >= 75);
    ok!(gpu, cuFuncSetAttribute(sum, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, 40_000));
    assert_eq!(attribute(gpu, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, sum), 40_000);
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuFuncSetAttribute(sum, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30)
    );
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&mut 0, 10_000, sum));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(null_mut(), 0, sum));
}

fn functions_know_their_parameters(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let mixed = function(gpu, kernels, "mixed");
    let (mut offset, mut size) = (0, 0);
    for (index, place) in [(0, 1), (4, 4), (8, 2), (16, 8), (24, 8)].into_iter().enumerate() {
        ok!(gpu, cuFuncGetParamInfo(mixed, index, &mut offset, &mut size));
        assert_eq!((offset, size), place, "parameter {index}");
    }
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(mixed, 5, &mut offset, &mut size));
    let nothing = function(gpu, kernels, "nothing");
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(nothing, 0, &mut offset, &mut size));
}

fn functions_know_their_names_and_modules(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let double = function(gpu, kernels, "double");
    let (mut name, mut owner) = (null(), null_mut());
    ok!(gpu, cuFuncGetName(&mut name, double));
    // SAFETY: a text of the driver's.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"double");
    ok!(gpu, cuFuncGetModule(&mut owner, double));
    assert_eq!(owner, kernels);
}

fn variables_have_addresses_and_values(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let (mut address, mut bytes) = (0, 0);
    ok!(gpu, cuModuleGetGlobal_v2(&mut address, &mut bytes, kernels, c"answer".as_ptr()));
    assert_eq!((bytes, download::<u32>(gpu, address, 1)), (4, vec![42]));
    ok!(gpu, cuModuleGetGlobal_v2(&mut address, &mut bytes, kernels, c"constants".as_ptr()));
    assert_eq!((bytes, download::<u32>(gpu, address, 4)), (16, vec![1, 2, 3, 4]));
    ok!(gpu, cuModuleGetGlobal_v2(&mut address, null_mut(), kernels, c"counter".as_ptr()));
    let bump = function(gpu, kernels, "bump");
    assert_eq!(launch(gpu, bump, 10, 100, DEFAULT_STREAM, &[]), 0);
    assert_eq!(download::<u32>(gpu, address, 1), [1000]);
    ok!(gpu, cuMemcpyHtoD_v2(address, [5u32].as_ptr().cast(), 4));
    assert_eq!(launch(gpu, bump, 1, 1, DEFAULT_STREAM, &[]), 0);
    assert_eq!(download::<u32>(gpu, address, 1), [6]);
    answers!(gpu, CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&mut address, &mut bytes, kernels, c"none".as_ptr()));
}

fn modules_have_variables_of_their_own(gpu: &Driver) {
    context(gpu);
    let modules = [module(gpu, KERNELS), module(gpu, KERNELS)];
    let address = |module| {
        let mut address = 0;
        ok!(gpu, cuModuleGetGlobal_v2(&mut address, null_mut(), module, c"answer".as_ptr()));
        address
    };
    let [first, second] = modules.map(address);
    ok!(gpu, cuMemsetD32_v2(first, 1, 1));
    assert_eq!(download::<u32>(gpu, second, 1), [42]);
    ok!(gpu, cuModuleUnload(modules[0]));
    assert_eq!(download::<u32>(gpu, second, 1), [42]);
}

/// Where one was that went with its module, there may soon be another, of another size.
fn variables_come_and_go(gpu: &Driver) {
    context(gpu);
    let copy = upload(gpu, &[0u8; 4096]);
    for size in [4, 4096, 64, 1024, 16, 2048] {
        let text =
            format!(".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 table[{size}];");
        let module = module(gpu, &text);
        let (mut address, mut bytes) = (0, 0);
        ok!(gpu, cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"table".as_ptr()));
        assert_eq!(bytes, size);
        ok!(gpu, cuMemcpyDtoDAsync_v2(copy, address, bytes, null_mut()));
        ok!(gpu, cuMemcpyDtoDAsync_v2(address + bytes as u64 / 2, copy, bytes / 2, null_mut()));
        ok!(gpu, cuModuleUnload(module));
    }
}

fn bad_images_are_refused(gpu: &Driver) {
    context(gpu);
    let mut none = null_mut();
    let mut refuse = |text: &[u8], codes: &[u32]| {
        let text = CString::new(text).expect("no NUL");
        let code = code!(gpu, cuModuleLoadData(&mut none, text.as_ptr().cast()));
        assert!(codes.contains(&code), "{text:?}: {code} {}", name(code));
    };
    refuse(b"", &[CUDA_ERROR_INVALID_IMAGE]);
    refuse(b"This is no kernel.", &[CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX]);
    refuse(
        b".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() { nonsense; }",
        &[CUDA_ERROR_INVALID_PTX],
    );
    refuse(b".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() {", &[CUDA_ERROR_INVALID_PTX]);
    refuse(
        b".version 99.0\n.target sm_75\n.address_size 64\n",
        &[CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_INVALID_PTX],
    );
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&mut none, null()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(null_mut(), KERNELS.as_ptr().cast()));
    // After all of that a good one loads.
    assert!(!kernel(gpu, "double").is_null());
}

/// Larger than any message.
fn a_large_image(gpu: &Driver) {
    context(gpu);
    let comment = format!("// {}\n", "x".repeat(120));
    let text = format!("{}{KERNELS}", comment.repeat(30_000));
    assert!(text.len() > 3 << 20);
    let double = function(gpu, module(gpu, &text), "double");
    let data = upload(gpu, &[21u32]);
    assert_eq!(launch(gpu, double, 1, 1, DEFAULT_STREAM, &[data, 1]), 0);
    assert_eq!(download::<u32>(gpu, data, 1), [42]);
}

fn an_unloaded_module_is_gone(gpu: &Driver) {
    context(gpu);
    for _ in 0..10 {
        let kernels = module(gpu, KERNELS);
        let double = function(gpu, kernels, "double");
        let data = upload(gpu, &[4u32]);
        assert_eq!(launch(gpu, double, 1, 1, DEFAULT_STREAM, &[data, 1]), 0);
        // Unloading waits for, or at least does not disturb, what runs.
        ok!(gpu, cuModuleUnload(kernels));
        assert_eq!(download::<u32>(gpu, data, 1), [8]);
    }
}

fn library(gpu: &Driver) -> CUlibrary {
    let text = CString::new(KERNELS).expect("no NUL");
    let mut library = null_mut();
    ok!(
        gpu,
        cuLibraryLoadData(&mut library, text.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
    );
    library
}

fn a_library_without_a_context(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    let library = library(gpu);
    let (mut kernel, mut none) = (null_mut(), null_mut());
    ok!(gpu, cuLibraryGetKernel(&mut kernel, library, c"double".as_ptr()));
    answers!(gpu, CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&mut none, library, c"none".as_ptr()));
    context(gpu);
    let data = upload(gpu, &[5u32]);
    assert_eq!(launch(gpu, kernel, 1, 1, DEFAULT_STREAM, &[data, 1]), 0);
    assert_eq!(download::<u32>(gpu, data, 1), [10]);
    ok!(gpu, cuLibraryUnload(library));
}

fn kernels_of_a_library_are_launched(gpu: &Driver) {
    context(gpu);
    let library = library(gpu);
    let (mut kernel, mut function, mut owner, mut name) = (null_mut(), null_mut(), null_mut(), null());
    ok!(gpu, cuLibraryGetKernel(&mut kernel, library, c"double".as_ptr()));
    ok!(gpu, cuKernelGetFunction(&mut function, kernel));
    let data = upload(gpu, &[1u32]);
    assert_eq!(launch(gpu, kernel, 1, 1, DEFAULT_STREAM, &[data, 1]), 0);
    assert_eq!(launch(gpu, function, 1, 1, DEFAULT_STREAM, &[data, 1]), 0);
    assert_eq!(download::<u32>(gpu, data, 1), [4]);
    ok!(gpu, cuKernelGetName(&mut name, kernel));
    // SAFETY: a text of the driver's.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"double");
    ok!(gpu, cuKernelGetLibrary(&mut owner, kernel));
    assert_eq!(owner, library);
    let mut value = 0;
    ok!(gpu, cuKernelGetAttribute(&mut value, function_attribute::MAX_THREADS_PER_BLOCK, kernel, 0));
    assert_eq!(value, attribute(gpu, function_attribute::MAX_THREADS_PER_BLOCK, function));
    let (mut address, mut bytes) = (0, 0);
    ok!(gpu, cuLibraryGetGlobal(&mut address, &mut bytes, library, c"answer".as_ptr()));
    assert_eq!((bytes, download::<u32>(gpu, address, 1)), (4, vec![42]));
    let mut inner = null_mut();
    ok!(gpu, cuLibraryGetModule(&mut inner, library));
    assert!(!crate::calls::function(gpu, inner, "sum").is_null());
    let (mut offset, mut size) = (0, 0);
    ok!(gpu, cuKernelGetParamInfo(kernel, 1, &mut offset, &mut size));
    assert_eq!((offset, size), (8, 8));
}

fn functions_are_enumerated(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let expected = KERNELS.matches(".entry").count();
    let mut count = 0;
    ok!(gpu, cuModuleGetFunctionCount(&mut count, kernels));
    assert_eq!(count as usize, expected);
    let mut functions = vec![null_mut(); expected];
    ok!(gpu, cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, kernels));
    assert!(functions.contains(&function(gpu, kernels, "double")));
    let library = library(gpu);
    ok!(gpu, cuLibraryGetKernelCount(&mut count, library));
    assert_eq!(count as usize, expected);
    let mut found: Vec<CUkernel> = vec![null_mut(); expected];
    ok!(gpu, cuLibraryEnumerateKernels(found.as_mut_ptr(), count, library));
    assert!(found.iter().all(|kernel| !kernel.is_null()));
}

/// Libraries of kernels have thousands of them.
/// The driver loads a function that was only listed when it is launched.
fn a_listed_function_is_launched(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let mut count = 0;
    ok!(gpu, cuModuleGetFunctionCount(&mut count, kernels));
    let mut functions = vec![null_mut(); count as usize];
    ok!(gpu, cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, kernels));
    let named = |function: CUfunction| {
        let mut name = null();
        ok!(gpu, cuFuncGetName(&mut name, function));
        // SAFETY: the driver gave a string, which lives as long as the module.
        unsafe { std::ffi::CStr::from_ptr(name) }.to_owned()
    };
    let double =
        functions.into_iter().find(|function| named(*function).as_c_str() == c"double").expect("it is listed");
    let data = upload(gpu, &[21u32]);
    assert_eq!(launch(gpu, double, 1, 1, null_mut(), &[data, 1]), 0);
    assert_eq!(download::<u32>(gpu, data, 1), [42]);
}

fn functions_of_a_large_module_are_enumerated(gpu: &Driver) {
    const COUNT: usize = 3000;
    context(gpu);
    let kernels = (0..COUNT).map(|number| format!(".visible .entry kernel_with_a_long_name_{number}() {{ ret; }}\n"));
    let text = format!(".version 8.0\n.target sm_75\n.address_size 64\n{}", kernels.collect::<String>());
    let large = module(gpu, &text);
    let mut count = 0;
    ok!(gpu, cuModuleGetFunctionCount(&mut count, large));
    assert_eq!(count as usize, COUNT);
    let mut functions = vec![null_mut(); COUNT];
    ok!(gpu, cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, large));
    let last = function(gpu, large, "kernel_with_a_long_name_2999");
    assert!(functions.contains(&last));
    ok!(gpu, cuCtxSynchronize());
}

fn a_file_that_is_not_there(gpu: &Driver) {
    context(gpu);
    let mut none = null_mut();
    answers!(gpu, CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&mut none, c"/no/such/file.cubin".as_ptr()));
    let directory = testkit::directory();
    let path = directory.write("kernels.ptx", KERNELS);
    let name = CString::new(path.to_str().expect("a plain path")).expect("no NUL");
    let mut loaded: *mut c_void = null_mut();
    let code = code!(gpu, cuModuleLoad(&mut loaded, name.as_ptr()));
    assert_eq!(code, 0);
    assert!(!function(gpu, loaded, "double").is_null());
}

/// Links these texts and answers the result as a module.
fn linked(gpu: &Driver, texts: &[&str]) -> CUmodule {
    let (mut state, mut image, mut size, mut module) = (null_mut(), null_mut(), 0, null_mut());
    ok!(gpu, cuLinkCreate_v2(0, null_mut(), null_mut(), &mut state));
    for text in texts {
        let bytes = CString::new(*text).expect("PTX holds no NUL");
        let (data, len) = (bytes.as_ptr().cast_mut().cast(), bytes.count_bytes() + 1);
        ok!(gpu, cuLinkAddData_v2(state, jit_input::PTX, data, len, c"text".as_ptr(), 0, null_mut(), null_mut()));
    }
    ok!(gpu, cuLinkComplete(state, &mut image, &mut size));
    assert!(!image.is_null() && size > 0);
    ok!(gpu, cuModuleLoadData(&mut module, image));
    ok!(gpu, cuLinkDestroy(state));
    module
}

fn one_text_is_linked(gpu: &Driver) {
    context(gpu);
    let double = function(gpu, linked(gpu, &[KERNELS]), "double");
    let data = upload(gpu, &[4u32]);
    assert_eq!(launch(gpu, double, 1, 1, DEFAULT_STREAM, &[data, 1]), 0);
    assert_eq!(download::<u32>(gpu, data, 1), [8]);
    let mut state = null_mut();
    ok!(gpu, cuLinkCreate_v2(0, null_mut(), null_mut(), &mut state));
    let file = c"/no/such/file.ptx".as_ptr();
    answers!(
        gpu,
        CUDA_ERROR_FILE_NOT_FOUND,
        cuLinkAddFile_v2(state, jit_input::PTX, file, 0, null_mut(), null_mut())
    );
}

fn several_texts_are_linked(gpu: &Driver) {
    const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";
    context(gpu);
    let first = format!(
        "{HEAD}.extern .func (.param .b32 r) twice(.param .b32 x);\n.extern .global .align 4 .u32 bonus;\n\
         .visible .entry k(.param .u64 out) {{ .reg .b32 %r<4>; .reg .b64 %rd<2>; ld.param.u64 %rd1, [out];\n\
         {{ .param .b32 p; .param .b32 q; st.param.b32 [p], 20; call (q), twice, (p); ld.param.b32 %r1, [q]; }}\n\
         ld.global.u32 %r2, [bonus]; add.u32 %r3, %r1, %r2; st.global.u32 [%rd1], %r3; ret; }}\n"
    );
    let second = format!(
        "{HEAD}.visible .global .align 4 .u32 bonus = 2;\n\
         .visible .func (.param .b32 r) twice(.param .b32 x) {{ .reg .b32 %r<3>; ld.param.b32 %r1, [x];\n\
         shl.b32 %r2, %r1, 1; st.param.b32 [r], %r2; ret; }}\n"
    );
    let kernel = function(gpu, linked(gpu, &[&first, &second]), "k");
    let out = upload(gpu, &[0u32]);
    assert_eq!(launch(gpu, kernel, 1, 1, DEFAULT_STREAM, &[out]), 0);
    assert_eq!(download::<u32>(gpu, out, 1), [42]);
}

fn a_module_that_fails_says_why(gpu: &Driver) {
    const TEXT: &CStr = c".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() {\nno_such_thing 1; }\n";
    context(gpu);
    let load = |room: usize| {
        let (mut log, mut notes) = ([b'?'; 1000], [b'?'; 100]);
        let mut options = [
            jit_option::ERROR_LOG_BUFFER,
            jit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
            jit_option::INFO_LOG_BUFFER,
            jit_option::INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 4] =
            [log.as_mut_ptr().cast(), room as *mut c_void, notes.as_mut_ptr().cast(), 100 as *mut c_void];
        let mut none = null_mut();
        let (options, values_at) = (options.as_mut_ptr(), values.as_mut_ptr());
        let code = code!(gpu, cuModuleLoadDataEx(&mut none, TEXT.as_ptr().cast(), 4, options, values_at));
        assert_eq!(code, CUDA_ERROR_INVALID_PTX);
        assert!(log[room..].iter().all(|byte| *byte == b'?'), "nothing is written behind the room");
        assert!(notes.contains(&0), "a log without words is empty");
        CStr::from_bytes_until_nul(&log).expect("a text").to_string_lossy().into_owned()
    };
    let whole = load(1000);
    assert!(whole.contains("line 5"), "{whole:?}");
    let cut = load(12);
    assert!(cut.len() < 12 && whole.starts_with(&cut), "{cut:?} is not the beginning of {whole:?}");
}

fn a_module_is_loaded_with_options(gpu: &Driver) {
    context(gpu);
    let text = CString::new(KERNELS).expect("PTX holds no NUL");
    let mut log = [b'?'; 100];
    let mut options = [
        jit_option::OPTIMIZATION_LEVEL,
        jit_option::WALL_TIME,
        jit_option::ERROR_LOG_BUFFER,
        jit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 4] = [4 as *mut c_void, null_mut(), log.as_mut_ptr().cast(), 100 as *mut c_void];
    let (mut module, mut library) = (null_mut(), null_mut());
    let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
    ok!(gpu, cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 4, options, values));
    assert!(!function(gpu, module, "double").is_null());
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 1, null_mut(), null_mut())
    );
    ok!(gpu, cuLibraryLoadData(&mut library, text.as_ptr().cast(), options, values, 2, null_mut(), null_mut(), 0));
    let mut count = 0;
    ok!(gpu, cuLibraryGetKernelCount(&mut count, library));
    assert!(count > 0);
    ok!(gpu, cuLibraryUnload(library));
}

fn a_link_that_fails_says_so(gpu: &Driver) {
    const TEXT: &str = ".version 8.0\n.target sm_75\n.address_size 64\n\
        .visible .entry k() { no such instruction; }\n\0";
    context(gpu);
    let mut log = [b'?'; 1000];
    let (mut state, mut image, mut size) = (null_mut(), null_mut(), 0);
    let mut options = [jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    ok!(gpu, cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state));
    let data = TEXT.as_ptr().cast_mut().cast();
    let name = c"text".as_ptr();
    let added =
        code!(gpu, cuLinkAddData_v2(state, jit_input::PTX, data, TEXT.len(), name, 0, null_mut(), null_mut()));
    let linked = code!(gpu, cuLinkComplete(state, &mut image, &mut size));
    assert!(added != CUDA_SUCCESS || linked != CUDA_SUCCESS, "there is no such instruction");
    let said = CStr::from_bytes_until_nul(&log).expect("a text").to_string_lossy();
    assert!(said.contains("line 4"), "{said:?}");
    ok!(gpu, cuLinkDestroy(state));
}
