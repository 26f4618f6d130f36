//! `memory.cu`.

use cuda_abi::driver::Driver;

use super::device::{Kernels, args};
use super::values::*;
use crate::calls::{download, ok, pattern};

super::tests! {
    memory_constants,
    memory_initial_values,
    memory_variables_last,
    memory_copy_of_all_widths,
    memory_swizzle,
    memory_hints,
    memory_extend,
    memory_static_shared,
    memory_dynamic_shared,
    memory_generic,
    memory_which_space,
    memory_bit_fields,
    memory_heap,
    memory_new,
    memory_copies,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "memory")
}

fn memory_constants(gpu: &Driver) {
    let kernels = load(gpu);
    let (settable, size) = kernels.global("settable");
    assert_eq!(size, 64);
    let values: Vec<u32> = (0..16).map(|at| at * 1000).collect();
    ok!(gpu, cuMemcpyHtoD_v2(settable, values.as_ptr().cast(), 64));
    let out = kernels.zeros::<u32>(64);
    kernels.run("memory_constants", 1, 64, args![out]);
    let bytes = [1, 0x80, 0xff, 7, 0];
    for (i, result) in kernels.download::<u32>(out, 64).into_iter().enumerate() {
        assert_eq!(result, (1 << (i % 8)) + 5 + bytes[i % 5] + values[i % 16], "thread {i}");
    }
}

fn memory_initial_values(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u64>(7);
    kernels.run("memory_initial_values", 1, 1, args![out]);
    let letters = "zeroonetwenty".bytes().fold(0u64, |sum, letter| sum.wrapping_mul(31).wrapping_add(letter.into()));
    let expected = [30_020_010, 0, 325, 30, letters, 123, 6_553_500_003];
    assert_eq!(kernels.download::<u64>(out, 7), expected);
    // The host sees the same, pointers included.
    let (numbers, _) = kernels.global("numbers");
    let (pointer, _) = kernels.global("to_numbers");
    assert_eq!(download::<u32>(gpu, numbers, 4), [10, 20, 30, 0]);
    assert_eq!(download::<u64>(gpu, pointer, 1), [numbers + 8]);
}

fn memory_variables_last(gpu: &Driver) {
    let kernels = load(gpu);
    for add in [1u32, 10, 100] {
        kernels.run("memory_variables_last", 1, 1, args![add]);
    }
    let (numbers, _) = kernels.global("numbers");
    assert_eq!(download::<u32>(gpu, numbers, 4), [10, 20, 30, 111]);
    // Another copy of the module has variables of its own.
    let other = Kernels { gpu, module: crate::calls::module(gpu, &super::device::ptx("memory")) };
    let (fresh, _) = other.global("numbers");
    assert_ne!(fresh, numbers);
    assert_eq!(download::<u32>(gpu, fresh, 4), [10, 20, 30, 0]);
}

fn memory_copy_of_all_widths(gpu: &Driver) {
    let kernels = load(gpu);
    let widths = [
        ("u8", 1),
        ("v2_u8", 2),
        ("v4_u8", 4),
        ("v2_u16", 4),
        ("v4_u16", 8),
        ("v2_u32", 8),
        ("v4_u32", 16),
        ("v2_u64", 16),
        ("v4_f32", 16),
        ("v2_f64", 16),
    ];
    for (name, width) in widths {
        let bytes = pattern(width * 1000, width as u32);
        let (from, to) = (kernels.upload(&bytes), kernels.zeros::<u8>(bytes.len() + 16));
        kernels.run(&format!("memory_copy_{name}"), 8, 128, args![from, to, 1000]);
        let copied = kernels.download::<u8>(to, bytes.len() + 16);
        assert!(copied[..bytes.len()] == bytes && copied[bytes.len()..] == [0; 16], "{name}");
    }
}

fn memory_swizzle(gpu: &Driver) {
    let values: Vec<[u32; 4]> = words().chunks_exact(4).map(|chunk| std::array::from_fn(|at| chunk[at])).collect();
    load(gpu).check1("memory_swizzle", &values, |[x, y, z, w]| [w, z.wrapping_add(x), y, x]);
}

fn memory_hints(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = words()[..32].to_vec();
    let (from, to) = (kernels.upload(&values), kernels.zeros::<u32>(160));
    kernels.run("memory_hints", 1, 32, args![from, to]);
    let results = kernels.download::<u32>(to, 160);
    for (at, result) in results.into_iter().enumerate() {
        assert_eq!(result, values[at % 32].wrapping_mul(8).wrapping_add(at as u32 / 32), "{at}");
    }
}

fn memory_extend(gpu: &Driver) {
    let kernels = load(gpu);
    let bytes = pattern(128, 3);
    let (from, to) = (kernels.upload(&bytes), kernels.zeros::<i64>(128));
    kernels.run("memory_extend", 1, 32, args![from, to]);
    for (i, result) in kernels.download::<i64>(to, 128).chunks(4).enumerate() {
        let short = i16::from_le_bytes([bytes[i * 2], bytes[i * 2 + 1]]);
        let word = i32::from_le_bytes(std::array::from_fn(|at| bytes[i * 4 + at]));
        let expected = [i64::from(bytes[i] as i8), i64::from(bytes[i]), i64::from(short), i64::from(word)];
        assert_eq!(result, expected, "thread {i}");
    }
}

fn memory_static_shared(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = scattered(64, 9).iter().map(|value| *value as u32).collect();
    let (from, to) = (kernels.upload(&values), kernels.zeros::<u32>(64));
    kernels.run("memory_static_shared", 1, 64, args![from, to]);
    let expected: Vec<u32> =
        (0..64).map(|i| values[63 - i].wrapping_mul(256).wrapping_add(values[63 - i] & 255)).collect();
    assert_eq!(kernels.download::<u32>(to, 64), expected);
}

fn memory_dynamic_shared(gpu: &Driver) {
    let kernels = load(gpu);
    for count in [64u32, 1000, 5000] {
        let to = kernels.zeros::<u64>(66);
        kernels.run_shaped("memory_dynamic_shared", [1, 1, 1], [64, 1, 1], count * 8, args![to, count]);
        let sum: u64 = (0..u64::from(count)).map(|j| j * j).sum();
        let mut expected = vec![sum + 7; 64];
        expected.extend([u64::from(count) * 8, 1]);
        assert_eq!(kernels.download::<u64>(to, 66), expected, "{count}");
    }
}

fn memory_generic(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = words()[..8].to_vec();
    let (from, to) = (kernels.upload(&values), kernels.zeros::<u32>(128));
    kernels.run("memory_generic", 1, 32, args![from, to]);
    let sum = |values: &[u32]| values.iter().fold(0u32, |sum, value| sum.wrapping_mul(3).wrapping_add(*value));
    let doubled: Vec<u32> = values.iter().map(|value| value.wrapping_mul(2)).collect();
    let constants: Vec<u32> = (0..8).map(|at| 1 << at).collect();
    for (i, result) in kernels.download::<u32>(to, 128).chunks(4).enumerate() {
        let mut local = [0; 8];
        (0..8).for_each(|j| local[j * 3 % 8] = values[j].wrapping_add(i as u32));
        assert_eq!(result, [sum(&values), sum(&doubled), sum(&local), sum(&constants)], "thread {i}");
    }
}

fn memory_which_space(gpu: &Driver) {
    let kernels = load(gpu);
    let (global, to) = (kernels.zeros::<u32>(4), kernels.zeros::<u32>(6));
    kernels.run("memory_which_space", 1, 1, args![global, to]);
    let results = kernels.download::<u32>(to, 6);
    assert_eq!(results[..3], [1, 2, 4], "global, shared, local");
    assert_eq!(results[4..], [5, 5], "shared memory by its offset");
}

fn memory_bit_fields(gpu: &Driver) {
    load(gpu).check1("memory_bit_fields", &long_words(), |a: u64| {
        let field = |at: u32, bits: u32| (a >> at & ((1 << bits) - 1)) as i64;
        let signed = |at: u32, bits: u32| field(at, bits) << (64 - bits) >> (64 - bits);
        [field(0, 8), field(8, 12) | field(20, 4) << 16, signed(24, 20), signed(44, 12)]
    });
}

fn memory_heap(gpu: &Driver) {
    let kernels = load(gpu);
    let to = kernels.zeros::<u32>(128);
    kernels.run("memory_heap", 1, 128, args![to]);
    let expected: Vec<u32> = (0..128).map(|i| (0..=i).map(|j| j + i).sum()).collect();
    assert_eq!(kernels.download::<u32>(to, 128), expected);
}

fn memory_new(gpu: &Driver) {
    // Far more in all than the heap holds: what is deleted can be had again.
    let kernels = load(gpu);
    let to = kernels.zeros::<u32>(256);
    kernels.run("memory_new", 4, 64, args![to, 200u32]);
    assert_eq!(kernels.download::<u32>(to, 256), vec![199 * 200 / 2; 256]);
}

fn memory_copies(gpu: &Driver) {
    let kernels = load(gpu);
    let bytes = pattern(64 * 32, 5);
    let data = kernels.upload(&bytes);
    kernels.run("memory_copies", 1, 32, args![data]);
    let results = kernels.download::<u8>(data, bytes.len());
    for (i, (result, before)) in results.chunks(64).zip(bytes.chunks(64)).enumerate() {
        assert_eq!(result[..8], before[..8]);
        assert_eq!(result[8..48], before[..40], "thread {i}");
        assert_eq!(result[48..56], before[48..56]);
        assert_eq!(result[56..], [i as u8; 8]);
    }
}
