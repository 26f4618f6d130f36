//! Texture and surface references: images that code names and the program binds.

use std::ptr::null_mut;

use cuda_abi::constants::{
    address_mode, array_flag, array_format, filter_mode, memory_type, texture_flag, texture_reference,
};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{DEFAULT_STREAM, alloc, answers, code, context, download, function, launch, module, ok};

super::tests! {
    "references":
    settings_are_remembered,
    a_kernel_reads_what_is_bound,
    a_kernel_reads_plain_memory,
    a_kernel_writes_through_a_surface,
    references_are_of_their_module,
    wrong_references_are_refused,
    references_of_32_bits,
}

const CODE: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .global .texref picture;
.visible .global .surfref canvas;
.visible .global .align 4 .u32 plain;

// out[y * width + x] = picture(x, y), one block for each y.
.visible .entry look(.param .u64 look_out)
{
    .reg .b32 %r<6>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [look_out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [picture, {%r1, %r2}];
    st.global.f32 [%rd3], %f1;
    ret;
}

.visible .entry look_along(.param .u64 look_out)
{
    .reg .b32 %r<2>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [look_out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [picture, {%r1}];
    st.global.f32 [%rd3], %f1;
    ret;
}

// canvas(x, y) = 100 * y + x
.visible .entry draw(.param .u64 draw_unused)
{
    .reg .b32 %r<6>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r3, %r2, 100, %r1;
    shl.b32 %r4, %r1, 2;
    sust.b.2d.b32.trap [canvas, {%r4, %r2}], {%r3};
    ret;
}
";

const WIDTH: usize = 16;
const HEIGHT: usize = 8;

fn texture(gpu: &Driver, module: CUmodule) -> CUtexref {
    let mut reference = null_mut();
    ok!(gpu, cuModuleGetTexRef(&mut reference, module, c"picture".as_ptr()));
    reference
}

fn array(gpu: &Driver, format: u32, flags: u32) -> CUarray {
    let about = CUDA_ARRAY3D_DESCRIPTOR {
        width: WIDTH,
        height: HEIGHT,
        format,
        num_channels: 1,
        flags,
        ..Default::default()
    };
    let mut array = null_mut();
    ok!(gpu, cuArray3DCreate_v2(&mut array, &about));
    array
}

fn copy(gpu: &Driver, array: CUarray, host: &mut [u32], to_array: bool) {
    let row = WIDTH * 4;
    let mut copy = CUDA_MEMCPY2D { width_in_bytes: row, height: HEIGHT, ..Default::default() };
    if to_array {
        (copy.src_memory_type, copy.src_host, copy.src_pitch) = (memory_type::HOST, host.as_ptr().cast(), row);
        (copy.dst_memory_type, copy.dst_array) = (memory_type::ARRAY, array);
    } else {
        (copy.src_memory_type, copy.src_array) = (memory_type::ARRAY, array);
        (copy.dst_memory_type, copy.dst_host, copy.dst_pitch) = (memory_type::HOST, host.as_mut_ptr().cast(), row);
    }
    ok!(gpu, cuMemcpy2D_v2(&copy));
}

/// An array of numbers from `first` up.
fn numbers(gpu: &Driver, first: f32) -> (CUarray, Vec<f32>) {
    let values: Vec<f32> = (0..WIDTH * HEIGHT).map(|at| first + at as f32).collect();
    let array = array(gpu, array_format::FLOAT, 0);
    copy(gpu, array, &mut values.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), true);
    (array, values)
}

fn look(gpu: &Driver, module: CUmodule) -> Vec<f32> {
    let to = alloc(gpu, WIDTH * HEIGHT * 4);
    let kernel = function(gpu, module, "look");
    assert_eq!(launch(gpu, kernel, HEIGHT as u32, WIDTH as u32, DEFAULT_STREAM, &[to]), 0);
    download(gpu, to, WIDTH * HEIGHT)
}

fn settings_are_remembered(gpu: &Driver) {
    context(gpu);
    let mut reference = null_mut();
    ok!(gpu, cuTexRefCreate(&mut reference));
    ok!(gpu, cuTexRefSetFormat(reference, array_format::UNSIGNED_INT16, 2));
    ok!(gpu, cuTexRefSetAddressMode(reference, 1, address_mode::MIRROR));
    ok!(gpu, cuTexRefSetFilterMode(reference, filter_mode::LINEAR));
    ok!(gpu, cuTexRefSetFlags(reference, texture_flag::NORMALIZED_COORDINATES));
    ok!(gpu, cuTexRefSetMaxAnisotropy(reference, 4));
    ok!(gpu, cuTexRefSetMipmapFilterMode(reference, filter_mode::LINEAR));
    ok!(gpu, cuTexRefSetMipmapLevelBias(reference, 0.5));
    ok!(gpu, cuTexRefSetMipmapLevelClamp(reference, 1.0, 3.0));
    let (mut format, mut channels, mut mode, mut flags, mut most) = (0, 0, 0, 0, 0);
    ok!(gpu, cuTexRefGetFormat(&mut format, &mut channels, reference));
    assert_eq!((format, channels), (array_format::UNSIGNED_INT16, 2));
    ok!(gpu, cuTexRefGetAddressMode(&mut mode, reference, 1));
    assert_eq!(mode, address_mode::MIRROR);
    ok!(gpu, cuTexRefGetFilterMode(&mut mode, reference));
    assert_eq!(mode, filter_mode::LINEAR);
    ok!(gpu, cuTexRefGetFlags(&mut flags, reference));
    assert_eq!(flags, texture_flag::NORMALIZED_COORDINATES);
    ok!(gpu, cuTexRefGetMaxAnisotropy(&mut most, reference));
    assert_eq!(most, 4);
    ok!(gpu, cuTexRefGetMipmapFilterMode(&mut mode, reference));
    assert_eq!(mode, filter_mode::LINEAR);
    let (mut bias, mut low, mut high) = (0.0, 0.0, 0.0);
    ok!(gpu, cuTexRefGetMipmapLevelBias(&mut bias, reference));
    ok!(gpu, cuTexRefGetMipmapLevelClamp(&mut low, &mut high, reference));
    assert_eq!((bias, low, high), (0.5, 1.0, 3.0));
    let (color, mut told) = ([0.25, 0.5, 0.75, 1.0], [0.0; 4]);
    ok!(gpu, cuTexRefSetBorderColor(reference, &color));
    ok!(gpu, cuTexRefGetBorderColor(&mut told, reference));
    assert_eq!(told, color);
    let mut array = null_mut();
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&mut array, reference));
    ok!(gpu, cuTexRefDestroy(reference));
    assert_ne!(code!(gpu, cuTexRefGetFlags(&mut flags, reference)), 0);
}

fn a_kernel_reads_what_is_bound(gpu: &Driver) {
    context(gpu);
    let module = module(gpu, CODE);
    let reference = texture(gpu, module);
    let mut flags = 7;
    ok!(gpu, cuTexRefSetFlags(reference, 0));
    ok!(gpu, cuTexRefGetFlags(&mut flags, reference));
    assert_eq!(flags, 0);
    for first in [0.0, 1000.0] {
        let (array, values) = numbers(gpu, first);
        ok!(gpu, cuTexRefSetArray(reference, array, texture_reference::OVERRIDE_FORMAT));
        let mut bound = null_mut();
        ok!(gpu, cuTexRefGetArray(&mut bound, reference));
        assert_eq!(bound, array);
        assert_eq!(look(gpu, module), values);
    }
}

fn a_kernel_reads_plain_memory(gpu: &Driver) {
    context(gpu);
    let module = module(gpu, CODE);
    let reference = texture(gpu, module);
    let values: Vec<f32> = (0..256).map(|at| at as f32 * 0.5).collect();
    let memory = alloc(gpu, 1024);
    ok!(gpu, cuMemcpyHtoD_v2(memory, values.as_ptr().cast(), 1024));
    let (mut offset, mut address) = (7, 0);
    ok!(gpu, cuTexRefSetFormat(reference, array_format::FLOAT, 1));
    ok!(gpu, cuTexRefSetAddress_v2(&mut offset, reference, memory, 1024));
    assert_eq!(offset, 0);
    ok!(gpu, cuTexRefGetAddress_v2(&mut address, reference));
    assert_eq!(address, memory);
    let to = alloc(gpu, 1024);
    let kernel = function(gpu, module, "look_along");
    assert_eq!(launch(gpu, kernel, 1, 256, DEFAULT_STREAM, &[to]), 0);
    assert_eq!(download::<f32>(gpu, to, 256), values);
    // The same as rows.
    let about = CUDA_ARRAY_DESCRIPTOR { width: WIDTH, height: 4, format: array_format::FLOAT, num_channels: 1 };
    ok!(gpu, cuTexRefSetAddress2D_v3(reference, &about, memory, 256));
    let rows = look(gpu, module);
    assert_eq!(rows[WIDTH + 3], values[64 + 3]);
    ok!(gpu, cuTexRefSetAddress2D_v2(reference, &about, memory, 256));
    let mut array = null_mut();
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&mut array, reference));
}

fn a_kernel_writes_through_a_surface(gpu: &Driver) {
    context(gpu);
    let module = module(gpu, CODE);
    let (mut reference, mut bound) = (null_mut(), null_mut());
    ok!(gpu, cuModuleGetSurfRef(&mut reference, module, c"canvas".as_ptr()));
    let canvas = array(gpu, array_format::UNSIGNED_INT32, array_flag::SURFACE_LDST);
    ok!(gpu, cuSurfRefSetArray(reference, canvas, 0));
    ok!(gpu, cuSurfRefGetArray(&mut bound, reference));
    assert_eq!(bound, canvas);
    let kernel = function(gpu, module, "draw");
    assert_eq!(launch(gpu, kernel, HEIGHT as u32, WIDTH as u32, DEFAULT_STREAM, &[0]), 0);
    let mut drawn = vec![0u32; WIDTH * HEIGHT];
    copy(gpu, canvas, &mut drawn, false);
    let wanted: Vec<u32> = (0..WIDTH * HEIGHT).map(|at| (at / WIDTH * 100 + at % WIDTH) as u32).collect();
    assert_eq!(drawn, wanted);
}

fn references_are_of_their_module(gpu: &Driver) {
    context(gpu);
    let (one, other) = (module(gpu, CODE), module(gpu, CODE));
    let (first, second) = (texture(gpu, one), texture(gpu, other));
    assert_ne!(first, second);
    assert_eq!(texture(gpu, one), first, "the same each time");
    let ((small, values), (large, others)) = (numbers(gpu, 0.0), numbers(gpu, 5000.0));
    ok!(gpu, cuTexRefSetArray(first, small, texture_reference::OVERRIDE_FORMAT));
    ok!(gpu, cuTexRefSetArray(second, large, texture_reference::OVERRIDE_FORMAT));
    assert_eq!((look(gpu, one), look(gpu, other)), (values, others.clone()));
    ok!(gpu, cuParamSetTexRef(function(gpu, one, "look"), -1, first));
    ok!(gpu, cuModuleUnload(one));
    let mut flags = 0;
    assert_ne!(code!(gpu, cuTexRefGetFlags(&mut flags, first)), 0);
    assert_eq!(look(gpu, other), others);
}

fn wrong_references_are_refused(gpu: &Driver) {
    context(gpu);
    let module = module(gpu, CODE);
    let reference = texture(gpu, module);
    let (mut wrong, mut surface) = (null_mut(), null_mut());
    for name in [c"canvas", c"plain", c"nothing"] {
        answers!(gpu, CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&mut wrong, module, name.as_ptr()));
    }
    answers!(gpu, CUDA_ERROR_NOT_FOUND, cuModuleGetSurfRef(&mut surface, module, c"picture".as_ptr()));
    let refused = |code: u32| assert_ne!(code, 0);
    let (array, _) = numbers(gpu, 0.0);
    let memory = alloc(gpu, 1024);
    let about = CUDA_ARRAY_DESCRIPTOR { width: WIDTH, height: 1 << 30, format: array_format::FLOAT, num_channels: 1 };
    refused(code!(gpu, cuTexRefSetAddress2D_v3(reference, &about, memory, 256)));
    refused(code!(gpu, cuTexRefSetAddress_v2(null_mut(), reference, memory, 1 << 40)));
    refused(code!(gpu, cuTexRefSetAddress_v2(null_mut(), reference, 0x1000, 16)));
    refused(code!(gpu, cuTexRefSetArray(reference, 0x1234 as CUarray, texture_reference::OVERRIDE_FORMAT)));
    refused(code!(gpu, cuTexRefSetArray(array.cast(), array, texture_reference::OVERRIDE_FORMAT)));
    refused(code!(gpu, cuTexRefSetFlags(null_mut(), 0)));
    refused(code!(gpu, cuTexRefDestroy(0x1234 as CUtexref)));
    // What was refused has changed nothing.
    ok!(gpu, cuTexRefSetArray(reference, array, texture_reference::OVERRIDE_FORMAT));
    look(gpu, module);
}

fn references_of_32_bits(gpu: &Driver) {
    context(gpu);
    let mut reference = null_mut();
    ok!(gpu, cuTexRefCreate(&mut reference));
    let (mut offset, mut address) = (0, 0);
    let about = CUDA_ARRAY_DESCRIPTOR_v1 { width: 4, height: 4, format: array_format::FLOAT, num_channels: 1 };
    assert_ne!(code!(gpu, cuTexRefSetAddress(&mut offset, reference, 0x1000, 16)), 0);
    assert_ne!(code!(gpu, cuTexRefSetAddress2D(reference, &about, 0x1000, 64)), 0);
    assert_ne!(code!(gpu, cuTexRefGetAddress(&mut address, reference)), 0);
    ok!(gpu, cuTexRefDestroy(reference));
}
