//! What a copy with a shape touches, for every small shape byte by byte, and for shapes at the edges of 64 bits.

use super::footprint;

#[test]
fn a_footprint_reaches_exactly_from_the_first_byte_that_is_touched_to_the_last() {
    const MOST: u64 = 3;
    let origins = || 0..=1u64;
    let extents = || 1..=MOST;
    for (x, y, z) in origins().flat_map(|x| origins().flat_map(move |y| origins().map(move |z| (x, y, z)))) {
        for (width, height, depth) in
            extents().flat_map(|w| extents().flat_map(move |h| extents().map(move |d| (w, h, d))))
        {
            for (pitch, slice) in (0..=6u64).flat_map(|pitch| (0..=5u64).map(move |slice| (pitch, slice))) {
                let touched = (0..depth).flat_map(|layer| {
                    (0..height).flat_map(move |row| {
                        (0..width).map(move |column| ((z + layer) * slice + y + row) * pitch + x + column)
                    })
                });
                let touched: Vec<u64> = touched.collect();
                let (first, last) = (touched.iter().min().unwrap(), touched.iter().max().unwrap());
                if let Some((start, len)) = footprint([x, y, z], [width, height, depth], pitch, slice) {
                    let shape = (x, y, z, width, height, depth, pitch, slice);
                    assert_eq!((start, start + len), (*first, last + 1), "{shape:?}");
                } else {
                    // Refused is only what overlaps itself, or begins beyond its first row or layer without saying how long.
                    let rows = (height > 1 || depth > 1 || y > 0 || z > 0) && pitch < x + width;
                    let layers = (depth > 1 || z > 0) && slice < y + height;
                    assert!(rows || layers);
                }
            }
        }
    }
}

#[test]
fn no_footprint_wraps_around() {
    let edges = [0, 1, 2, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let mut all = 0;
    for code in 0..6usize.pow(8) {
        let [x, y, z, width, height, depth, pitch, slice] =
            std::array::from_fn(|at| edges[code / 6usize.pow(u32::try_from(at).unwrap()) % 6]);
        if [width, height, depth].contains(&0) {
            continue;
        }
        if let Some((start, len)) = footprint([x, y, z], [width, height, depth], pitch, slice) {
            let wide = u128::from;
            let layer = if depth == 1 && z == 0 { 0 } else { wide(pitch) * wide(slice) };
            let end = (wide(z) + wide(depth) - 1)
                .checked_mul(layer)
                .and_then(|bytes| bytes.checked_add((wide(y) + wide(height) - 1) * wide(pitch)))
                .and_then(|bytes| bytes.checked_add(wide(x) + wide(width)));
            assert_eq!(end, Some(wide(start) + wide(len)));
            all += 1;
        }
    }
    assert!(all > 1000, "some shapes are taken: {all}");
}
