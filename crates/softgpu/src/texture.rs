//! Texture and surface objects.

use cuda_abi::constants::{address_mode, array_flag, resource_type, texture_flag};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use ptx_exec::image::{Beside, Image, SURFACES, TEXTURES, Texture};

use super::abi::*;
use super::array::{array, channel, mipmap};
use super::context::current;
use super::handles::{Owned, Table, out};
use super::memory::map::{Place, classify};

static TEXTURE_OBJECTS: Table<Object> = Table::new(32);
static SURFACE_OBJECTS: Table<Object> = Table::new(33);

struct Object {
    owner: u64,
    resource: CUDA_RESOURCE_DESC,
    about: CUDA_TEXTURE_DESC,
    view: CUDA_RESOURCE_VIEW_DESC,
}

impl Owned for Object {
    fn owner(&self) -> u64 {
        self.owner
    }
}

/// What ends with a context. Its numbers are never used again, so kernels cannot reach another's.
pub(crate) fn forget_context(owner: u64) {
    TEXTURE_OBJECTS.forget(owner, |number| TEXTURES.remove(number));
    SURFACE_OBJECTS.forget(owner, |number| SURFACES.remove(number));
}

/// The fields of a struct that is passed as bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn word(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }

    fn real(&self, at: usize) -> f32 {
        f32::from_bits(self.word(at))
    }
}

fn bytes_of<T>(value: &T) -> &[u8] {
    // SAFETY: the structs that are passed here are arrays of plain words, without padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The images of a resource, and whether it is plain memory instead of an array.
fn images(resource: &CUDA_RESOURCE_DESC) -> CudaResult<(Vec<Image>, bool)> {
    let fields = Fields(bytes_of(resource));
    let memory = |size: [u64; 3], pitch: u64| -> CudaResult<Image> {
        let channels = fields.word(20);
        valid(matches!(channels, 1 | 2 | 4))?;
        let channel = channel(fields.word(16))?;
        let (base, element) = (fields.long(8), channel.bytes() * u64::from(channels));
        let row = size[0].checked_mul(element).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        valid(size.iter().all(|side| (1..=1 << 31).contains(side)) && (size[1] == 1 || row <= pitch))?;
        let span = pitch.checked_mul(size[1] - 1).and_then(|rows| rows.checked_add(row));
        let span = span.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        valid(base != 0 && classify(base, span, false)? != Place::Pageable)?;
        Ok(Image {
            base,
            size: size.map(|side| side as u32),
            pitch,
            slice: span,
            channel,
            channels: channels as u8,
            layered: false,
            cube: false,
        })
    };
    Ok(match fields.word(0) {
        resource_type::ARRAY => (vec![array(out(fields.long(8)))?.image], false),
        resource_type::MIPMAPPED_ARRAY => {
            let levels = &mipmap(out(fields.long(8)))?.levels;
            (levels.iter().map(|level| Ok(array(out(*level))?.image)).collect::<CudaResult<_>>()?, false)
        }
        resource_type::LINEAR => {
            let element = channel(fields.word(16))?.bytes() * u64::from(fields.word(20)).max(1);
            (vec![memory([fields.long(24) / element, 1, 1], 0)?], true)
        }
        resource_type::PITCH2D => (vec![memory([fields.long(24), fields.long(32), 1], fields.long(40))?], true),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

pub(crate) fn texture(resource: &CUDA_RESOURCE_DESC, about: &CUDA_TEXTURE_DESC) -> CudaResult<Texture> {
    let (levels, plain_memory) = images(resource)?;
    let fields = Fields(bytes_of(about));
    let beside = |at: usize| {
        Ok(match fields.word(at * 4) {
            address_mode::WRAP => Beside::Wrap,
            address_mode::CLAMP => Beside::Clamp,
            address_mode::MIRROR => Beside::Mirror,
            address_mode::BORDER => Beside::Border,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    };
    let (filter, flags) = (fields.word(12), fields.word(16));
    valid(filter <= 1 && fields.word(24) <= 1)?;
    Ok(Texture {
        levels,
        beside: [beside(0)?, beside(1)?, beside(2)?],
        linear: filter == 1,
        normalized: flags & texture_flag::NORMALIZED_COORDINATES != 0,
        raw: flags & texture_flag::READ_AS_INTEGER != 0,
        srgb: flags & texture_flag::SRGB != 0,
        border: [40, 44, 48, 52].map(|at| fields.real(at)),
        linear_levels: fields.word(24) == 1,
        level_bias: fields.real(28),
        level_clamp: [fields.real(32), fields.real(36)],
        plain_memory,
    })
}

fn cuTexObjectCreate(
    to: Out<CUtexObject>,
    resource: In<CUDA_RESOURCE_DESC>,
    about: In<CUDA_TEXTURE_DESC>,
    view: In<CUDA_RESOURCE_VIEW_DESC>,
) -> CudaResult {
    to.required()?;
    let context = current()?;
    let (resource, about) = (resource.take()?, about.take()?);
    let view = if view.is_null() { CUDA_RESOURCE_VIEW_DESC::default() } else { view.take()? };
    let texture = texture(&resource, &about)?;
    let number = TEXTURE_OBJECTS.insert(Object { owner: context.id(), resource, about, view });
    TEXTURES.insert(number, texture);
    to.put(number)
}

fn cuTexObjectDestroy(number: CUtexObject) -> CudaResult {
    // Work that was submitted may still read through it; an error of that work is for others to hear.
    let _ = current()?.synchronize();
    TEXTURE_OBJECTS.remove(number).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    TEXTURES.remove(number);
    Ok(())
}

fn cuTexObjectGetResourceDesc(to: Out<CUDA_RESOURCE_DESC>, number: CUtexObject) -> CudaResult {
    to.put(TEXTURE_OBJECTS.get(number)?.resource)
}

fn cuTexObjectGetTextureDesc(to: Out<CUDA_TEXTURE_DESC>, number: CUtexObject) -> CudaResult {
    to.put(TEXTURE_OBJECTS.get(number)?.about)
}

fn cuTexObjectGetResourceViewDesc(to: Out<CUDA_RESOURCE_VIEW_DESC>, number: CUtexObject) -> CudaResult {
    to.put(TEXTURE_OBJECTS.get(number)?.view)
}

fn cuSurfObjectCreate(to: Out<CUsurfObject>, resource: In<CUDA_RESOURCE_DESC>) -> CudaResult {
    to.required()?;
    let context = current()?;
    let resource = resource.take()?;
    let fields = Fields(bytes_of(&resource));
    valid(fields.word(0) == resource_type::ARRAY)?;
    let array = array(out(fields.long(8)))?;
    valid(array.about.flags & array_flag::SURFACE_LDST != 0)?;
    let (about, view) = Default::default();
    let number = SURFACE_OBJECTS.insert(Object { owner: context.id(), resource, about, view });
    SURFACES.insert(number, array.image);
    to.put(number)
}

fn cuSurfObjectDestroy(number: CUsurfObject) -> CudaResult {
    // Work that was submitted may still read through it; an error of that work is for others to hear.
    let _ = current()?.synchronize();
    SURFACE_OBJECTS.remove(number).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    SURFACES.remove(number);
    Ok(())
}

fn cuSurfObjectGetResourceDesc(to: Out<CUDA_RESOURCE_DESC>, number: CUsurfObject) -> CudaResult {
    to.put(SURFACE_OBJECTS.get(number)?.resource)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuTexObjectCreate,
        cuTexObjectDestroy,
        cuTexObjectGetResourceDesc,
        cuTexObjectGetTextureDesc,
        cuTexObjectGetResourceViewDesc,
        cuSurfObjectCreate,
        cuSurfObjectDestroy,
        cuSurfObjectGetResourceDesc
    )
}
