//! A request to the exporter: what follows a request that is complete changes nothing, and a peer that sends byte by byte
//! is understood in the same way.
#![no_main]

use exporter::request::{Bad, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    let found = (0..=bytes.len()).map(|end| parse(&bytes[..end])).find(|part| !matches!(part, Ok(None)));
    if let Ok(Some(get)) = &whole {
        assert!(get.host.as_ref().is_none_or(|host| !host.chars().any(|letter| letter.is_ascii_uppercase())));
        let mut longer = bytes.to_vec();
        longer.extend(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(parse(&longer).as_ref(), Ok(&Some(get.clone())));
        assert_eq!(found, Some(Ok(Some(get.clone()))));
    }
    if let Err(bad) = &whole {
        assert!(bad.status().starts_with('4') && *bad != Bad::TooSlow);
    }
});
