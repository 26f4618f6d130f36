//! What holds for the messages of every operation, whichever there are.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// All messages, and the view: name, and what can be done with it.
fn codecs() -> impl Iterator<Item = (String, Codec)> {
    let uploads = ops::UPLOADS.iter().map(|(name, codec)| ((*name).to_owned(), *codec));
    let messages = Op::ALL.iter().flat_map(|op| {
        let definition = op.definition();
        [(op.name().to_owned(), definition.request), (format!("{}'s reply", op.name()), definition.reply)]
    });
    let (view, codec) = view::fields::CODEC;
    messages.chain(uploads).chain([(view.to_owned(), codec)])
}

fn sample(codec: &Codec, random: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    (codec.sample)(&mut Source::new(random), &mut message);
    message
}

fn for_arbitrary(cases: u32, check: impl Fn(&str, &Codec, &[u8], usize)) {
    for (name, codec) in codecs() {
        let strategy = (proptest::collection::vec(any::<u8>(), 0..800), any::<usize>());
        let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..Default::default() });
        let ran = runner.run(&strategy, |(random, number)| {
            check(&name, &codec, &sample(&codec, &random), number);
            Ok(())
        });
        ran.unwrap_or_else(|failure| panic!("{name}: {failure}"));
    }
}

/// Either it is refused, or it is a message, whose one encoding it is.
fn refused_or_the_same(name: &str, codec: &Codec, bytes: &[u8]) {
    if let Ok(again) = (codec.again)(bytes) {
        assert_eq!(again.encoding, bytes, "{name} has two encodings");
    }
}

#[test]
fn what_is_encoded_is_decoded_to_the_same() {
    for_arbitrary(64, |name, codec, message, _| {
        let once = (codec.again)(message).unwrap_or_else(|_| panic!("{name} refuses {message:x?}"));
        assert_eq!(once.encoding, message, "{name}");
        assert_eq!((codec.again)(&once.encoding), Ok(once), "{name}");
    });
}

#[test]
fn whatever_is_cut_off_or_added_is_refused_or_another_message() {
    for_arbitrary(16, |name, codec, message, _| {
        for len in 0..message.len() {
            refused_or_the_same(name, codec, &message[..len]);
        }
        refused_or_the_same(name, codec, &[message, &[0; 8]].concat());
    });
}

#[test]
fn a_changed_byte_is_refused_or_makes_another_message() {
    for_arbitrary(16, |name, codec, message, number| {
        for at in 0..message.len() {
            for change in [1, 0x80, number as u8 | 1] {
                let mut changed = message.to_vec();
                changed[at] ^= change;
                refused_or_the_same(name, codec, &changed);
            }
        }
    });
}

#[test]
fn noise_is_refused_or_a_message() {
    for (name, codec) in codecs() {
        let mut runner =
            TestRunner::new(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() });
        let ran = runner.run(&proptest::collection::vec(any::<u8>(), 0..200), |noise| {
            refused_or_the_same(&name, &codec, &noise);
            Ok(())
        });
        ran.unwrap_or_else(|failure| panic!("{name}: {failure}"));
    }
}

#[test]
fn a_message_is_as_long_as_it_says() {
    let launch = ops::Launch {
        function: Typed(1),
        stream: Typed(2),
        grid: [3; 3],
        block: [4; 3],
        shared_bytes: 5,
        is_cooperative: false,
        attributes: Array::new(&[]),
        parameters: Block::Reserved(12),
    };
    let mut slot = vec![0xff; launch.size()];
    encode_into(&launch, &mut slot);
    Block::<{ MAX_PARAMS }>::place(&mut slot, 12).copy_from_slice(b"twelve bytes");
    let read: ops::Launch<'_> = decode(&slot).unwrap();
    assert_eq!((read.function, read.grid, read.parameters.bytes()), (Typed(1), [3; 3], &b"twelve bytes"[..]));
}

#[test]
fn bounds_are_part_of_the_type() {
    let long = [b'x'; 10];
    let encoded = to_vec(&Text::<10>(&long));
    assert!(decode::<Text<'_, 10>>(&encoded).is_ok());
    assert_eq!(decode::<Text<'_, 9>>(&encoded).map(|text| text.0.len()), Err(Malformed));
    assert_eq!(decode::<Text<'_, 10>>(&to_vec(&&b"a\0b"[..])).map(|text| text.0.len()), Err(Malformed));
    let words = to_vec(&Array::<u64, 3>::new(&[1, 2, 3]));
    assert!(decode::<Array<'_, u64, 3>>(&words).unwrap().iter().eq([1, 2, 3]));
    assert_eq!(decode::<Array<'_, u64, 2>>(&words).map(|array| array.len()), Err(Malformed));
    assert_eq!(
        decode::<List<'_, u64, 2>>(&to_vec(&List::<u64, 9>::new(&[7; 3]))).map(|list| list.len()),
        Err(Malformed)
    );
    assert_eq!(decode::<bool>(&2u64.to_le_bytes()), Err(Malformed));
    assert_eq!(decode::<u32>(&(1u64 << 32).to_le_bytes()), Err(Malformed));
    assert_eq!(decode::<i32>(&to_vec(&-1i32)), Ok(-1));
}

#[test]
fn as_many_as_fit_are_added_behind_a_reply() {
    let mut buffer = [0; 8 + 24 + 23];
    let mut writer = Writer::new(&mut buffer);
    ops::GraphListed { total: 2, rows: Rest::new(&[]) }.encode(&mut writer);
    let row = ops::GraphRow { node: Typed(1), to: Typed(2), edge: Default::default() };
    assert!(writer.append(&row));
    assert!(!writer.append(&row));
    let used = writer.finish().unwrap();
    let listed: ops::GraphListed<'_> = decode(&buffer[..used]).unwrap();
    assert_eq!((listed.total, listed.rows.iter().count()), (2, 1));
}

/// Shapes of messages that differ in one thing each: the fingerprint is made of them, and of no comment.
#[test]
fn shapes_tell_fields_apart_and_know_no_comments() {
    #[allow(unreachable_pub, reason = "the macro makes public types")]
    mod probes {
        use crate::wire::definition::message;

        message! { First { bytes: u64, flags: u32 } }
        message! {
            /// With a comment.
            Commented {
                /// And another.
                bytes: u64,
                flags: u32,
            }
        }
        message! { Ordered { flags: u32, bytes: u64 } }
        message! { Retyped { bytes: u64, flags: i32 } }
        message! { Renamed { length: u64, flags: u32 } }
        message! { Longer { bytes: u64, flags: u32, more: bool } }
    }
    fn shape<T: Field>() -> String {
        let mut text = String::new();
        T::shape(&mut text);
        text
    }
    let first = shape::<probes::First>();
    assert_eq!(first, "bytes:u64,flags:u32,");
    assert_eq!(first, shape::<probes::Commented>());
    let others = [
        shape::<probes::Ordered>(),
        shape::<probes::Retyped>(),
        shape::<probes::Renamed>(),
        shape::<probes::Longer>(),
    ];
    assert!(others.iter().all(|other| *other != first));
    assert_ne!(shape::<Text<'_, 1>>(), shape::<Text<'_, 2>>());
    assert_ne!(shape::<StreamHandle>(), shape::<EventHandle>());
}

#[test]
fn the_fingerprint_holds_names_codes_and_fields_of_all_operations() {
    let text = shape();
    assert_eq!(text.lines().count(), Op::ALL.len());
    assert!(
        text.contains("Alloc=f040{bytes:u64,ahead:u32,}->{address:u64,is_small:bool,ahead:[u64]<=16,}\n"),
        "{text}"
    );
    assert!(text.contains("SetAccess=f066{address:u64,bytes:u64,access:[CUmemAccessDesc:12]<=64,}->{}\n"), "{text}");
    assert!(text.contains("Link=f02c{order:upload(options:list(option:u32,value:u32,)<=16,"), "{text}");
}
