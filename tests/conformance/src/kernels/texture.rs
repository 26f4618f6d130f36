//! `texture.cu`.

use cuda_abi::constants::{address_mode, array_flag, array_format, memory_type, texture_flag};
use cuda_abi::driver::Driver;
use cuda_abi::types::*;
use std::ptr::{null, null_mut};

use super::device::{Kernels, args};
use super::values::scattered;
use crate::calls::ok;

super::tests! {
    texture_1d,
    texture_2d_nearest,
    texture_2d_linear,
    texture_2d_beside,
    texture_2d_normalized_fractions,
    texture_2d_bytes,
    texture_2d_shorts,
    texture_2d_pitched,
    texture_3d,
    texture_layered,
    texture_level,
    texture_cube,
    texture_fetch,
    texture_gather,
    texture_2d_v4,
    surface_2d,
    surface_widths,
    surface_beside,
    surface_3d,
    surface_layered,
    arrays_have_descriptors,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "texture")
}

struct Shape {
    size: [usize; 3],
    format: u32,
    channels: u32,
    flags: u32,
}

fn plain(width: usize, height: usize) -> Shape {
    Shape { size: [width, height, 0], format: array_format::FLOAT, channels: 1, flags: 0 }
}

fn create(gpu: &Driver, shape: &Shape) -> CUarray {
    let [width, height, depth] = shape.size;
    let about = CUDA_ARRAY3D_DESCRIPTOR {
        width,
        height,
        depth,
        format: shape.format,
        num_channels: shape.channels,
        flags: shape.flags,
        padding: 0,
    };
    let mut array = null_mut();
    ok!(gpu, cuArray3DCreate_v2(&mut array, &about));
    array
}

/// One side of a copy is this array, the other the host.
fn copy<T: Copy>(gpu: &Driver, array: CUarray, shape: &Shape, host: *mut T, row: usize, to_array: bool) {
    let [_, height, depth] = shape.size.map(|side| side.max(1));
    let mut what = CUDA_MEMCPY3D { width_in_bytes: row, height, depth, ..Default::default() };
    if to_array {
        (what.src_memory_type, what.src_host, what.src_pitch, what.src_height) =
            (memory_type::HOST, host.cast(), row, height);
        (what.dst_memory_type, what.dst_array) = (memory_type::ARRAY, array);
    } else {
        (what.dst_memory_type, what.dst_host, what.dst_pitch, what.dst_height) =
            (memory_type::HOST, host.cast(), row, height);
        (what.src_memory_type, what.src_array) = (memory_type::ARRAY, array);
    }
    ok!(gpu, cuMemcpy3D_v2(&what));
}

fn filled<T: Copy>(gpu: &Driver, shape: &Shape, values: &[T]) -> CUarray {
    let array = create(gpu, shape);
    let [_, height, depth] = shape.size.map(|side| side.max(1));
    copy(gpu, array, shape, values.as_ptr().cast_mut(), size_of_val(values) / height / depth, true);
    array
}

fn contents<T: Copy + Default>(gpu: &Driver, array: CUarray, shape: &Shape, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let [_, height, depth] = shape.size.map(|side| side.max(1));
    copy(gpu, array, shape, values.as_mut_ptr(), size_of_val(&values[..]) / height / depth, false);
    values
}

/// The descriptors of the API, which are passed as bytes here.
fn bytes<T: Default>(fields: &[(usize, &[u8])]) -> T {
    let mut value = T::default();
    for (at, field) in fields {
        assert!(at + field.len() <= size_of::<T>());
        // SAFETY: inside of the struct, which is plain words.
        unsafe { std::ptr::copy_nonoverlapping(field.as_ptr(), (&raw mut value).cast::<u8>().add(*at), field.len()) };
    }
    value
}

fn array_resource(array: CUarray) -> CUDA_RESOURCE_DESC {
    bytes(&[(8, &(array as u64).to_le_bytes())])
}

fn sampler(beside: u32, linear: bool, flags: u32, border: f32) -> CUDA_TEXTURE_DESC {
    let (mode, border) = (beside.to_le_bytes(), border.to_le_bytes());
    bytes(&[
        (0, &mode),
        (4, &mode),
        (8, &mode),
        (12, &u32::from(linear).to_le_bytes()),
        (16, &flags.to_le_bytes()),
        (40, &border),
    ])
}

fn texture(gpu: &Driver, resource: &CUDA_RESOURCE_DESC, sampler: &CUDA_TEXTURE_DESC) -> CUtexObject {
    let mut object = 0;
    ok!(gpu, cuTexObjectCreate(&mut object, resource, sampler, null()));
    object
}

fn surface(gpu: &Driver, array: CUarray) -> CUsurfObject {
    let mut object = 0;
    ok!(gpu, cuSurfObjectCreate(&mut object, &array_resource(array)));
    object
}

/// Reads a texture at these places.
fn read<R: Copy + Default>(kernels: &Kernels, name: &str, object: u64, places: &[[f32; 4]]) -> Vec<R> {
    let (input, out) = (kernels.upload(places), kernels.zeros::<R>(places.len()));
    kernels.run(name, places.len().div_ceil(64) as u32, 64, args![object, input, out, places.len() as i32]);
    kernels.download(out, places.len())
}

/// Whole numbers that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    scattered(count, seed).iter().map(|value| (value % 1000) as f32).collect()
}

/// Places in and around an image, in steps that the hardware's fractions hold exactly.
fn places(width: f32, height: f32) -> Vec<[f32; 4]> {
    let steps = |size: f32| (-8..=(size * 4.0) as i32 + 8).map(|step| step as f32 / 4.0).collect::<Vec<_>>();
    let (xs, ys) = (steps(width), steps(height));
    ys.iter().flat_map(|y| xs.iter().map(|x| [*x, *y, 0.0, 0.0])).collect()
}

fn index(at: i64, size: i64, beside: u32) -> Option<i64> {
    match beside {
        address_mode::WRAP => Some(at.rem_euclid(size)),
        address_mode::CLAMP => Some(at.clamp(0, size - 1)),
        address_mode::MIRROR => {
            let turn = at.rem_euclid(2 * size);
            Some(if turn < size { turn } else { 2 * size - 1 - turn })
        }
        _ => (0..size).contains(&at).then_some(at),
    }
}

fn texture_1d(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(20, 71);
    let shape = plain(20, 0);
    let array = filled(gpu, &shape, &values);
    let places: Vec<[f32; 4]> = (-8..100).map(|step| [step as f32 / 4.0, 0.0, 0.0, 0.0]).collect();
    let nearest = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    for (place, got) in places.iter().zip(read::<f32>(&kernels, "texture_1d", nearest, &places)) {
        assert_eq!(got, values[(place[0].floor() as i64).clamp(0, 19) as usize], "{place:?}");
    }
    let linear = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, true, 0, 0.0));
    for (place, got) in places.iter().zip(read::<f32>(&kernels, "texture_1d", linear, &places)) {
        let (first, part) = ((place[0] - 0.5).floor(), (place[0] - 0.5).rem_euclid(1.0));
        let at = |index: f32| values[(index as i64).clamp(0, 19) as usize];
        assert_eq!(got, at(first) * (1.0 - part) + at(first + 1.0) * part, "{place:?}");
    }
}

fn texture_2d_nearest(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(9 * 7, 72);
    let array = filled(gpu, &plain(9, 7), &values);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places = places(9.0, 7.0);
    for (place, got) in places.iter().zip(read::<f32>(&kernels, "texture_2d", object, &places)) {
        let (x, y) = ((place[0].floor() as i64).clamp(0, 8), (place[1].floor() as i64).clamp(0, 6));
        assert_eq!(got, values[(y * 9 + x) as usize], "{place:?}");
    }
}

/// The mean of the four elements around a place.
fn blend(values: &[f32], [width, height]: [i64; 2], [x, y]: [f32; 2], beside: u32, border: f32) -> f32 {
    let split = |value: f32| ((value - 0.5).floor() as i64, (value - 0.5).rem_euclid(1.0));
    let ((i, a), (j, b)) = (split(x), split(y));
    let at = |x: i64, y: i64| match (index(x, width, beside), index(y, height, beside)) {
        (Some(x), Some(y)) => values[(y * width + x) as usize],
        _ => border,
    };
    let row = |y: i64| at(i, y) * (1.0 - a) + at(i + 1, y) * a;
    row(j) * (1.0 - b) + row(j + 1) * b
}

fn texture_2d_linear(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(8 * 8, 73);
    let array = filled(gpu, &plain(8, 8), &values);
    let places = places(8.0, 8.0);
    for (beside, border) in [(address_mode::CLAMP, 0.0), (address_mode::BORDER, 512.0)] {
        let object = texture(gpu, &array_resource(array), &sampler(beside, true, 0, border));
        for (place, got) in places.iter().zip(read::<f32>(&kernels, "texture_2d", object, &places)) {
            assert_eq!(got, blend(&values, [8, 8], [place[0], place[1]], beside, border), "{place:?} {beside}");
        }
    }
}

fn texture_2d_beside(gpu: &Driver) {
    // Normalised coordinates, which alone wrap and mirror.
    let kernels = load(gpu);
    let values = numbers(8 * 4, 74);
    let array = filled(gpu, &plain(8, 4), &values);
    let in_elements: Vec<[f32; 4]> =
        places(8.0, 4.0).into_iter().map(|[x, y, ..]| [x * 3.0 - 8.0, y * 3.0, 0.0, 0.0]).collect();
    let normalized: Vec<[f32; 4]> = in_elements.iter().map(|[x, y, ..]| [x / 8.0, y / 4.0, 0.0, 0.0]).collect();
    for beside in [address_mode::WRAP, address_mode::CLAMP, address_mode::MIRROR, address_mode::BORDER] {
        for linear in [false, true] {
            let object = texture(
                gpu,
                &array_resource(array),
                &sampler(beside, linear, texture_flag::NORMALIZED_COORDINATES, 7.0),
            );
            for (place, got) in in_elements.iter().zip(read::<f32>(&kernels, "texture_2d", object, &normalized)) {
                let [x, y, ..] = *place;
                let expected = if linear {
                    blend(&values, [8, 4], [x, y], beside, 7.0)
                } else {
                    match (index(x.floor() as i64, 8, beside), index(y.floor() as i64, 4, beside)) {
                        (Some(x), Some(y)) => values[(y * 8 + x) as usize],
                        _ => 7.0,
                    }
                };
                assert_eq!(got, expected, "{place:?} mode {beside} linear {linear}");
            }
        }
    }
}

fn texture_2d_normalized_fractions(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u8> = (0..=255).collect();
    let shape = Shape { size: [16, 16, 0], format: array_format::UNSIGNED_INT8, channels: 1, flags: 0 };
    let array = filled(gpu, &shape, &values);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places: Vec<[f32; 4]> =
        (0..256).map(|at| [(at % 16) as f32 + 0.5, (at / 16) as f32 + 0.5, 0.0, 0.0]).collect();
    for (at, got) in read::<f32>(&kernels, "texture_2d", object, &places).into_iter().enumerate() {
        assert!((got - at as f32 / 255.0).abs() < 1e-6, "{at}: {got}");
    }
    // Halves come as singles.
    let halves: Vec<u16> = vec![0x3c00, 0xc000, 0x3555, 0x7bff];
    let shape = Shape { size: [4, 1, 0], format: array_format::HALF, channels: 1, flags: 0 };
    let array = filled(gpu, &shape, &halves);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let got = read::<f32>(&kernels, "texture_2d", object, &places[..4]);
    assert_eq!(got, [1.0, -2.0, 0.333_251_95, 65_504.0]);
}

fn texture_2d_bytes(gpu: &Driver) {
    let kernels = load(gpu);
    let values = crate::calls::pattern(4 * 6 * 5, 75);
    let shape = Shape { size: [6, 5, 0], format: array_format::UNSIGNED_INT8, channels: 4, flags: 0 };
    let array = filled(gpu, &shape, &values);
    let object = texture(
        gpu,
        &array_resource(array),
        &sampler(address_mode::CLAMP, false, texture_flag::READ_AS_INTEGER, 0.0),
    );
    let places: Vec<[f32; 4]> = (0..30).map(|at| [(at % 6) as f32, (at / 6) as f32, 0.0, 0.0]).collect();
    let got = read::<[u8; 4]>(&kernels, "texture_2d_bytes", object, &places);
    assert_eq!(got.concat(), values);
}

fn texture_2d_shorts(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<i16> = scattered(40, 76).iter().map(|value| *value as i16).collect();
    let shape = Shape { size: [5, 4, 0], format: array_format::SIGNED_INT16, channels: 2, flags: 0 };
    let array = filled(gpu, &shape, &values);
    let object = texture(
        gpu,
        &array_resource(array),
        &sampler(address_mode::CLAMP, false, texture_flag::READ_AS_INTEGER, 0.0),
    );
    let places: Vec<[f32; 4]> = (0..20).map(|at| [(at % 5) as f32, (at / 5) as f32, 0.0, 0.0]).collect();
    let got = read::<[i16; 2]>(&kernels, "texture_2d_shorts", object, &places);
    assert_eq!(got.concat(), values);
}

fn texture_2d_pitched(gpu: &Driver) {
    let kernels = load(gpu);
    let (mut memory, mut pitch) = (0, 0);
    ok!(gpu, cuMemAllocPitch_v2(&mut memory, &mut pitch, 40, 6, 4));
    let values = numbers(60, 77);
    let what = CUDA_MEMCPY2D {
        src_memory_type: 1,
        src_host: values.as_ptr().cast(),
        src_pitch: 40,
        dst_memory_type: 2,
        dst_device: memory,
        dst_pitch: pitch,
        width_in_bytes: 40,
        height: 6,
        ..Default::default()
    };
    ok!(gpu, cuMemcpy2D_v2(&what));
    let resource = bytes(&[
        (0, &3u32.to_le_bytes()),
        (8, &memory.to_le_bytes()),
        (16, &array_format::FLOAT.to_le_bytes()),
        (20, &1u32.to_le_bytes()),
        (24, &10u64.to_le_bytes()),
        (32, &6u64.to_le_bytes()),
        (40, &(pitch as u64).to_le_bytes()),
    ]);
    let object = texture(gpu, &resource, &sampler(address_mode::CLAMP, true, 0, 0.0));
    let places = places(10.0, 6.0);
    for (place, got) in places.iter().zip(read::<f32>(&kernels, "texture_2d", object, &places)) {
        assert_eq!(got, blend(&values, [10, 6], [place[0], place[1]], address_mode::CLAMP, 0.0), "{place:?}");
    }
}

fn texture_3d(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(5 * 4 * 3, 78);
    let shape = Shape { size: [5, 4, 3], ..plain(5, 4) };
    let array = filled(gpu, &shape, &values);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places: Vec<[f32; 4]> =
        (0..60).map(|at| [(at % 5) as f32, (at / 5 % 4) as f32, (at / 20) as f32, 0.0]).collect();
    assert_eq!(read::<f32>(&kernels, "texture_3d", object, &places), values);
    // Half way in every direction: the mean of eight.
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, true, 0, 0.0));
    let between: Vec<[f32; 4]> =
        (0..24).map(|at| [(at % 4 + 1) as f32, (at / 4 % 3 + 1) as f32, (at / 12 + 1) as f32, 0.0]).collect();
    for (place, got) in between.iter().zip(read::<f32>(&kernels, "texture_3d", object, &between)) {
        let [x, y, z, _] = place.map(|value| value as usize);
        let at = |corner: usize| {
            let (x, y, z) = (x - 1 + (corner & 1), y - 1 + (corner >> 1 & 1), z - 1 + (corner >> 2));
            values[(z * 4 + y) * 5 + x]
        };
        assert_eq!(got, (0..8).map(at).sum::<f32>() / 8.0, "{place:?}");
    }
}

fn texture_layered(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(6 * 5 * 3, 79);
    let shape = Shape { size: [6, 5, 3], flags: array_flag::LAYERED, ..plain(6, 5) };
    let array = filled(gpu, &shape, &values);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places: Vec<[f32; 4]> =
        (0..90).map(|at| [(at % 6) as f32, (at / 6 % 5) as f32, 0.0, (at / 30) as f32]).collect();
    assert_eq!(read::<f32>(&kernels, "texture_layered_2d", object, &places), values);
    let shape = Shape { size: [30, 0, 3], flags: array_flag::LAYERED, ..plain(30, 0) };
    let array = create(gpu, &shape);
    copy(gpu, array, &shape, values.as_ptr().cast_mut(), 120, true);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places: Vec<[f32; 4]> = (0..90).map(|at| [(at % 30) as f32, 0.0, 0.0, (at / 30) as f32]).collect();
    assert_eq!(read::<f32>(&kernels, "texture_layered_1d", object, &places), values);
}

fn texture_level(gpu: &Driver) {
    let kernels = load(gpu);
    let about = CUDA_ARRAY3D_DESCRIPTOR {
        width: 8,
        height: 8,
        format: array_format::FLOAT,
        num_channels: 1,
        ..Default::default()
    };
    let mut mipmap = null_mut();
    ok!(gpu, cuMipmappedArrayCreate(&mut mipmap, &about, 4));
    for level in 0..4u32 {
        let side = 8usize >> level;
        let mut array = null_mut();
        ok!(gpu, cuMipmappedArrayGetLevel(&mut array, mipmap, level));
        let values = vec![(level * 100) as f32; side * side];
        copy(gpu, array, &plain(side, side), values.as_ptr().cast_mut(), side * 4, true);
    }
    let resource = bytes(&[(0, &1u32.to_le_bytes()), (8, &(mipmap as u64).to_le_bytes())]);
    let levels = |linear: u32| -> CUDA_TEXTURE_DESC {
        let (mode, most) = (address_mode::CLAMP.to_le_bytes(), 3f32.to_le_bytes());
        bytes(&[
            (0, &mode),
            (4, &mode),
            (8, &mode),
            (16, &texture_flag::NORMALIZED_COORDINATES.to_le_bytes()),
            (24, &linear.to_le_bytes()),
            (36, &most),
        ])
    };
    let places: Vec<[f32; 4]> = (0..=16).map(|step| [0.5, 0.5, step as f32 / 4.0, 0.0]).collect();
    let object = texture(gpu, &resource, &levels(1));
    for (place, got) in places.iter().zip(read::<f32>(&kernels, "texture_level", object, &places)) {
        assert_eq!(got, place[2].min(3.0) * 100.0, "{place:?}");
    }
    // Away from the middle between two levels, where either would do.
    let object = texture(gpu, &resource, &levels(0));
    for (place, got) in places.iter().zip(read::<f32>(&kernels, "texture_level", object, &places)) {
        if place[2].fract() != 0.5 {
            assert_eq!(got, place[2].min(3.0).round() * 100.0, "{place:?}");
        }
    }
}

fn texture_cube(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<f32> = (0..6 * 16).map(|at| (at / 16) as f32).collect();
    let shape = Shape { size: [4, 4, 6], flags: array_flag::CUBEMAP, ..plain(4, 4) };
    let array = filled(gpu, &shape, &values);
    let object = texture(
        gpu,
        &array_resource(array),
        &sampler(address_mode::CLAMP, false, texture_flag::NORMALIZED_COORDINATES, 0.0),
    );
    let directions =
        [[1.0, 0.2, -0.3], [-1.0, 0.1, 0.4], [0.3, 1.0, 0.2], [0.1, -1.0, -0.4], [0.2, -0.3, 1.0], [0.4, 0.3, -1.0]];
    let places: Vec<[f32; 4]> = directions.iter().map(|[x, y, z]| [*x, *y, *z, 0.0]).collect();
    assert_eq!(read::<f32>(&kernels, "texture_cube", object, &places), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

fn texture_fetch(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(100, 80);
    let memory = kernels.upload(&values);
    let resource = bytes(&[
        (0, &2u32.to_le_bytes()),
        (8, &memory.to_le_bytes()),
        (16, &array_format::FLOAT.to_le_bytes()),
        (20, &1u32.to_le_bytes()),
        (24, &400u64.to_le_bytes()),
    ]);
    let object = texture(gpu, &resource, &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places: Vec<[f32; 4]> = (0..110).map(|at| [at as f32, 0.0, 0.0, 0.0]).collect();
    let mut expected = values;
    expected.resize(110, 0.0);
    assert_eq!(read::<f32>(&kernels, "texture_fetch", object, &places), expected, "outside is nothing");
    ok!(gpu, cuTexObjectDestroy(object));
}

fn texture_gather(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(4 * 6 * 6, 81);
    let shape =
        Shape { size: [6, 6, 0], format: array_format::FLOAT, channels: 4, flags: array_flag::TEXTURE_GATHER };
    let array = filled(gpu, &shape, &values);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places: Vec<[f32; 4]> = (0..25).map(|at| [(at % 5 + 1) as f32, (at / 5 + 1) as f32, 0.0, 0.0]).collect();
    for (place, got) in places.iter().zip(read::<[f32; 4]>(&kernels, "texture_gather", object, &places)) {
        let at = |x: f32, y: f32| values[((y as usize) * 6 + x as usize) * 4 + 1];
        let [x, y, ..] = *place;
        assert_eq!(got, [at(x - 1.0, y), at(x, y), at(x, y - 1.0), at(x - 1.0, y - 1.0)], "{place:?}");
    }
}

fn texture_2d_v4(gpu: &Driver) {
    let kernels = load(gpu);
    let values = numbers(4 * 3 * 3, 82);
    let shape = Shape { size: [3, 3, 0], format: array_format::FLOAT, channels: 4, flags: 0 };
    let array = filled(gpu, &shape, &values);
    let object = texture(gpu, &array_resource(array), &sampler(address_mode::CLAMP, false, 0, 0.0));
    let places: Vec<[f32; 4]> = (0..9).map(|at| [(at % 3) as f32, (at / 3) as f32, 0.0, 0.0]).collect();
    assert_eq!(read::<[f32; 4]>(&kernels, "texture_2d_v4", object, &places).concat(), values);
}

fn words_shape(width: usize, height: usize) -> Shape {
    Shape {
        size: [width, height, 0],
        format: array_format::UNSIGNED_INT32,
        channels: 1,
        flags: array_flag::SURFACE_LDST,
    }
}

fn surface_2d(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = scattered(37 * 11, 83).iter().map(|value| *value as u32).collect();
    let shape = words_shape(37, 11);
    let (from, to) = (filled(gpu, &shape, &values), create(gpu, &shape));
    let objects = [from, to].map(|array| surface(gpu, array));
    kernels.run_shaped("surface_2d", [5, 3, 1], [8, 4, 1], 0, args![objects[0], objects[1], 37i32, 11i32]);
    let expected: Vec<u32> = values.iter().rev().map(|value| value.wrapping_mul(3).wrapping_add(1)).collect();
    assert_eq!(contents::<u32>(gpu, to, &shape, 37 * 11), expected);
}

fn surface_widths(gpu: &Driver) {
    let kernels = load(gpu);
    let array = create(gpu, &words_shape(64, 4));
    let (object, out) = (surface(gpu, array), kernels.zeros::<[u32; 4]>(16));
    kernels.run("surface_widths", 1, 16, args![object, out]);
    for (i, got) in kernels.download::<u32>(out, 64).chunks(4).enumerate() {
        let i = i as u32;
        assert_eq!(got, [i * 7, i * 777, i * 4, i * 4 + 6], "thread {i}");
    }
}

fn surface_beside(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = (1..=40).collect();
    let array = filled(gpu, &words_shape(8, 5), &values);
    let (object, out) = (surface(gpu, array), kernels.zeros::<[u32; 2]>(16));
    kernels.run("surface_beside", 1, 16, args![object, out, 8i32, 5i32]);
    for (i, got) in kernels.download::<u32>(out, 32).chunks(2).enumerate() {
        let (x, y) = (i as i32 - 4, i as i32 - 2);
        let at = |x: i32, y: i32| values[(y * 8 + x) as usize];
        let inside = (0..8).contains(&x) && (0..5).contains(&y);
        assert_eq!(got, [if inside { at(x, y) } else { 0 }, at(x.clamp(0, 7), y.clamp(0, 4))], "thread {i}");
    }
}

fn surface_3d(gpu: &Driver) {
    let kernels = load(gpu);
    let shape = Shape { size: [6, 6, 6], format: array_format::FLOAT, channels: 1, flags: array_flag::SURFACE_LDST };
    let array = create(gpu, &shape);
    kernels.run_shaped("surface_3d", [6, 1, 1], [6, 6, 1], 0, args![surface(gpu, array), 6i32]);
    let expected: Vec<f32> = (0..216).map(|at| (at % 6 + at / 6 % 6 * 10 + at / 36 * 100) as f32).collect();
    assert_eq!(contents::<f32>(gpu, array, &shape, 216), expected);
}

fn surface_layered(gpu: &Driver) {
    let kernels = load(gpu);
    let shape = Shape {
        size: [5, 5, 4],
        format: array_format::FLOAT,
        channels: 1,
        flags: array_flag::SURFACE_LDST | array_flag::LAYERED,
    };
    let array = create(gpu, &shape);
    kernels.run_shaped("surface_layered", [1, 1, 1], [5, 5, 1], 0, args![surface(gpu, array), 4i32]);
    let expected: Vec<f32> = (0..100).map(|at| (at % 5 * (at / 5 % 5) + at / 25) as f32).collect();
    assert_eq!(contents::<f32>(gpu, array, &shape, 100), expected);
}

fn arrays_have_descriptors(gpu: &Driver) {
    load(gpu);
    let shape = Shape {
        size: [12, 10, 3],
        format: array_format::SIGNED_INT16,
        channels: 2,
        flags: array_flag::LAYERED | array_flag::SURFACE_LDST,
    };
    let array = create(gpu, &shape);
    let mut about = CUDA_ARRAY3D_DESCRIPTOR::default();
    ok!(gpu, cuArray3DGetDescriptor_v2(&mut about, array));
    assert_eq!((about.width, about.height, about.depth), (12, 10, 3));
    assert_eq!(
        (about.format, about.num_channels, about.flags),
        (array_format::SIGNED_INT16, 2, array_flag::LAYERED | array_flag::SURFACE_LDST)
    );
    ok!(gpu, cuArrayDestroy(array));
}
