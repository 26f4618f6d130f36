//! A record's header, as a hostile client may write it: what is believed stays within bounds.
#![no_main]

use idm::ring::RecordHeader;
use idm::ring::record::{ALIGN, HEADER, Step, check, check_head};
use libfuzzer_sys::fuzz_target;
use zerocopy::FromBytes;

const LANES: u32 = 7;

fuzz_target!(|input: ([u8; 24], u64, u64, u8)| {
    let (bytes, head, lines, shift) = input;
    let header = RecordHeader::read_from_bytes(&bytes).expect("size of a header");
    let capacity = 4096u64 << (shift % 19);
    let position = (lines % (1 << 50)) * ALIGN;
    let Ok(available) = check_head(head, position, capacity) else { return };
    assert!(available <= capacity && position.checked_add(available) == Some(head));
    if available == 0 {
        return;
    }
    if let Ok(step) = check(&header, position, available, capacity, LANES) {
        let (Step::Message { advance } | Step::Skip { advance }) = step;
        assert!(advance > 0 && advance <= available && advance.is_multiple_of(ALIGN));
        assert!(position % capacity + advance <= capacity);
        if let Step::Message { .. } = step {
            assert!(HEADER + u64::from(header.len) <= advance);
            assert!(header.lane < LANES || header.lane == u32::MAX);
        }
    }
});
