//! `control.cu`.

use cuda_abi::driver::Driver;

use super::device::{Kernels, args};
use super::values::*;

super::tests! {
    control_switch,
    control_branch_table,
    control_loops,
    control_predicates,
    control_irreducible,
    control_recursion,
    control_recursion_with_arrays,
    control_function_pointers,
    control_virtual,
    control_structs,
    control_local_arrays,
    control_sort,
    control_lambdas,
    control_exit,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "control")
}

fn control_switch(gpu: &Driver) {
    load(gpu).check1("control_switch", &words(), |a: u32| {
        [match a % 11 {
            0 => a.wrapping_mul(3),
            1 => a ^ 0x55,
            2 | 3 => a / 3,
            4 => !a,
            5 => a << 4,
            6 => a >> 4,
            7 => a.wrapping_sub(7),
            9 => 9,
            _ => 1000,
        }]
    });
}

fn control_branch_table(gpu: &Driver) {
    load(gpu)
        .check1("control_branch_table", &words(), |a: u32| [[10, a.wrapping_add(1), a << 2, !a][(a % 4) as usize]]);
}

fn control_loops(gpu: &Driver) {
    load(gpu).check1("control_loops", &words(), |a: u32| {
        let (mut steps, mut x) = (0, a | 1);
        while x != 1 && steps < 500 {
            x = if x & 1 == 1 { x.wrapping_mul(3).wrapping_add(1) } else { x / 2 };
            steps += 1;
        }
        let inner = |i: u32| (0..i.min(21)).map(|j| i * j).sum::<u32>();
        let sum = (0..a % 37).filter(|i| i % 5 != 2).map(inner).sum();
        let (mut g, mut h) = (a, 36);
        while h != 0 {
            (g, h) = (h, g % h);
        }
        [steps, sum, g]
    });
}

fn control_predicates(gpu: &Driver) {
    let values: Vec<i32> = words().into_iter().map(|value| value as i32).collect();
    load(gpu).check2("control_predicates", &values, &values, |a: i32, b: i32| {
        let mut p = a < b;
        let mut q = a != 0 || !p;
        let mut d = 5;
        if p {
            d += 1;
        }
        if !q {
            d *= 10;
        }
        p = !p;
        q ^= p;
        if q {
            d -= 3;
        }
        let three = if a == b { 1 } else { 2 + i32::from(a > b) };
        [a.min(b), i32::from((a > 0 && b > 0) || (a ^ b) < 0), three, d]
    });
}

fn control_irreducible(gpu: &Driver) {
    load(gpu).check1("control_irreducible", &words(), |a: u32| {
        let (mut x, mut n, mut first) = (a & 255, 0, a & 1 == 1);
        loop {
            if !std::mem::take(&mut first) {
                x += 3;
                n += 1;
            }
            x = x * 5 % 257;
            if n >= 20 || x == 7 {
                return [x * 100 + n];
            }
        }
    });
}

fn fibonacci(n: u32) -> u32 {
    if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) }
}

fn control_recursion(gpu: &Driver) {
    load(gpu).check1("control_recursion", &words(), |a: u32| {
        [fibonacci(a % 16), 2 * (a % 5) + 3, u32::from((a % 50).is_multiple_of(2))]
    });
}

fn nest(depth: u32, seed: u32) -> u32 {
    let kept: Vec<u32> = (0..8u32).map(|i| seed.wrapping_mul(31).wrapping_add(i * depth)).collect();
    let below = if depth > 0 { nest(depth - 1, kept[(seed & 7) as usize]) } else { 1 };
    kept[(below & 7) as usize].wrapping_add(below.wrapping_mul(7))
}

fn control_recursion_with_arrays(gpu: &Driver) {
    load(gpu).check1("control_recursion_with_arrays", &words(), |a: u32| [nest(a % 20, a)]);
}

fn control_function_pointers(gpu: &Driver) {
    load(gpu).check2("control_function_pointers", &words(), &words(), |a: u32, b: u32| {
        let operations = [a.wrapping_add(b), a.wrapping_sub(b), a.wrapping_mul(b), a ^ b];
        let constant = [operations[2], operations[1]];
        [
            operations[(a & 3) as usize],
            constant[(b & 1) as usize],
            if a & 8 != 0 { operations[0] } else { operations[3] },
        ]
    });
}

fn control_virtual(gpu: &Driver) {
    load(gpu).check2("control_virtual", &words(), &words(), |a: u32, b: u32| {
        let areas = [(a & 255) * (a & 255), (a & 255) * (b & 255)];
        [areas[(b & 1) as usize], areas[(a & 1) as usize]]
    });
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Big {
    words: [u64; 12],
    tail: f32,
    last: u8,
}

fn control_structs(gpu: &Driver) {
    let kernels = load(gpu);
    let big = Big { words: std::array::from_fn(|at| at as u64 * 0x1_0000_0001), tail: 2.5, last: 254 };
    let out = kernels.zeros::<[u64; 3]>(32);
    kernels.run("control_structs", 1, 32, args![big, out]);
    for (thread, result) in kernels.download::<u64>(out, 96).chunks(3).enumerate() {
        let tail = (2.5 + thread as f32 + 1.0) as u64;
        assert_eq!(result, [big.words[(thread + 1) % 12], tail, 0], "thread {thread}");
    }
}

fn control_local_arrays(gpu: &Driver) {
    load(gpu).check1("control_local_arrays", &words(), |a: u32| {
        let mut table: Vec<u32> = (0..64u32).map(|i| i.wrapping_mul(a).wrapping_add(a >> 7)).collect();
        let bytes: Vec<u8> = (0..40).map(|i| (a >> (i % 24)) as u8).collect();
        for i in 0..63u32 {
            if table[i as usize] % 7 < table[i as usize + 1] % 7 {
                table.swap(i as usize, (i.wrapping_mul(a) % 64) as usize);
            }
        }
        let at = |i: u32, by: u32, of: u32| ((i * by).wrapping_add(a) % of) as usize;
        let sum = (0..64).fold(0u32, |sum, i| sum.wrapping_mul(33).wrapping_add(table[at(i, 17, 64)]));
        let total = (0..40).fold(0u32, |sum, i| sum.wrapping_mul(3).wrapping_add(u32::from(bytes[at(i, 7, 40)])));
        [sum, total]
    });
}

fn control_sort(gpu: &Driver) {
    load(gpu).check1("control_sort", &words(), |a: u32| {
        let mut x = a;
        let mut data = [0; 16];
        for value in &mut data {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = x >> 16;
        }
        data.sort_unstable();
        data
    });
}

fn control_lambdas(gpu: &Driver) {
    load(gpu).check2("control_lambdas", &words(), &words(), |a: u32, b: u32| {
        let first = (0..a % 13).fold(1u32, |r, i| r.wrapping_mul(31).wrapping_add(a ^ i).wrapping_add(b));
        [first.wrapping_add((0..b % 9).fold(1, |r, i| r + i))]
    });
}

fn control_exit(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(200);
    kernels.run("control_exit", 1, 200, args![out]);
    let expected: Vec<u32> = (0..200).map(|i| if i % 3 == 0 || i % 2 == 1 { 1 } else { 2 }).collect();
    assert_eq!(kernels.download::<u32>(out, 200), expected);
}
