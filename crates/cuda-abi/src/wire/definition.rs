//! How a message is defined: once, for both sides.
//!
//! [`message!`] makes a struct of fields, [`choice!`] an enum of such. [`operations!`] makes a struct for an operation's
//! request and, where it has one, for its reply; `op.rs` lists the operations that there are.

use super::{Decode, Field, Malformed, Op, Source};

/// The request of an operation.
pub trait Operation: Field {
    /// Which operation it is.
    const OP: Op;
    /// The opcode on the wire.
    const CODE: u16;
    /// The request, as it borrows from a message.
    type Request<'m>: Decode<'m>;
    /// What is answered; `()` where there is nothing to say but a result code.
    type Reply<'m>: Decode<'m>;
}

/// What can be done with the messages of any operation without knowing which it is.
#[derive(Clone, Copy)]
pub struct Codec {
    /// Appends what the message looks like.
    pub shape: fn(&mut String),
    /// Appends the encoding of an arbitrary message.
    pub sample: fn(&mut Source<'_>, &mut Vec<u8>),
    /// Reads a message and writes it again.
    pub again: fn(&[u8]) -> Result<Again, Malformed>,
}

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Again {
    /// It is the message itself, or there would be two encodings of the same.
    pub encoding: Vec<u8>,
    /// What it holds, for people.
    pub text: String,
}

/// An operation and its messages.
#[derive(Clone, Copy)]
pub struct Definition {
    /// Which operation it is.
    pub op: Op,
    /// Of its request.
    pub request: Codec,
    /// Of its reply.
    pub reply: Codec,
}

/// The codec of a type that may borrow from its message.
macro_rules! codec {
    ($($type:tt)*) => {
        $crate::wire::Codec {
            shape: <$($type)*<'static> as $crate::wire::Field>::shape,
            sample: <$($type)*<'static> as $crate::wire::Field>::sample,
            again: |payload| {
                let message: $($type)*<'_> = $crate::wire::decode(payload)?;
                Ok($crate::wire::Again { encoding: $crate::wire::to_vec(&message), text: format!("{message:?}") })
            },
        }
    };
}

impl Definition {
    pub(super) fn of<R: Operation>() -> Definition
    where
        for<'m> R::Request<'m>: std::fmt::Debug,
        for<'m> R::Reply<'m>: std::fmt::Debug,
    {
        Definition { op: R::OP, request: codec!(R::Request), reply: codec!(R::Reply) }
    }

    /// Name, code and fields: what the protocol's fingerprint is made of.
    pub fn shape(&self, text: &mut String) {
        text.push_str(&format!("{}={:04x}{{", self.op.name(), self.op as u16));
        (self.request.shape)(text);
        text.push_str("}->{");
        (self.reply.shape)(text);
        text.push_str("}\n");
    }
}

/// A struct whose fields are those of a message, in their order. A field has a doc line where its name and type do not
/// say all there is to know.
macro_rules! message {
    ($(#[$meta:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        $crate::wire::definition::message!(@field [] $name { $($field: $type,)* });

        impl<'m> $crate::wire::Decode<'m> for $name {
            #[inline]
            fn decode(_reader: &mut $crate::wire::Reader<'m>) -> Result<Self, $crate::wire::Malformed> {
                if _reader.remaining().len() < <Self as $crate::wire::Field>::LEAST {
                    return Err($crate::wire::Malformed);
                }
                Ok($name { $($field: $crate::wire::Decode::decode(_reader)?,)* })
            }
        }
    };
    ($(#[$meta:meta])* $name:ident<$life:lifetime> { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name<$life> {
            $($(#[$about])* pub $field: $type,)*
        }

        $crate::wire::definition::message!(@field [<$life>] $name { $($field: $type,)* });

        impl<$life> $crate::wire::Decode<$life> for $name<$life> {
            #[inline]
            fn decode(reader: &mut $crate::wire::Reader<$life>) -> Result<Self, $crate::wire::Malformed> {
                if reader.remaining().len() < <Self as $crate::wire::Field>::LEAST {
                    return Err($crate::wire::Malformed);
                }
                Ok($name { $($field: $crate::wire::Decode::decode(reader)?,)* })
            }
        }
    };
    (@field [$($life:tt)*] $name:ident { $($field:ident: $type:ty,)* }) => {
        impl $($life)* $crate::wire::Field for $name $($life)* {
            const LEAST: usize = 0 $(+ <$type as $crate::wire::Field>::LEAST)*;

            fn shape(_text: &mut String) {
                $(
                    _text.push_str(concat!(stringify!($field), ":"));
                    <$type as $crate::wire::Field>::shape(_text);
                    _text.push(',');
                )*
            }

            #[inline]
            fn size(&self) -> usize {
                0 $(+ $crate::wire::Field::size(&self.$field))*
            }

            #[inline]
            fn encode(&self, _writer: &mut $crate::wire::Writer<'_>) {
                if _writer.room() < Self::LEAST {
                    return _writer.refuse();
                }
                $($crate::wire::Field::encode(&self.$field, _writer);)*
            }

            fn sample(_source: &mut $crate::wire::Source<'_>, _out: &mut Vec<u8>) {
                $(<$type as $crate::wire::Field>::sample(_source, _out);)*
            }
        }
    };
}

/// An enum of which a message holds one: the word that tells which, then its fields. Another word is refused.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident<$life:lifetime> { $(
        $(#[$about:meta])* $variant:ident = $tag:path { $($field:ident: $type:ty),* $(,)? }
    )* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub enum $name<$life> {
            $($(#[$about])* $variant { $($field: $type,)* },)*
        }

        impl $name<'_> {
            /// The word that tells which it is.
            pub fn tag(&self) -> u32 {
                match self {
                    $($name::$variant { .. } => $tag,)*
                }
            }
        }

        impl<$life> $crate::wire::Field for $name<$life> {
            const LEAST: usize = 8;

            fn shape(text: &mut String) {
                $(
                    text.push_str(&format!("{}({}|", stringify!($variant), $tag));
                    $(
                        text.push_str(concat!(stringify!($field), ":"));
                        <$type as $crate::wire::Field>::shape(text);
                        text.push(',');
                    )*
                    text.push(')');
                )*
            }

            fn size(&self) -> usize {
                8 + match self {
                    $($name::$variant { $($field),* } => 0 $(+ $crate::wire::Field::size($field))*,)*
                }
            }

            fn encode(&self, writer: &mut $crate::wire::Writer<'_>) {
                writer.word(u64::from(self.tag()));
                match self {
                    $($name::$variant { $($field),* } => { $($crate::wire::Field::encode($field, writer);)* })*
                }
            }

            fn sample(source: &mut $crate::wire::Source<'_>, out: &mut Vec<u8>) {
                let tags = [$($tag),*];
                let at = source.word() % tags.len() as u64;
                let tag = tags[usize::try_from(at).unwrap_or_default()];
                out.extend(u64::from(tag).to_le_bytes());
                match tag {
                    $($tag => { $(<$type as $crate::wire::Field>::sample(source, out);)* })*
                    _ => {}
                }
            }
        }

        impl<$life> $crate::wire::Decode<$life> for $name<$life> {
            fn decode(reader: &mut $crate::wire::Reader<$life>) -> Result<Self, $crate::wire::Malformed> {
                match reader.narrow::<u32>()? {
                    $($tag => Ok($name::$variant { $($field: $crate::wire::Decode::decode(reader)?,)* }),)*
                    _ => Err($crate::wire::Malformed),
                }
            }
        }
    };
}

/// Operations: name, opcode and fields of the request and, behind an arrow, the reply, whose fields follow unless
/// another operation has the same one.
macro_rules! operations {
    ($(
        $(#[$meta:meta])*
        $name:ident $(<$life:lifetime>)? = $code:literal { $($fields:tt)* }
        $(-> $reply:ident $(<$reply_life:lifetime>)? $({ $($reply_fields:tt)* })?)?
    )*) => { $(
        $crate::wire::definition::message! { $(#[$meta])* $name $(<$life>)? { $($fields)* } }
        $(operations!(@reply $name $reply $(<$reply_life>)? $({ $($reply_fields)* })?);)?

        impl $crate::wire::Operation for operations!(@type '_ $name $($life)?) {
            const OP: $crate::wire::Op = $crate::wire::Op::$name;
            const CODE: u16 = $code;
            operations!(@alias Request $name $($life)?);
            operations!(@alias Reply $($reply $($reply_life)?)?);
        }
    )* };
    // A reply that is defined with another operation.
    (@reply $name:ident $reply:ident $(<$life:lifetime>)?) => {};
    (@reply $name:ident $reply:ident $(<$life:lifetime>)? { $($fields:tt)* }) => {
        $crate::wire::definition::message! {
            #[doc = concat!("The reply of [`", stringify!($name), "`].")]
            $reply $(<$life>)? { $($fields)* }
        }
    };
    (@type $any:lifetime $name:ident) => { $name };
    (@type $any:lifetime $name:ident $life:lifetime) => { $name<$any> };
    (@alias $alias:ident) => { type $alias<'m> = (); };
    (@alias $alias:ident $name:ident) => { type $alias<'m> = $name; };
    (@alias $alias:ident $name:ident $life:lifetime) => { type $alias<$life> = $name<$life>; };
}

pub(super) use {choice, codec, message, operations};
