//! What the definitions say of each operation's request: where its handles, addresses and lengths stand.

use cuda_abi::table::{self, Carry, Function};
use cuda_abi::wire::{Kind, Op};

/// What a word of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A handle of one of these kinds, as a set of bits.
    Handle(u32),
    Address,
    Length,
    Other,
}

/// An operation's request.
pub(super) struct Shape {
    pub op: Op,
    /// Its first words, up to what has no fixed length.
    pub words: Vec<Word>,
    /// The kinds of all handles in it.
    pub kinds: u32,
}

fn bits(kinds: &str) -> u32 {
    let known = table::HANDLES.iter().filter_map(|name| Kind::of_c_type(name));
    let named = |kind: &Kind| kinds.split('.').any(|part| part == format!("{kind:?}"));
    known.filter(named).fold(0, |bits, kind| bits | 1 << kind as u32)
}

/// The kinds in every `handle.A.B` of a text.
fn all_kinds(text: &str) -> u32 {
    let ends = |c: char| !c.is_ascii_alphanumeric() && c != '.';
    text.split("handle.").skip(1).fold(0, |all, rest| all | bits(rest.split(ends).next().unwrap_or_default()))
}

impl Shape {
    pub(super) fn of(op: Op) -> Shape {
        let mut text = String::new();
        (op.definition().request.shape)(&mut text);
        let mut words = Vec::new();
        for field in text.split(',') {
            let Some((name, kind)) = field.split_once(':') else { break };
            words.push(match kind.split_once('.') {
                Some(("handle", kinds)) => Word::Handle(bits(kinds)),
                _ if matches!(name, "address" | "destination" | "source" | "near") && kind == "u64" => Word::Address,
                _ if matches!(name, "bytes" | "offset" | "alignment") && kind == "u64" => Word::Length,
                _ if matches!(kind, "u64" | "u32" | "i32" | "bool" | "usize") => Word::Other,
                _ => break,
            });
        }
        Shape { op, words, kinds: all_kinds(&text) }
    }
}

/// The functions that are carried as the table says, by opcode.
pub(super) fn plain_functions() -> Vec<(u16, Function)> {
    let carried = |function: &Function| matches!(function.carry, Carry::Post | Carry::Call | Carry::Block);
    let all = table::functions().into_iter().enumerate();
    all.filter(|(_, function)| carried(function))
        .filter_map(|(op, function)| Some((op.try_into().ok()?, function)))
        .collect()
}
