//! The operations that there are, by family. What each asks and answers is said in the family's file in `ops/`.

use super::{Definition, Operation, ops};

/// Opcodes below this are indices into the table.
pub const FIRST_OP: u16 = 0xf000;

macro_rules! index {
    ($($family:ident { $($name:ident)* })*) => {
        /// An operation of the protocol's own: what a message above [`FIRST_OP`] asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Op {
            $($(
                #[doc = concat!("[`", stringify!($name), "`](super::ops::", stringify!($name), ")")]
                $name = codes::$name,
            )*)*
        }

        #[allow(non_upper_case_globals)]
        mod codes {
            use super::{Operation, ops};

            $($(pub(super) const $name: u16 = <ops::$family::$name as Operation>::CODE;)*)*
        }

        impl Op {
            /// All of them.
            pub const ALL: &[Op] = &[$($(Op::$name,)*)*];

            /// The operation of an opcode on the wire.
            #[inline]
            pub fn from_code(code: u16) -> Option<Op> {
                match code {
                    $($(codes::$name => Some(Op::$name),)*)*
                    _ => None,
                }
            }

            /// As the enum has it: part of the protocol's fingerprint.
            pub fn name(self) -> &'static str {
                match self {
                    $($(Op::$name => stringify!($name),)*)*
                }
            }

            /// What its messages look like.
            pub fn definition(self) -> Definition {
                match self {
                    $($(Op::$name => Definition::of::<ops::$family::$name>(),)*)*
                }
            }
        }
    };
}

index! {
    context {
        Start
        ContextRetain ContextRelease ContextReset ContextSetFlags ContextCreate ContextDestroy ContextId TpcMap
        Synchronize SynchronizeStream Mark TakeError
    }
    module {
        ImagePart ModuleLoad LibraryLoad ImageLoad
        GetFunction GetKernel KernelFunction LibraryModule ModuleFunctions LibraryKernels GetGlobal
        GetFunctionAttribute SetFunctionAttribute Describe
        Link LinkResult
    }
    launch { Launch ClusterOccupancy HostCallback NextCallback }
    memory { Alloc Free FreeAsync UseAhead FreeUnused MemInfo HostMap HostUnmap HostDrop HostGrants GrowStaging NextOutput }
    copy { CopyInline CopyFromStaging CopyToStaging CopyAsync CopySync Copy3dAsync Copy3dSync }
    vmm { Reserve Unreserve Create Release Map Unmap SetAccess GetAccess Granularity Properties Retain }
    texture { ImageObjectCreate ImageObjectDestroy }
    capture {
        CaptureBegin CaptureBeginToGraph CaptureEnd CaptureStatus CaptureInfo CaptureUpdate CaptureProbe WaitForAll
    }
    graph {
        GraphDestroy GraphClone GraphList GraphDependencies GraphFindInClone GraphChild GraphKeep
        NodeAdd NodeSet NodeGet NodeType NodeDestroy NodeAttribute
        ExecCreate ExecUpdate ExecNodeSet
        UserObjectCreate UserObjectCount ConditionalHandle
    }
    ipc {
        EventCreate SharedRecord SharedWait SharedQuery EventExport EventImport
        Export Import CloseImport PhysicalExport PhysicalImport
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_functions_share_the_opcodes_without_overlap() {
        assert!(crate::table::functions().len() < usize::from(FIRST_OP));
        assert_eq!(Op::from_code(Op::Launch as u16), Some(Op::Launch));
        assert_eq!(Op::from_code(0xffff), None);
        assert!(Op::ALL.iter().all(|op| *op as u16 >= FIRST_OP && Op::from_code(*op as u16) == Some(*op)));
    }
}
