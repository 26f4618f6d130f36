//! Functions of CUDA's device runtime, which cannot be linked here: `libcudadevrt` is machine code.

use super::ast::Module;
use super::parse;

const TEXT: &str = include_str!("device_library.ptx");

/// Adds those that a module declares and does not define.
pub fn complete(module: &mut Module) {
    let missing = |name: &str| {
        let mut same = module.functions.iter().filter(|function| function.name == name).peekable();
        same.peek().is_some() && same.all(|function| function.body.is_none())
    };
    let Ok(library) = parse(TEXT) else { return };
    let found: Vec<_> = library.functions.into_iter().filter(|function| missing(function.name)).collect();
    module.functions.extend(found);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_added_once() {
        let text = ".version 7.0\n.target sm_75\n.address_size 64\n\
                    .extern .func (.param .b64 h) cudaCGGetIntrinsicHandle(.param .b32 s);\n";
        let mut module = parse(text).unwrap();
        complete(&mut module);
        complete(&mut module);
        let defined: Vec<_> = module.functions.iter().filter(|f| f.body.is_some()).map(|f| f.name).collect();
        assert_eq!(defined, ["cudaCGGetIntrinsicHandle"]);
        let mut empty = parse(".version 7.0\n.target sm_75\n.address_size 64\n").unwrap();
        complete(&mut empty);
        assert!(empty.functions.is_empty());
    }
}
