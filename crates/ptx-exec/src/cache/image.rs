//! Code as bytes and back. Little-endian words; what does not add up is refused.

use crate::code::Image;

const NOTHING: u64 = u64::MAX;

pub(super) fn encode(image: &Image) -> Vec<u8> {
    let mut out = Vec::with_capacity(image.bytes.len() + image.lines.len() * 12 + image.functions.len() * 16 + 40);
    let mut word = |value: u64| out.extend(value.to_le_bytes());
    word(image.entry as u64);
    word(u64::from(image.frame_bytes));
    word(image.bytes.len() as u64);
    word(image.lines.len() as u64);
    word(image.functions.len() as u64);
    for function in &image.functions {
        let (offset, signature) = function.map_or((NOTHING, 0), |(offset, signature)| (offset as u64, signature));
        word(offset);
        word(signature);
    }
    for (start, end, line) in &image.lines {
        for value in [start, end, line] {
            out.extend(value.to_le_bytes());
        }
    }
    out.extend_from_slice(&image.bytes);
    out
}

pub(super) fn decode(bytes: &[u8]) -> Option<Image> {
    let mut rest = bytes;
    let entry = word(&mut rest)? as usize;
    let frame_bytes = u32::try_from(word(&mut rest)?).ok()?;
    let [size, lines, functions] = [word(&mut rest)?, word(&mut rest)?, word(&mut rest)?].map(|n| n as usize);
    let expected = functions.checked_mul(16)?.checked_add(lines.checked_mul(12)?)?.checked_add(size)?;
    if rest.len() != expected || entry >= size {
        return None;
    }
    let function = |rest: &mut &[u8]| {
        let (offset, signature) = (word(rest)?, word(rest)?);
        match offset {
            NOTHING => Some(None),
            offset if offset < size as u64 => Some(Some((offset as usize, signature))),
            _ => None,
        }
    };
    let functions = (0..functions).map(|_| function(&mut rest)).collect::<Option<Vec<_>>>()?;
    let lines = (0..lines).map(|_| Some((half(&mut rest)?, half(&mut rest)?, half(&mut rest)?)));
    let lines = lines.collect::<Option<Vec<_>>>()?;
    Some(Image { bytes: rest.to_vec(), entry, frame_bytes, lines, functions })
}

fn word(rest: &mut &[u8]) -> Option<u64> {
    let (first, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_le_bytes(*first))
}

fn half(rest: &mut &[u8]) -> Option<u32> {
    let (first, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u32::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Image {
        Image {
            bytes: vec![0x90, 0x90, 0xc3],
            entry: 1,
            frame_bytes: 48,
            lines: vec![(0, 2, 7), (2, 3, 9)],
            functions: vec![None, Some((1, 4))],
        }
    }

    #[test]
    fn an_image_comes_back() {
        let (one, other) = (sample(), decode(&encode(&sample())).unwrap());
        assert_eq!((one.bytes, one.entry, one.frame_bytes), (other.bytes, other.entry, other.frame_bytes));
        assert_eq!((one.lines, one.functions), (other.lines, other.functions));
    }

    #[test]
    fn what_does_not_add_up_is_none() {
        let whole = encode(&sample());
        for end in 0..whole.len() {
            assert!(decode(&whole[..end]).is_none(), "cut to {end}");
        }
        for at in [0, 16, 24, 32] {
            let mut wrong = whole.clone();
            wrong[at] = 0xff;
            assert!(decode(&wrong).is_none(), "word at {at}");
        }
    }
}
