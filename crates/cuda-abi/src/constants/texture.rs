//! Arrays, textures and surfaces.

numbers! {
    /// What the elements of an array are.
    array_format: u32 {
        UNSIGNED_INT8 = 0x01,
        UNSIGNED_INT16 = 0x02,
        UNSIGNED_INT32 = 0x03,
        SIGNED_INT8 = 0x08,
        SIGNED_INT16 = 0x09,
        SIGNED_INT32 = 0x0a,
        HALF = 0x10,
        FLOAT = 0x20,
    }
    /// Flags of arrays.
    array_flag: u32 {
        LAYERED = 1,
        SURFACE_LDST = 2,
        CUBEMAP = 4,
        TEXTURE_GATHER = 8,
    }
    /// What a texture or surface is of.
    resource_type: u32 {
        ARRAY = 0,
        MIPMAPPED_ARRAY = 1,
        LINEAR = 2,
        PITCH2D = 3,
    }
    /// What a texture answers outside of its edges.
    address_mode: u32 {
        WRAP = 0,
        CLAMP = 1,
        MIRROR = 2,
        BORDER = 3,
    }
    /// How a texture answers between elements.
    filter_mode: u32 {
        POINT = 0,
        LINEAR = 1,
    }
    /// Flags of textures.
    texture_flag: u32 {
        READ_AS_INTEGER = 1,
        NORMALIZED_COORDINATES = 2,
        SRGB = 16,
    }
    /// Flags of binding an array to a texture reference.
    texture_reference: u32 {
        OVERRIDE_FORMAT = 1,
    }
}
