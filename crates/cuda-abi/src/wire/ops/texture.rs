//! Texture and surface objects.

use crate::types::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
use crate::wire::definition::operations;

operations! {
    /// A surface has only the resource.
    ImageObjectCreate = 0xf070 {
        is_surface: bool,
        resource: CUDA_RESOURCE_DESC,
        texture: CUDA_TEXTURE_DESC,
        view: Option<CUDA_RESOURCE_VIEW_DESC>,
    } -> ImageObjectCreated { object: u64 }
    /// `cuTexObjectDestroy`, or `cuSurfObjectDestroy`.
    ImageObjectDestroy = 0xf071 { is_surface: bool, object: u64 }
}
