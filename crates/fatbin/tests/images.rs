//! Images: PTX text, fat binaries in all their packings, and what is none of these.

use cuda_abi::image::Image;
use fatbin::{ImageError, container, linked_text, text};

const STORED: u64 = 0x11;
const LZ4: u64 = 0x2011;
const ZSTD: u64 = 0x8011;
const SPECIFIC: u64 = 0x10_0000;
const PTX: u16 = 1;
const ELF: u16 = 2;

struct Part {
    kind: u16,
    architecture: u32,
    flags: u64,
    bytes: Vec<u8>,
}

fn ptx(architecture: u32, flags: u64, text: &str) -> Part {
    Part { kind: PTX, architecture, flags, bytes: text.as_bytes().to_vec() }
}

fn code(architecture: u32) -> Part {
    Part { kind: ELF, architecture, flags: STORED, bytes: b"\x7fELF and so on".to_vec() }
}

fn source(target: u32) -> String {
    format!(".version 8.0\n.target sm_{target}\n.address_size 64\n// {}\n", "padding ".repeat(100))
}

/// Builds a container as nvcc's tools do; `header` is the size of the entries' headers.
fn fat_binary(parts: &[Part], header: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        let packed = match part.flags & 0xf000 {
            0x2000 => lz4_flex::block::compress(&part.bytes),
            0x8000 => ruzstd::encoding::compress_to_vec(&part.bytes[..], ruzstd::encoding::CompressionLevel::Fastest),
            _ => part.bytes.clone(),
        };
        let compressed = if part.flags & 0xf000 == 0 { 0 } else { packed.len() as u32 };
        let padded = packed.len().next_multiple_of(8);
        let mut entry = vec![0; header];
        entry[..2].copy_from_slice(&part.kind.to_le_bytes());
        entry[2..4].copy_from_slice(&0x0101u16.to_le_bytes());
        entry[4..8].copy_from_slice(&(header as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&compressed.to_le_bytes());
        entry[28..32].copy_from_slice(&part.architecture.to_le_bytes());
        entry[40..48].copy_from_slice(&part.flags.to_le_bytes());
        entry[56..64].copy_from_slice(&(part.bytes.len() as u64).to_le_bytes());
        entry.extend(packed);
        entry.resize(header + padded, 0);
        body.extend(entry);
    }
    let mut all = container::MAGIC.to_vec();
    all.extend(1u16.to_le_bytes());
    all.extend(16u16.to_le_bytes());
    all.extend((body.len() as u64).to_le_bytes());
    all.extend(body);
    all
}

#[test]
fn every_packing_yields_the_text() {
    for flags in [STORED, LZ4, ZSTD] {
        for header in [64, 80, 120] {
            let image = fat_binary(&[code(75), ptx(75, flags, &source(75)), code(80)], header);
            assert_eq!(text(&image, 90), Ok(source(75)), "flags {flags:#x}");
        }
    }
}

#[test]
fn the_best_entry_is_the_newest_portable_one_that_fits() {
    let part = |target, flags| ptx(target, flags, &source(target));
    let image = fat_binary(&[part(52, LZ4), part(80, ZSTD), part(75, STORED), part(100, LZ4)], 64);
    assert_eq!(text(&image, 90), Ok(source(80)));
    assert_eq!(text(&image, 75), Ok(source(75)));
    assert_eq!(text(&image, 50), Ok(source(52)), "what is newer than the device is better than nothing");
    let specific = fat_binary(&[part(90, LZ4 | SPECIFIC), part(70, LZ4)], 64);
    assert_eq!(text(&specific, 90), Ok(source(70)));
    let only = fat_binary(&[part(90, LZ4 | SPECIFIC)], 64);
    assert_eq!(text(&only, 90), Ok(source(90)));
    assert_eq!(text(&only, 89), Ok(source(90)));
    let newer = fat_binary(&[part(120, LZ4), part(100, LZ4 | SPECIFIC), part(121, LZ4)], 64);
    assert_eq!(text(&newer, 90), Ok(source(120)), "the oldest portable one");
    let older = fat_binary(&[part(80, LZ4 | SPECIFIC)], 64);
    assert_eq!(text(&older, 90), Err(ImageError::Specific(80, 90)), "good for 8.0 only");
}

#[test]
fn images_without_ptx_are_told_apart() {
    assert_eq!(text(&fat_binary(&[code(90)], 64), 90), Err(ImageError::NoPtx));
    assert_eq!(text(b"\x7fELF\x02\x01\x01", 90), Err(ImageError::NoPtx));
    assert_eq!(text(&fat_binary(&[], 64), 90), Err(ImageError::NoPtx));
    assert_eq!(text(b"", 90), Err(ImageError::Unknown));
    assert_eq!(text(b"hello", 90), Err(ImageError::Unknown));
    assert_eq!(text(b"\xff\xfe.version", 90), Err(ImageError::Unknown));
    assert_eq!(text(source(70).as_bytes(), 90), Ok(source(70)));
    let zlib = fat_binary(&[ptx(75, 0x1011, &source(75))], 64);
    assert_eq!(text(&zlib, 90), Err(ImageError::Compression));
}

#[test]
fn lies_about_sizes_are_found() {
    for flags in [LZ4, ZSTD] {
        let good = fat_binary(&[ptx(75, flags, &source(75))], 64);
        let lie = |at: usize, value: u64, width: usize| {
            let mut bad = good.clone();
            bad[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            text(&bad, 90)
        };
        let entry = 16;
        assert_eq!(lie(8, u64::MAX, 8), Err(ImageError::Damaged), "container size");
        assert_eq!(lie(6, 3, 2), Err(ImageError::Damaged), "container header");
        assert_eq!(lie(entry + 4, 8, 4), Err(ImageError::Damaged), "entry header");
        assert_eq!(lie(entry + 8, u64::MAX - 10, 8), Err(ImageError::Damaged), "payload");
        assert_eq!(lie(entry + 16, u32::MAX.into(), 4), Err(ImageError::Damaged), "packed size");
        assert_eq!(lie(entry + 56, u64::MAX, 8), Err(ImageError::TooLarge), "unpacked size");
        assert_eq!(lie(entry + 56, 10, 8), Err(ImageError::Damaged), "unpacked size too small");
        assert_eq!(lie(entry + 56, 100_000_000, 8), Err(ImageError::Damaged), "unpacked size too large");
    }
}

/// Every byte of a container set to every value of a few, and every length: an error or a text, never a panic.
#[test]
fn damage_of_any_kind_is_survived() {
    let image = fat_binary(&[ptx(75, LZ4, &source(75)), code(80), ptx(80, ZSTD, &source(80))], 64);
    for at in 0..image.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, image[at] ^ 1, image[at].wrapping_add(1)] {
            let mut bad = image.clone();
            bad[at] = value;
            let _ = text(&bad, 90);
        }
        assert!(text(&image[..at], 90).is_err());
    }
}

/// What a program built with `-rdc=true` hands over: a container that nvlink left empty or gave machine code, and what the
/// source files became.
#[test]
fn what_was_linked_is_taken_where_the_link_left_no_text() {
    let parts = [fat_binary(&[ptx(75, LZ4, &source(75)), ptx(80, 0, &source(80))], 64), fat_binary(&[code(80)], 64)];
    let linked = [fat_binary(&[], 64), fat_binary(&[code(90)], 64)];
    let whole = fat_binary(&[ptx(90, ZSTD, &source(90))], 64);
    let image = |main| Image { main, parts: parts.iter().map(Vec::as_slice).collect() };
    for main in &linked {
        assert_eq!(linked_text(&image(main), 90), Ok(source(80)));
        assert_eq!(linked_text(&image(main), 75), Ok(source(75)));
    }
    assert_eq!(linked_text(&image(&whole), 90), Ok(source(90)));
    let two = Image { main: &parts[1], parts: vec![&parts[0], &whole] };
    assert_eq!(linked_text(&two, 90), Ok(format!("{}\n{}", source(80), source(90))));
    // A library for newer GPUs alone is left out, unless there is nothing else.
    let newer = fat_binary(&[ptx(121, 0, &source(121))], 64);
    assert_eq!(linked_text(&Image { main: &parts[1], parts: vec![&parts[0], &newer] }, 90), Ok(source(80)));
    assert_eq!(linked_text(&Image { main: &parts[1], parts: vec![&newer] }, 90), Ok(source(121)));
    assert_eq!(linked_text(&Image { main: &parts[1], parts: vec![&parts[1]] }, 90), Err(ImageError::NoPtx));
    assert_eq!(linked_text(&Image { main: &parts[1], parts: vec![&parts[0][..70]] }, 90), Err(ImageError::Damaged));
}
