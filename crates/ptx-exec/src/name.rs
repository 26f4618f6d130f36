//! Names of kernels as their authors wrote them.

use std::fmt;

use cpp_demangle::{BorrowedSymbol, DemangleOptions, DemangleWrite};

/// The most that a name may become. A short mangled name can stand for a text that does not end.
const LONGEST: usize = 512;

/// `add(float const*, int)` for `_Z3addPKfi`; a name that is not mangled, or stands for too much, as it is.
pub fn demangled(name: &str) -> String {
    struct Bounded(String);

    impl DemangleWrite for Bounded {
        fn write_string(&mut self, text: &str) -> fmt::Result {
            if self.0.len() + text.len() > LONGEST {
                return Err(fmt::Error);
            }
            self.0.push_str(text);
            Ok(())
        }
    }

    let readable = || {
        let symbol = BorrowedSymbol::new(name.as_bytes()).ok()?;
        let mut out = Bounded(String::new());
        symbol.structured_demangle(&mut out, &DemangleOptions::default()).ok()?;
        // Names come from programs; a report is one line.
        (!out.0.is_empty() && !out.0.contains(char::is_control)).then_some(out.0)
    };
    readable().unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::demangled;

    #[test]
    fn names_are_those_of_the_source() {
        for (name, written) in [
            ("_Z3oobPii", "oob(int*, int)"),
            ("_Z6reduceIfEvPKT_PS0_i", "void reduce<float>(float const*, float*, int)"),
            ("_ZN4mine5scaleEfPf", "mine::scale(float, float*)"),
            ("plain_c", "plain_c"),
            ("_Zgarbage", "_Zgarbage"),
            ("", ""),
        ] {
            assert_eq!(demangled(name), written);
        }
    }

    #[test]
    fn a_name_that_stands_for_too_much_stays_as_it_is() {
        // Each substitution has the one before it twice.
        let levels: String = (0..30).map(|level| format!("S{level}_S{level}_E1aI")).collect();
        let name = format!("_Z1aI1bE{levels}");
        assert!(demangled(&name).len() <= super::LONGEST.max(name.len()));
        let long = format!("_Z{}{}v", 9000, "x".repeat(9000));
        assert_eq!(demangled(&long), long);
    }
}
