//! Several texts in one, as a linker would see them.
//!
//! What a text keeps to itself (strings of `printf` are called `$str` in every one) gets a name of its own in the whole, and
//! so does a copy of a function that any text may bring along (`.weak`: templates, inline functions).

use std::collections::HashSet;

/// The texts, one behind the other, of which no two define the same name for themselves.
pub fn join(texts: &[String]) -> String {
    let mut taken: HashSet<&str> = HashSet::new();
    let mut all = String::with_capacity(texts.iter().map(|text| text.len() + 1).sum());
    for (number, text) in texts.iter().enumerate() {
        if number > 0 {
            all.push('\n');
        }
        let clashes: HashSet<&str> = own_names(text).filter(|name| taken.contains(name)).collect();
        if clashes.is_empty() {
            all.push_str(text);
        } else {
            rename(text, &clashes, &format!("$of{number}"), &mut all);
        }
        taken.extend(words(text).map(|(_, word)| word));
    }
    all
}

/// Names that mean nothing to other texts. Compilers begin a line with such a definition.
fn own_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let variable = [".global ", ".const ", ".shared "].iter().any(|space| line.starts_with(space));
        let function = line.strip_prefix(".weak ").unwrap_or(line).strip_prefix(".func");
        match function {
            // What it returns comes first.
            Some(rest) => words(rest.rsplit_once(") ").map_or(rest, |(_, name)| name)).map(|(_, word)| word).next(),
            None if variable => words(line.split(['[', '=', ';']).next()?).map(|(_, word)| word).last(),
            None => None,
        }
    })
}

fn rename(text: &str, names: &HashSet<&str>, suffix: &str, out: &mut String) {
    let mut done = 0;
    for (at, word) in words(text).filter(|(_, word)| names.contains(word)) {
        let end = at + word.len();
        out.push_str(&text[done..end]);
        out.push_str(suffix);
        done = end;
    }
    out.push_str(&text[done..]);
}

/// Words that may be names, and where they are: neither registers nor directives.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$');
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + bytes[at..].iter().position(|byte| is_word(*byte))?;
            let len = bytes[start..].iter().position(|byte| !is_word(*byte)).unwrap_or(bytes.len() - start);
            at = start + len;
            let before = start.checked_sub(1).map(|before| bytes[before]);
            if !matches!(before, Some(b'%' | b'.')) {
                return Some((start, &text[start..at]));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_text_keeps_to_itself_stays_its_own() {
        let text = |word: &str| {
            format!(
                ".version 8.0\n.global .align 1 .b8 $str[3] = {{104, 105}};\n.visible .global .u32 {word};\n\
                 .weak .func  (.param .b32 r) twice(\n)\n{{\n mov.u64 %rd1, $str; call (r), twice; }}\n\
                 .func helper()\n{{ }}\n"
            )
        };
        let joined = join(&[text("one"), text("two"), text("three")]);
        for name in ["$str", "twice", "helper"] {
            let named = |wanted: &str| words(&joined).filter(|(_, word)| *word == wanted).count();
            let each = named(name);
            assert!(
                each > 0 && named(&format!("{name}$of1")) == each && named(&format!("{name}$of2")) == each,
                "{name}"
            );
        }
        assert!(joined.contains("%rd1, $str$of2") && joined.contains(".u32 two;"));
    }

    #[test]
    fn what_is_meant_for_others_keeps_its_name() {
        let uses = ".extern .func f()\n;\n.extern .global .u32 v;\n.visible .entry k() { call f; }\n".to_owned();
        let defines = ".visible .func f()\n{ }\n.visible .global .u32 v = 1;\n".to_owned();
        assert_eq!(join(&[uses.clone(), defines.clone()]), format!("{uses}\n{defines}"));
    }
}
