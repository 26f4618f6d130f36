use super::super::image::tests::Fake;
use super::*;

const ARGUMENTS: u64 = 0x1000;
const PARAMETERS: u64 = 0x10_0000;
const OWN: u32 = 0xc1d0_0001;
const FOREIGN: u32 = 0xc1d0_0002;

const CONTROL: u32 = 0xc020_462a;
const ALLOC: u32 = 0xc030_462b;
const FREE: u32 = 0xc010_4629;

fn rules() -> Rules {
    Rules::new(Branch::of("580.159.04").unwrap())
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A control of an own client's object 5.
fn control(command: u32, parameters: &[u32]) -> Fake {
    let size = u32::try_from(size_of_val(parameters)).unwrap();
    let address = u32::try_from(PARAMETERS).unwrap();
    let arguments = [OWN, 5, command, 0, address, 0, size, 0xdead];
    Fake::default().with(ARGUMENTS, &bytes(&arguments)).with(PARAMETERS, &bytes(parameters))
}

/// An allocation of object 9 below 5.
fn alloc(class: u32, parameters: &[u32]) -> Fake {
    let address = u32::try_from(PARAMETERS).unwrap();
    let arguments = [OWN, 5, 9, class, address, 0, 0, 0, 0, 0, 0xdead, 0];
    let mut whole = parameters.to_vec();
    whole.resize(128, 0);
    Fake::default().with(ARGUMENTS, &bytes(&arguments)).with(PARAMETERS, &bytes(&whole))
}

/// What is confirmed of a call that is performed; its status if it is refused.
fn outcome(rules: &Rules, request: u32, memory: &mut Fake) -> Result<Vec<u32>, u32> {
    match rules.decide(request, ARGUMENTS, memory) {
        Decision::Perform(performance) => Ok(performance.confirm),
        Decision::Refuse(_, status) => Err(status),
        other => panic!("{other:?}"),
    }
}

fn performed(rules: &mut Rules, request: u32, memory: &mut Fake, status_at: usize) {
    let Decision::Perform(mut performance) = rules.decide(request, ARGUMENTS, memory) else { panic!("refused") };
    performance.image.set(0, status_at, &[0; 4]);
    rules.made(request, &performance.image);
}

#[test]
fn controls_that_are_not_listed_are_refused_in_the_drivers_words() {
    // Stopping channels, of whatever client; a list of processes; the firmware's own.
    for command in [0x2080_110b, 0x2080_018d, 0x2080_8101, 0xdead_beef] {
        let mut memory = control(command, &[0; 134]);
        let Decision::Refuse(image, status) = rules().decide(CONTROL, ARGUMENTS, &mut memory) else { panic!() };
        assert_eq!(
            (status, image.word(0, 28), memory.reads),
            (status::NOT_SUPPORTED, Some(status), 1),
            "{command:x}"
        );
    }
    assert_eq!(outcome(&rules(), CONTROL, &mut control(0x2080_0110, &[0; 3])), Ok(vec![]));
    let mut packed = control(0x2080_0110, &[0; 3]);
    packed.blocks.get_mut(&ARGUMENTS).unwrap()[12] = 4;
    assert_eq!(outcome(&rules(), CONTROL, &mut packed), Err(status::INVALID_ARGUMENT));
}

#[test]
fn settings_of_the_whole_gpu_are_answered_and_not_made() {
    let mut memory = control(0x2080_200a, &[1, 2]);
    let Decision::Answer(image) = rules().decide(CONTROL, ARGUMENTS, &mut memory) else { panic!() };
    assert_eq!((image.word(0, 28), image.count()), (Some(0), 1));
}

#[test]
fn what_parameters_point_to_is_copied_and_bounded() {
    let list = |count: u32| {
        let address = u32::try_from(PARAMETERS + 64).unwrap();
        let mut memory = control(0x2080_1201, &[count, 0, address, 0, 0, 0]);
        memory.blocks.get_mut(&PARAMETERS).unwrap().resize(64 + 80, 7);
        memory
    };
    let Decision::Perform(performance) = rules().decide(CONTROL, ARGUMENTS, &mut list(10)) else { panic!() };
    assert_eq!((performance.image.count(), performance.image.bytes(2)), (3, &[7; 80][..]));
    for count in [11, 1 << 20, u32::MAX] {
        assert!(matches!(rules().decide(CONTROL, ARGUMENTS, &mut list(count)), Decision::Fail(_)), "{count}");
    }
    // Too short for an address.
    assert_eq!(outcome(&rules(), CONTROL, &mut control(0x2080_1201, &[1, 0])), Err(status::INVALID_ARGUMENT));
    let mut nowhere = control(0x2080_0110, &[0; 3]);
    nowhere.blocks.remove(&PARAMETERS);
    assert!(matches!(rules().decide(CONTROL, ARGUMENTS, &mut nowhere), Decision::Fail(libc::EFAULT)));
    assert!(matches!(rules().decide(CONTROL, 8, &mut nowhere), Decision::Fail(libc::EFAULT)));
}

#[test]
fn a_descriptor_in_parameters_is_found() {
    let Decision::Perform(performance) =
        rules().decide(CONTROL, ARGUMENTS, &mut control(0x3d05, &[0, 1, 2, 3, 44, 0]))
    else {
        panic!()
    };
    assert_eq!(performance.descriptor, Some((1, 16)));
    assert_eq!(performance.image.word(1, 16), Some(44));
    assert_eq!(outcome(&rules(), CONTROL, &mut control(0x3d05, &[0, 1, 2, 3])), Err(status::INVALID_ARGUMENT));
}

#[test]
fn a_slice_is_set_once_by_who_has_just_made_the_group() {
    let mut rules = rules();
    let slice = |group: u32, microseconds: u32| {
        let mut memory = control(0xa06c_0103, &[microseconds, 0]);
        memory.blocks.get_mut(&ARGUMENTS).unwrap()[4..8].copy_from_slice(&group.to_ne_bytes());
        memory
    };
    let denied = Err(status::INSUFFICIENT_PERMISSIONS);
    assert_eq!(outcome(&rules, CONTROL, &mut slice(9, 2048)), denied, "made before the client came");
    performed(&mut rules, ALLOC, &mut alloc(0xa06c, &[]), 40);
    assert_eq!(outcome(&rules, CONTROL, &mut slice(9, 100_000)), denied, "too long");
    assert_eq!(outcome(&rules, CONTROL, &mut slice(8, 1024)), denied, "another");
    performed(&mut rules, CONTROL, &mut slice(9, 2048), 28);
    assert_eq!(outcome(&rules, CONTROL, &mut slice(9, 2048)), denied, "the scheduler may have set another since");
    assert_eq!(rules.groups.len(), 1);
    performed(&mut rules, FREE, &mut Fake::default().with(ARGUMENTS, &bytes(&[OWN, 0, OWN, 0])), 12);
    assert!(rules.groups.is_empty(), "gone with its client");
}

#[test]
fn no_client_is_made_any_more_and_none_of_others_named() {
    for root in [0, 1, 0x41] {
        assert_eq!(outcome(&rules(), ALLOC, &mut alloc(root, &[])), Err(status::NOT_SUPPORTED));
    }
    // A device that shares an address space, an event about a client, a question in a client's name.
    for (class, parameters) in [(0x80, [0, FOREIGN, 0]), (0x05, [FOREIGN, 0, 0x79]), (0xcb33, [FOREIGN, 0, 0])] {
        assert_eq!(outcome(&rules(), ALLOC, &mut alloc(class, &parameters)), Ok(vec![FOREIGN]), "{class:x}");
        let own = parameters.map(|word| if word == FOREIGN { OWN } else { word });
        assert_eq!(outcome(&rules(), ALLOC, &mut alloc(class, &own)), Ok(vec![]), "{class:x}");
    }
    let denied = Err(status::INSUFFICIENT_PERMISSIONS);
    assert_eq!(outcome(&rules(), ALLOC, &mut alloc(0x80, &[0, 0, OWN])), denied, "another's device");
    assert_eq!(outcome(&rules(), ALLOC, &mut alloc(0x05, &[0, 0, 0x78])), denied, "a callback in the kernel");
}

#[test]
fn channels_are_neither_privileged_nor_without_number() {
    let mut flags = [0; 8];
    assert_eq!(outcome(&rules(), ALLOC, &mut alloc(0xc86f, &flags)), Ok(vec![]));
    flags[5] = 1 << 5;
    assert_eq!(outcome(&rules(), ALLOC, &mut alloc(0xc86f, &flags)), Err(status::INSUFFICIENT_PERMISSIONS));
    let mut rules = rules();
    for handle in 0..MAX_GROUPS {
        let mut memory = alloc(0xa06c, &[]);
        let handle = u32::try_from(handle).unwrap() + 100;
        memory.blocks.get_mut(&ARGUMENTS).unwrap()[8..12].copy_from_slice(&handle.to_ne_bytes());
        performed(&mut rules, ALLOC, &mut memory, 40);
    }
    assert_eq!(outcome(&rules, ALLOC, &mut alloc(0xa06c, &[])), Err(status::INSUFFICIENT_PERMISSIONS));
    performed(&mut rules, FREE, &mut Fake::default().with(ARGUMENTS, &bytes(&[OWN, 0, 100, 0])), 12);
    assert_eq!(outcome(&rules, ALLOC, &mut alloc(0xa06c, &[])), Ok(vec![]));
}

#[test]
fn parameters_are_taken_by_class_whatever_the_call_says() {
    let mut memory = alloc(0xc86f, &[7]);
    let Decision::Perform(performance) = rules().decide(ALLOC, ARGUMENTS, &mut memory) else { panic!() };
    assert_eq!(performance.image.bytes(1).len(), 368);
    let mut packed = alloc(0x2080, &[]);
    packed.blocks.get_mut(&ARGUMENTS).unwrap()[36] = 1;
    assert_eq!(outcome(&rules(), ALLOC, &mut packed), Err(status::INVALID_ARGUMENT));
    let mut without = alloc(0xc86f, &[]);
    without.blocks.get_mut(&ARGUMENTS).unwrap()[16..24].fill(0);
    let Decision::Perform(performance) = rules().decide(ALLOC, ARGUMENTS, &mut without) else { panic!() };
    assert_eq!(performance.image.count(), 1);
}

#[test]
fn objects_of_others_are_not_duplicated_nor_own_ones_opened() {
    let dup = |source| Fake::default().with(ARGUMENTS, &bytes(&[OWN, 1, 2, source, 4, 0, 0xdead]));
    assert_eq!(outcome(&rules(), 0xc01c_4634, &mut dup(FOREIGN)), Ok(vec![FOREIGN]));
    assert_eq!(outcome(&rules(), 0xc01c_4634, &mut dup(OWN)), Ok(vec![]));
    let share = |kind, target| Fake::default().with(ARGUMENTS, &bytes(&[OWN, 1, target, !0, kind, 0xdead]));
    let inherited = |kind, target| control(0xd04, &[target, !0, kind]);
    for (kind, expected) in [
        (0, Ok(vec![])),
        (1, Err(status::INSUFFICIENT_PERMISSIONS)),
        (2, Err(status::INSUFFICIENT_PERMISSIONS)),
        (3, Ok(vec![FOREIGN])),
        (4, Err(status::INSUFFICIENT_PERMISSIONS)),
        (0x1_0001, Err(status::INSUFFICIENT_PERMISSIONS)),
    ] {
        assert_eq!(outcome(&rules(), 0xc018_4635, &mut share(kind, FOREIGN)), expected, "{kind}");
        assert_eq!(outcome(&rules(), CONTROL, &mut inherited(kind, FOREIGN)), expected, "{kind}");
    }
}

#[test]
fn events_and_heap_are_only_as_they_should_be() {
    // The driver finds an event by client and number in a list of all processes.
    for request in [0xc010_46ce, 0xc010_46cf] {
        let mut memory = Fake::default().with(ARGUMENTS, &bytes(&[FOREIGN, 1, 7, 0xdead]));
        assert_eq!(outcome(&rules(), request, &mut memory), Ok(vec![FOREIGN]), "{request:x}");
    }
    let heap = |function| {
        let mut words = [0; 46];
        (words[0], words[2]) = (OWN, function);
        Fake::default().with(ARGUMENTS, &bytes(&words))
    };
    assert_eq!(outcome(&rules(), 0xc0b8_464a, &mut heap(2)), Ok(vec![]));
    assert_eq!(outcome(&rules(), 0xc0b8_464a, &mut heap(27)), Err(status::NOT_SUPPORTED));
    let mut memory = Fake::default().with(ARGUMENTS, &[0; 64]);
    for request in [0xc008_46d6, 0xc010_46d3, 0x5401, 0xc000_462a, 0xc021_462a] {
        assert!(matches!(rules().decide(request, ARGUMENTS, &mut memory), Decision::Fail(_)), "{request:x}");
    }
}

/// Whatever the bytes are: no panic, no more than is allowed to be copied, and only listed calls are made.
#[test]
fn random_arguments_are_decided() {
    let rules = rules();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state >> 32).unwrap()
    };
    let sizes =
        [(0x29, 16), (0x2a, 32), (0x2b, 32), (0x2b, 48), (0x34, 28), (0x35, 24), (0x4a, 184), (206, 16), (207, 16)];
    let interesting =
        [0, 1, OWN, FOREIGN, 0x2080_110b, 0x101, 0x127, 0x3d05, 0xa06c_0103, 0x80, 0x05, 0xc86f, 0xa06c];
    let mut made = 0;
    for _ in 0..20_000 {
        let (number, size) = sizes[next() as usize % sizes.len()];
        let mut words: Vec<u32> = (0..size / 4).map(|_| next()).collect();
        for word in &mut words {
            if next() % 4 != 0 {
                *word = interesting[next() as usize % interesting.len()];
            }
        }
        let parameters: Vec<u32> = (0..256).map(|_| next() % 300).collect();
        if size >= 32 && next() % 2 == 0 {
            (words[3], words[4], words[5]) = (words[3] * u32::from(number == 0x2b), 0x10_0000, 0);
            words[6] = next() % 1100;
        }
        let mut memory = Fake::default().with(ARGUMENTS, &bytes(&words)).with(PARAMETERS, &bytes(&parameters));
        let request = 0xc000_4600 | u32::from(size as u16) << 16 | number;
        match rules.decide(request, ARGUMENTS, &mut memory) {
            Decision::Perform(Performance { image, .. }) => {
                made += 1;
                let listed = match number {
                    0x2a => crate::driver::rules::control(image.word(0, 8).unwrap()).is_some(),
                    0x2b => crate::driver::rules::class(rules.branch, image.word(0, 12).unwrap()).is_some(),
                    _ => true,
                };
                assert!(listed, "{words:x?}");
                let copied: usize = (0..image.count()).map(|block| image.bytes(block).len()).sum();
                assert!(copied <= crate::driver::image::MAX_BYTES);
            }
            Decision::Refuse(_, status) => assert_ne!(status, 0),
            Decision::Answer(_) | Decision::Fail(_) => {}
        }
    }
    assert!(made > 100, "{made}: nothing was tried");
}

/// Whoever asks for less could not be taken off the GPU in the middle of a kernel.
#[test]
fn kernels_stay_preemptible_at_every_instruction() {
    let ask = |flags, compute| outcome(&rules(), CONTROL, &mut control(0x2080_1210, &[flags, 7, 0, compute, 0]));
    assert_eq!((ask(1, 2), ask(2, 0)), (Ok(vec![]), Ok(vec![])), "as driver libraries do; of graphics alone");
    for (flags, compute) in [(1, 0), (1, 1), (3, 0), (u32::MAX, 3)] {
        assert_eq!(ask(flags, compute), Err(status::INSUFFICIENT_PERMISSIONS), "{flags} {compute}");
    }
    let short = outcome(&rules(), CONTROL, &mut control(0x2080_1210, &[1, 7, 0]));
    assert_eq!(short, Err(status::INVALID_ARGUMENT));
}

/// Files of GPUs answer no questions about clients, and events come through them.
#[test]
fn a_client_that_the_driver_has_served_is_known() {
    let mut rules = rules();
    assert!(!rules.is_known(OWN));
    performed(&mut rules, CONTROL, &mut control(0x2080_0110, &[0; 3]), 28);
    assert!(rules.is_known(OWN) && !rules.is_known(FOREIGN));
    let root = [OWN, 0, OWN, 0xdead];
    performed(&mut rules, FREE, &mut Fake::default().with(ARGUMENTS, &bytes(&root)), 12);
    assert!(!rules.is_known(OWN), "its number may be another's next");
}

#[test]
fn a_debugger_is_of_own_kernels_only() {
    let ask = |parameters: &[u32]| outcome(&rules(), ALLOC, &mut alloc(0x83de, parameters));
    assert_eq!(ask(&[0, OWN, 3]), Ok(vec![]));
    assert_eq!(ask(&[0, FOREIGN, 3]), Ok(vec![FOREIGN]), "the driver is asked");
    assert_eq!(ask(&[FOREIGN, OWN, 3]), Ok(vec![FOREIGN]));
}
