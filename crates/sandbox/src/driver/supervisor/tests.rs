use super::super::image::tests::Fake;
use super::*;

const ARGUMENTS: u64 = 0x1000;
const PARAMETERS: u64 = 0x10_0000;
const OWN: u32 = 0xc1d0_0001;
const FOREIGN: u32 = 0xc1d0_0002;

/// Knows one client of one file, and remembers what it was asked.
#[derive(Default)]
struct Fixed {
    calls: Vec<(u32, [u32; 8])>,
    files: Vec<i32>,
}

struct File(i32);

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Driver for Fixed {
    type File = File;

    fn file(&mut self, descriptor: i32) -> io::Result<File> {
        self.files.push(descriptor);
        if descriptor < 100 { Ok(File(descriptor + 1000)) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }

    unsafe fn call(&mut self, _: &File, request: u32, arguments: *mut u8) -> io::Result<i32> {
        let (_, size) = requests::parts(request).unwrap();
        let words = arguments.cast::<u32>();
        let mut seen = [0; 8];
        // SAFETY: arguments of this size.
        unsafe {
            for (at, word) in seen.iter_mut().enumerate().take(size / 4) {
                *word = words.add(at).read_unaligned();
            }
            // Of a control, the descriptor in its parameters.
            if request == 0xc020_462a && seen[2] == 0x3d06 {
                let parameters = arguments.add(16).cast::<*const u32>().read_unaligned();
                seen[7] = parameters.read_unaligned();
            }
            let status = if seen[0] == OWN { 0 } else { status::INVALID_CLIENT };
            words.add(size / 4 - 1).write_unaligned(status);
        }
        self.calls.push((request, seen));
        Ok(0)
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// What the caller gets, the words of its arguments afterwards, and what was told.
fn ask(
    driver: &mut Fixed,
    request: u32,
    words: &[u32],
    parameters: &[u32],
) -> (Result<i32, i32>, Vec<u32>, Vec<String>) {
    let mut memory = Fake::default().with(ARGUMENTS, &bytes(words)).with(PARAMETERS, &bytes(parameters));
    let mut rules = Rules::new(Branch::of("580.1").unwrap());
    let mut told = Vec::new();
    let asked = Asked { descriptor: 3, request, address: ARGUMENTS };
    let result = serve(&mut rules, asked, &mut memory, driver, &mut |what| told.push(what.to_owned()));
    let words = memory.blocks[&ARGUMENTS].chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    (result, words.collect(), told)
}

#[test]
fn a_duplicate_is_made_only_of_what_the_driver_says_is_own() {
    let mut driver = Fixed::default();
    let (result, words, told) = ask(&mut driver, 0xc01c_4634, &[OWN, 1, 2, FOREIGN, 4, 0, 0xdead], &[]);
    assert_eq!((result, words[6]), (Ok(0), status::INVALID_CLIENT));
    assert_eq!(driver.calls.len(), 1, "the question alone");
    assert_eq!((driver.calls[0].0, driver.calls[0].1[2]), (0xc020_462a, 0xd02));
    assert_eq!(told, ["RM_DUP_OBJECT, about client 0xc1d00002"]);
    let (result, words, _) = ask(&mut driver, 0xc01c_4634, &[OWN, 1, 2, OWN, 4, 0, 0xdead], &[]);
    assert_eq!((result, words[6], driver.calls.len()), (Ok(0), 0, 2), "its own client needs no question");
}

#[test]
fn a_descriptor_is_ours_for_the_call_and_the_workers_again_after_it() {
    let mut driver = Fixed::default();
    let control = [OWN, 5, 0x3d06, 0, 0x10_0000, 0, 24, 0xdead];
    let (result, words, _) = ask(&mut driver, 0xc020_462a, &control, &[44, 0, 0, 0, 0, 0]);
    assert_eq!((result, words[7], &driver.files[..]), (Ok(0), 0, &[3, 44][..]));
    assert_eq!(driver.calls[0].1[7], 1044, "the driver looks it up in our table");
    let (result, ..) = ask(&mut driver, 0xc020_462a, &control, &[200, 0, 0, 0, 0, 0]);
    assert_eq!((result, driver.calls.len()), (Err(libc::EBADF), 1), "no file of the driver");
}

#[test]
fn a_refused_call_never_reaches_the_driver() {
    let mut driver = Fixed::default();
    let control = |command| [OWN, 5, command, 0, 0x10_0000, 0, 24, 0xdead];
    let (result, words, told) = ask(&mut driver, 0xc020_462a, &control(0x2080_110b), &[0; 6]);
    assert_eq!(
        (result, words[7], &told[..]),
        (Ok(0), status::NOT_SUPPORTED, &["RM_CONTROL 0x2080110b".to_owned()][..])
    );
    let (result, words, told) = ask(&mut driver, 0xc020_462a, &control(0x2080_200a), &[0; 6]);
    assert_eq!((result, words[7], told.len()), (Ok(0), 0, 0), "answered");
    let (result, _, told) = ask(&mut driver, 0xc008_46d6, &[0, 0], &[]);
    assert_eq!((result, &told[..]), (Err(libc::EPERM), &["request 0xc00846d6".to_owned()][..]));
    assert!(driver.calls.is_empty() && driver.files.is_empty());
}

#[test]
fn events_of_another_client_are_not_freed() {
    let mut driver = Fixed::default();
    let (result, words, _) = ask(&mut driver, 0xc010_46cf, &[FOREIGN, 0, 7, 0xdead], &[]);
    assert_eq!((result, words[3]), (Ok(0), status::INVALID_CLIENT));
    assert!(driver.calls.iter().all(|(request, _)| *request == 0xc020_462a), "never freed");
    let (_, words, _) = ask(&mut driver, 0xc010_46cf, &[OWN, 0, 7, 0xdead], &[]);
    assert_eq!(words[3], 0);
}

/// The driver answers questions about clients through its control file alone; who was served before is known.
#[test]
fn events_of_a_client_that_was_served_need_no_question() {
    let mut driver = Fixed::default();
    let mut rules = Rules::new(Branch::of("580.1").unwrap());
    let control = [OWN, 5, 0x2080_0110, 0, u32::try_from(PARAMETERS).unwrap(), 0, 12, 0xdead];
    let event = [OWN, 5, 8, 0xdead];
    for (request, words, calls) in [(0xc020_462a, &control[..], 1), (0xc010_46ce, &event[..], 1)] {
        driver.calls.clear();
        let mut memory = Fake::default().with(ARGUMENTS, &bytes(words)).with(PARAMETERS, &bytes(&[0; 3]));
        let asked = Asked { descriptor: 3, request, address: ARGUMENTS };
        assert_eq!(serve(&mut rules, asked, &mut memory, &mut driver, &mut |_| {}), Ok(0));
        assert_eq!(driver.calls.len(), calls, "{request:x}");
    }
}
