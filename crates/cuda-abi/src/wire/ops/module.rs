//! Modules and libraries, what is in them, and linking.

use std::fmt;
use std::marker::PhantomData;

use crate::wire::definition::{codec, message, operations};
use crate::wire::{
    Array, Codec, Decode, Field, FunctionOrKernel, KernelHandle, LibraryHandle, List, MAX_IMAGE_PARTS,
    MAX_JIT_OPTIONS, MAX_LINK_INPUTS, MAX_NAME, MAX_PARAMS, Malformed, ModuleHandle, ModuleOrLibrary, Raw, Reader,
    Rest, Source, Text, Writer, plain_fields,
};

/// A kernel's or variable's name.
pub type Name<'a> = Text<'a, MAX_NAME>;

/// Where a parameter of a kernel lies in the block that a launch brings.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// From the beginning of the block.
    pub offset: u32,
    /// In bytes.
    pub size: u32,
}

const _: () = assert!(size_of::<Parameter>() == 2 * size_of::<u32>());

/// An attribute of a function or kernel, and what it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionAttribute {
    /// CUDA's `CUfunction_attribute`.
    pub which: u32,
    /// As the driver tells it.
    pub value: i32,
}

const _: () = assert!(size_of::<FunctionAttribute>() == 2 * size_of::<u32>());

plain_fields! { Parameter FunctionAttribute }

/// Attributes that are told together: all that CUDA has, and some to come.
pub const MAX_FUNCTION_ATTRIBUTES: usize = 24;

/// What the driver told of a function's attributes, without those that it does not know.
pub type FunctionAttributes<'a> = Array<'a, FunctionAttribute, MAX_FUNCTION_ATTRIBUTES>;

message! {
    /// A function or kernel. Attributes are there once it is loaded, which needs a context: a kernel's are those on the
    /// context's device.
    Described<'a> {
        handle: FunctionOrKernel,
        parameters: Array<'a, Parameter, MAX_PARAMS>,
        attributes: FunctionAttributes<'a>,
    }
}

message! {
    /// A function or kernel of a list.
    Listed<'a> {
        about: Described<'a>,
        name: &'a [u8],
    }
}

message! {
    /// A number that the compiler is told.
    JitOption {
        option: u32,
        value: u32,
    }
}

message! {
    /// What the compiler says.
    Logs<'a> {
        errors: &'a [u8],
        notes: &'a [u8],
    }
}

message! {
    /// An image to be linked; `kind` is CUDA's `CUjitInputType`.
    LinkInput<'a> {
        kind: u32,
        image: &'a [u8],
    }
}

message! {
    /// What is uploaded for a [`Link`].
    LinkOrder<'a> {
        options: List<'a, JitOption, MAX_JIT_OPTIONS>,
        inputs: List<'a, LinkInput<'a>, MAX_LINK_INPUTS>,
    }
}

message! {
    /// What is uploaded for an [`ImageLoad`].
    ImageOrder<'a> {
        into_library: bool,
        options: List<'a, JitOption, MAX_JIT_OPTIONS>,
        /// What is to be loaded, then what it was linked from.
        images: List<'a, &'a [u8], { 1 + MAX_IMAGE_PARTS }>,
    }
}

/// Messages that are uploaded, by name.
pub const UPLOADS: [(&str, Codec); 2] = [("LinkOrder", codec!(LinkOrder)), ("ImageOrder", codec!(ImageOrder))];

/// How many bytes were uploaded, by [`ImagePart`]s, of a message that is too long for one.
#[derive(Clone, Copy)]
pub struct Upload<T> {
    /// The length of the message.
    pub bytes: u64,
    content: PhantomData<fn() -> T>,
}

impl<T> Upload<T> {
    /// So many bytes were uploaded.
    pub fn new(bytes: u64) -> Self {
        Upload { bytes, content: PhantomData }
    }
}

impl<T> fmt::Debug for Upload<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({})", self.bytes)
    }
}

impl<T: Field> Field for Upload<T> {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str("upload(");
        T::shape(text);
        text.push(')');
    }

    fn size(&self) -> usize {
        8
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.word(self.bytes);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        u64::sample(source, out);
    }
}

impl<T: Field> Decode<'_> for Upload<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.word().map(Upload::new)
    }
}

operations! {
    /// Posted: the next part of what a lane is about to have loaded.
    ImagePart<'a> = 0xf020 { lane: u32, part: Raw<'a> }
    /// `cuModuleLoadData`.
    ModuleLoad = 0xf021 { image: Upload<Raw<'static>> } -> ModuleLoaded { module: ModuleHandle }
    /// `cuLibraryLoadData`.
    LibraryLoad = 0xf022 { image: Upload<Raw<'static>> } -> LibraryLoaded { library: LibraryHandle }
    /// An image with options, or with what it was linked from. There are logs whatever the code says.
    ImageLoad = 0xf02e { order: Upload<ImageOrder<'static>> }
        -> ImageLoaded<'a> { code: u32, object: ModuleOrLibrary, logs: Logs<'a> }

    /// A function of a module.
    GetFunction<'a> = 0xf023 { module: ModuleHandle, name: Name<'a> } -> Described<'a>
    /// A kernel of a library.
    GetKernel<'a> = 0xf024 { library: LibraryHandle, name: Name<'a> } -> Described<'a>
    /// The function of a kernel in the message's context.
    KernelFunction = 0xf025 { kernel: KernelHandle } -> Described<'a>
    /// The module of a library in the message's context.
    LibraryModule = 0xf026 { library: LibraryHandle } -> ModuleLoaded
    /// From the function after `skip` others on, as many as fit.
    ModuleFunctions = 0xf027 { module: ModuleHandle, skip: usize }
        -> FunctionsListed<'a> { total: usize, functions: Rest<'a, Listed<'a>> }
    /// As [`ModuleFunctions`].
    LibraryKernels = 0xf028 { library: LibraryHandle, skip: usize } -> FunctionsListed<'a>
    /// Where a variable lies.
    GetGlobal<'a> = 0xf029 { owner: ModuleOrLibrary, name: Name<'a> } -> GlobalFound { address: u64, bytes: u64 }
    /// `device` is that of a kernel's attribute.
    SetFunctionAttribute = 0xf02a { function: FunctionOrKernel, attribute: u32, value: i32, device: i32 }
    /// The attribute that is asked for, and the others with it. With a device, of a kernel there.
    GetFunctionAttribute = 0xf02f { function: FunctionOrKernel, attribute: u32, device: Option<i32> }
        -> FunctionAttributesFound<'a> { attributes: FunctionAttributes<'a> }
    /// Once more, now that there is a context.
    Describe = 0xf02b { function: FunctionOrKernel } -> Described<'a>

    /// There are logs whatever the code says; the result waits to be fetched.
    Link = 0xf02c { order: Upload<LinkOrder<'static>> } -> Linked<'a> { code: u32, logs: Logs<'a>, bytes: usize }
    /// As much of the lane's last link's result as fits; nothing is left of it after its end.
    LinkResult = 0xf02d { start: usize } -> LinkPart<'a> { part: Raw<'a> }
}
