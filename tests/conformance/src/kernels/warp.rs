//! `warp.cu`.

use cuda_abi::driver::Driver;

use super::device::{Kernels, args};
use super::values::*;

super::tests! {
    warp_shuffles,
    warp_shuffle_predicates,
    warp_shuffle_wide,
    warp_shuffle_part,
    warp_votes,
    warp_match,
    warp_redux,
    warp_active,
    warp_sync,
    warp_producer,
    warp_sum,
    warp_scan,
    warp_short,
    warp_divergent_loops,
    warp_tiles,
    warp_coalesced,
    warp_labelled,
    warp_lane_masks,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "warp")
}

/// Runs a kernel of one warp on 32 words, and answers `K` results of each lane.
fn one_warp<const K: usize>(kernels: &Kernels, name: &str, input: &[u32]) -> Vec<[u32; K]> {
    let out = kernels.zeros::<[u32; K]>(32);
    kernels.run(name, 1, 32, args![kernels.upload(input), out]);
    kernels.download::<u32>(out, 32 * K).chunks(K).map(|chunk| std::array::from_fn(|at| chunk[at])).collect()
}

fn some_words() -> Vec<u32> {
    words()[..32].to_vec()
}

fn warp_shuffles(gpu: &Driver) {
    let v = some_words();
    for (i, result) in one_warp::<10>(&load(gpu), "warp_shuffles", &v).into_iter().enumerate() {
        let within = |from: usize, width: usize| from % width + i / width * width;
        let expected = [
            v[i * 7 % 32],
            if i >= 3 { v[i - 3] } else { v[i] },
            if i + 5 < 32 { v[i + 5] } else { v[i] },
            v[i ^ 17],
            v[within(2, 8)],
            if i % 16 >= 1 { v[i - 1] } else { v[i] },
            if i % 4 + 2 < 4 { v[i + 2] } else { v[i] },
            v[i ^ 6],
            // To a higher segment there is no way, to a lower one there is.
            if (i ^ 9) / 8 > i / 8 { v[i] } else { v[i ^ 9] },
            v[(i + 40) % 32],
        ];
        assert_eq!(result, expected, "lane {i}");
    }
}

fn warp_shuffle_predicates(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<[u32; 3]>(32);
    kernels.run("warp_shuffle_predicates", 1, 32, args![out]);
    for (i, result) in kernels.download::<u32>(out, 96).chunks(3).enumerate() {
        let i = i as u32;
        let up = if i >= 4 { i - 4 } else { i + 1000 };
        let down = if i + 4 <= 31 { i + 4 } else { i + 1000 };
        // Segments of eight: lane 1 of the segment, 9 wrapped.
        let index = (i & 24) | 1;
        assert_eq!(result, [up, down, index], "lane {i}");
    }
}

fn warp_shuffle_wide(gpu: &Driver) {
    let kernels = load(gpu);
    let (longs, reals) = (scattered(32, 21), (0..32).map(|i| f64::from(i) * 1.1).collect::<Vec<_>>());
    let (out, out_reals) = (kernels.zeros::<u64>(32), kernels.zeros::<f64>(32));
    let (a, b) = (kernels.upload(&longs), kernels.upload(&reals));
    kernels.run("warp_shuffle_wide", 1, 32, args![a, out, b, out_reals]);
    let expected: Vec<u64> = (0..32).map(|i| longs[i ^ 1]).collect();
    assert_eq!(kernels.download::<u64>(out, 32), expected);
    let expected: Vec<f64> = (0..32).map(|i| reals[if i < 16 { i + 16 } else { i }]).collect();
    assert_eq!(kernels.download::<f64>(out_reals, 32), expected);
}

fn warp_shuffle_part(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(32);
    kernels.run("warp_shuffle_part", 1, 32, args![out]);
    let part = |i: u32| if (8..24).contains(&i) { i ^ 4 } else { 0 };
    let expected: Vec<u32> = (0..32).map(|i| (i % 2) * 310 + part(i)).collect();
    assert_eq!(kernels.download::<u32>(out, 32), expected);
}

fn mask(lanes: impl Fn(usize) -> bool) -> u32 {
    (0..32).filter(|lane| lanes(*lane)).fold(0, |mask, lane| mask | 1 << lane)
}

fn warp_votes(gpu: &Driver) {
    let kernels = load(gpu);
    let odd: Vec<u32> = (0..32).map(|i| i * 2 + 5).collect();
    for v in [some_words(), odd, vec![7; 32]] {
        for (i, result) in one_warp::<5>(&kernels, "warp_votes", &v).into_iter().enumerate() {
            let odd = mask(|lane| v[lane] & 1 == 1);
            let half = if i < 16 { mask(|l| l < 16 && v[l] & 2 != 0) } else { mask(|l| l >= 16 && v[l] & 4 != 0) };
            let expected = [
                u32::from(v.iter().all(|value| *value > 3)),
                u32::from(v.iter().any(|value| *value > 1000)),
                odd,
                u32::from(odd == 0 || odd == !0),
                half,
            ];
            assert_eq!(result, expected, "lane {i} of {v:?}");
        }
    }
}

fn warp_match(gpu: &Driver) {
    let kernels = load(gpu);
    for v in [(0..32).map(|i| i % 5).collect::<Vec<u32>>(), vec![3; 32], some_words()] {
        for (i, result) in one_warp::<6>(&kernels, "warp_match", &v).into_iter().enumerate() {
            let same = mask(|lane| v[lane] == v[i]);
            let all = same == !0;
            assert_eq!(result, [same, same, if all { !0 } else { 0 }, u32::from(all), !0, 1], "lane {i} of {v:?}");
        }
    }
}

fn warp_redux(gpu: &Driver) {
    let v = some_words();
    let fold = |start: u32, f: fn(u32, u32) -> u32| v.iter().fold(start, |all, value| f(all, *value));
    let signed = v.iter().map(|value| *value as i32);
    let expected = [
        fold(0, u32::wrapping_add),
        fold(!0, u32::min),
        fold(0, u32::max),
        signed.clone().fold(i32::MAX, i32::min) as u32,
        signed.fold(i32::MIN, i32::max) as u32,
        fold(!0, |all, value| all & (value | 0xf0)),
        fold(0, |all, value| all | value & 0xff),
        fold(0, |all, value| all ^ value),
    ];
    assert!(one_warp::<8>(&load(gpu), "warp_redux", &v).into_iter().all(|result| result == expected));
}

fn warp_active(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<[u32; 2]>(32);
    kernels.run("warp_active", 1, 32, args![out]);
    for (i, result) in kernels.download::<u32>(out, 64).chunks(2).enumerate() {
        // Which lanes run together is the device's business, but a lane runs with itself and not with the other side.
        // (The compiler may merge the two sides, so that is not asked.)
        assert!(result[0] >> i & 1 == 1 && result[1] == !0, "lane {i}: {result:x?}");
    }
}

fn warp_sync(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(64);
    kernels.run("warp_sync", 1, 64, args![out]);
    let mut cell: Vec<u32> = (0..64).collect();
    for step in 0..20 {
        cell = (0..64).map(|i| cell[i / 32 * 32 + (i + 1) % 32] + step).collect();
    }
    assert_eq!(kernels.download::<u32>(out, 64), cell);
}

fn warp_producer(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(32);
    kernels.run("warp_producer", 1, 32, args![out]);
    assert_eq!(kernels.download::<u32>(out, 32), [77; 32]);
}

fn warp_sum(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<f32> = (0..1024).map(|i| (i % 97) as f32).collect();
    let (input, out) = (kernels.upload(&values), kernels.zeros::<f32>(32));
    kernels.run("warp_sum", 4, 256, args![input, out]);
    let expected: Vec<f32> = values.chunks(32).map(|warp| warp.iter().sum()).collect();
    assert_eq!(kernels.download::<f32>(out, 32), expected);
}

fn warp_scan(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = scattered(256, 22).iter().map(|value| *value as u32).collect();
    let (input, out) = (kernels.upload(&values), kernels.zeros::<u32>(256));
    kernels.run("warp_scan", 2, 128, args![input, out]);
    let running = |warp: &[u32]| {
        let mut sum = 0u32;
        warp.iter()
            .map(|value| {
                sum = sum.wrapping_add(*value);
                sum
            })
            .collect::<Vec<u32>>()
    };
    let expected: Vec<u32> = values.chunks(32).flat_map(running).collect();
    assert_eq!(kernels.download::<u32>(out, 256), expected);
}

fn warp_short(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(45);
    kernels.run("warp_short", 1, 45, args![out]);
    let mut expected = vec![31; 32];
    expected.extend([13; 13]);
    assert_eq!(kernels.download::<u32>(out, 45), expected);
}

fn warp_divergent_loops(gpu: &Driver) {
    let counts: Vec<u32> = (0..32).map(|i| i * 7 % 23).collect();
    let sums: Vec<u32> = counts.iter().map(|count| (0..*count).map(|j| j * j).sum()).collect();
    let odd = sums.iter().filter(|sum| *sum % 2 == 1).count() as u32;
    for (i, [result]) in one_warp::<1>(&load(gpu), "warp_divergent_loops", &counts).into_iter().enumerate() {
        assert_eq!(result, sums[i] + odd, "lane {i}");
    }
}

fn warp_tiles(gpu: &Driver) {
    let v: Vec<u32> = (0..32).map(|i| i * 13 % 47).collect();
    for (i, result) in one_warp::<6>(&load(gpu), "warp_tiles", &v).into_iter().enumerate() {
        let tile = &v[i / 8 * 8..i / 8 * 8 + 8];
        let four = &v[i / 4 * 4..i / 4 * 4 + 4];
        let ballot = four.iter().enumerate().fold(0, |mask, (at, value)| mask | (value & 1) << at);
        let expected = [
            tile.iter().sum(),
            tile[3] + (i / 8) as u32,
            ballot,
            tile[..=i % 8].iter().sum(),
            v[i ^ 1] + 4,
            u32::from(tile.iter().any(|value| *value > 40))
                + 2 * u32::from(tile.iter().all(|value| *value > 2))
                + 4 * (i % 8) as u32,
        ];
        assert_eq!(result, expected, "lane {i}");
    }
}

fn warp_coalesced(gpu: &Driver) {
    let kernels = load(gpu);
    let (counter, out) = (kernels.zeros::<u32>(1), kernels.zeros::<u32>(512));
    kernels.run("warp_coalesced", 4, 128, args![counter, out]);
    let results = kernels.download::<u32>(out, 512);
    let taken: Vec<usize> = (0..512).filter(|i| i % 3 == 1).collect();
    assert_eq!(kernels.download::<u32>(counter, 1), [taken.len() as u32]);
    let mut places: Vec<u32> = taken.iter().map(|i| results[*i]).collect();
    places.sort_unstable();
    assert!(places.into_iter().eq(1..=taken.len() as u32), "each gets a place of its own");
    assert!((0..512).filter(|i| i % 3 != 1).all(|i| results[i] == 0));
}

fn warp_labelled(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(32);
    kernels.run("warp_labelled", 1, 32, args![out]);
    let size = |label: u32| (0..32).filter(|i| i % 5 == label).count() as u32;
    let expected: Vec<u32> = (0..32).map(|i| size(i % 5) * 100 + i / 5).collect();
    assert_eq!(kernels.download::<u32>(out, 32), expected);
}

fn warp_lane_masks(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<[u32; 7]>(70);
    kernels.run("warp_lane_masks", 1, 70, args![out]);
    for (i, result) in kernels.download::<u32>(out, 490).chunks(7).enumerate() {
        let lane = i as u32 % 32;
        let own = 1u32 << lane;
        assert_eq!(result, [lane, own, own - 1, (own - 1) | own, !((own - 1) | own), !(own - 1), 32], "thread {i}");
    }
}
