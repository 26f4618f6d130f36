//! Reading textures: addressing, filtering, conversion.

use half::f16;
use ptx_passes::texture::{GATHER, GRADIENT, Geometry, INTEGER, LEVEL, OF_SURFACE, QUERIES, RAW, TEXTURE_WORDS};

use super::context::{Context, RawFault, fail};
use super::fault::FaultKind;
use super::image::{self, Beside, Channel, Image, SURFACES, TEXTURES, Texture};

/// Four channels, as floats or as the bits of integers.
type Texel = [u32; 4];

/// Ends the fiber: there is no such object.
unsafe fn no_object(context: *mut Context, number: u64) -> ! {
    let message = String::from("not a texture or surface object");
    // SAFETY: on the running fiber, with nothing alive that needs dropping.
    unsafe { fail(context, RawFault { kind: FaultKind::IllegalAddress, address: Some(number), message }) }
}

/// # Safety
/// On the fiber of `context`; there are `TEXTURE_WORDS` words.
pub(crate) unsafe fn read(context: *mut Context, code: u64, words: *mut u64) {
    // SAFETY: as promised.
    let inputs = unsafe { *words.cast::<[u64; TEXTURE_WORDS]>() };
    let Some(texture) = image::texture(inputs[0]) else {
        // SAFETY: nothing is held yet.
        unsafe { no_object(context, inputs[0]) }
    };
    // SAFETY: held by this thread, which asks for no other one before this one is read.
    let sampler = Sampler { texture: unsafe { &*texture }, code };
    let texel = sampler.quick(&inputs).unwrap_or_else(|| sampler.read(&inputs));
    for (at, channel) in texel.into_iter().enumerate() {
        // SAFETY: as promised.
        unsafe { *words.add(at) = u64::from(channel) };
    }
}

struct Sampler<'t> {
    texture: &'t Texture,
    code: u64,
}

impl Sampler<'_> {
    /// What most kernels do: one word of a flat image without levels, the nearest one or between four.
    fn quick(&self, inputs: &[u64; TEXTURE_WORDS]) -> Option<Texel> {
        let texture = self.texture;
        let [image] = &texture.levels[..] else { return None };
        let flat = Geometry::of_number(self.code & 15) == Geometry::D2
            && self.code & (LEVEL | GRADIENT | GATHER | INTEGER) == 0;
        let clamps = |beside: Beside| match beside {
            Beside::Clamp => true,
            Beside::Wrap | Beside::Mirror => !texture.normalized,
            Beside::Border => false,
        };
        let plain = image.channels == 1 && image.channel == Channel::F32;
        if !(flat && plain && clamps(texture.beside[0]) && clamps(texture.beside[1])) {
            return None;
        }
        let [x, y] = [2, 3].map(|at| {
            let value = f32::from_bits(inputs[at] as u32);
            if texture.normalized { value * image.size[at - 2] as f32 } else { value }
        });
        let [width, height] = [image.size[0], image.size[1]].map(|size| i64::from(size) - 1);
        let at = |x: i64, y: i64| {
            let place = image.address(x.clamp(0, width) as u32, y.clamp(0, height) as u32, 0);
            // SAFETY: inside of the image, which is in the window.
            unsafe { (place as *const f32).read_unaligned() }
        };
        let value = if texture.linear {
            let ((x, right), (y, down)) = (split(x), split(y));
            let row = |y: i64| {
                let left = if right < 1.0 { (1.0 - right) * at(x, y) } else { 0.0 };
                if right != 0.0 { left + right * at(x + 1, y) } else { left }
            };
            let up = (1.0 - down) * row(y);
            if down != 0.0 { up + down * row(y + 1) } else { up }
        } else {
            at(below(x.into()), below(y.into()))
        };
        Some([value.to_bits(), 0, 0, 0])
    }

    fn read(&self, inputs: &[u64; TEXTURE_WORDS]) -> Texel {
        let geometry = Geometry::of_number(self.code & 15);
        let layer = inputs[1] as u32;
        let float = |at: usize| f32::from_bits(inputs[at] as u32);
        let level = if self.code & LEVEL != 0 {
            float(5)
        } else if self.code & GRADIENT != 0 {
            self.level_of(geometry, [6, 7, 8].map(float), [9, 10, 11].map(float))
        } else {
            0.0
        };
        if self.code & INTEGER != 0 {
            let coordinates = [2, 3, 4].map(|at| inputs[at] as i32);
            let image = self.texture.levels[0];
            return self.finish(self.fetch(&image, geometry, layer, coordinates.map(i64::from), false));
        }
        let coordinates = [2, 3, 4].map(float);
        let levels = &self.texture.levels;
        let [low, high] = self.texture.level_clamp;
        let level =
            (level + self.texture.level_bias).clamp(low.min(high), high).clamp(0.0, (levels.len() - 1) as f32);
        if self.code & GATHER != 0 {
            return self.gather(&levels[0], geometry, layer, coordinates);
        }
        if levels.len() > 1 && self.texture.linear_levels {
            let (below, part) = (level.floor() as usize, level - level.floor());
            let above = (below + 1).min(levels.len() - 1);
            let [x, y] = [below, above].map(|at| self.sample(&levels[at], geometry, layer, coordinates));
            return self.finish(std::array::from_fn(|at| {
                (f32::from_bits(x[at]) * (1.0 - part) + f32::from_bits(y[at]) * part).to_bits()
            }));
        }
        let nearest = (level + 0.5).floor() as usize;
        self.finish(self.sample(&levels[nearest.min(levels.len() - 1)], geometry, layer, coordinates))
    }

    fn finish(&self, texel: Texel) -> Texel {
        texel
    }

    fn level_of(&self, geometry: Geometry, dx: [f32; 3], dy: [f32; 3]) -> f32 {
        let image = &self.texture.levels[0];
        let length = |d: [f32; 3]| {
            let scale = |at: usize| if self.texture.normalized { image.size[at] as f32 } else { 1.0 };
            (0..geometry.axes()).map(|at| (d[at] * scale(at)).powi(2)).sum::<f32>().sqrt()
        };
        let largest = length(dx).max(length(dy));
        if largest > 0.0 { largest.log2() } else { 0.0 }
    }

    /// Whether results are integers as they lie in memory.
    fn is_raw(&self) -> bool {
        self.code & RAW != 0
    }

    /// A place on a face of a cube: the face, and two coordinates from 0 to 1.
    fn face([x, y, z]: [f32; 3]) -> (u32, [f32; 3]) {
        let [ax, ay, az] = [x.abs(), y.abs(), z.abs()];
        let (face, major, s, t) = if ax >= ay && ax >= az {
            if x >= 0.0 { (0, ax, -z, -y) } else { (1, ax, z, -y) }
        } else if ay >= az {
            if y >= 0.0 { (2, ay, x, z) } else { (3, ay, x, -z) }
        } else if z >= 0.0 {
            (4, az, x, -y)
        } else {
            (5, az, -x, -y)
        };
        let at = |value: f32| if major > 0.0 { (value / major + 1.0) / 2.0 } else { 0.5 };
        (face, [at(s), at(t), 0.0])
    }

    /// In elements of this level, with the layer that is meant.
    fn scaled(&self, image: &Image, geometry: Geometry, layer: u32, coordinates: [f32; 3]) -> (u32, [f32; 3]) {
        let cube = matches!(geometry, Geometry::Cube | Geometry::LayeredCube);
        let (layer, coordinates) = if cube {
            let (face, on_face) = Self::face(coordinates);
            (layer * 6 + face, on_face)
        } else {
            (layer, coordinates)
        };
        if !self.texture.normalized && !cube {
            return (layer, coordinates);
        }
        (layer, std::array::from_fn(|at| coordinates[at] * image.size[at] as f32))
    }

    fn sample(&self, image: &Image, geometry: Geometry, layer: u32, coordinates: [f32; 3]) -> Texel {
        let (layer, coordinates) = self.scaled(image, geometry, layer, coordinates);
        if !self.texture.linear || self.is_raw() && !matches!(image.channel, Channel::F32 | Channel::F16) {
            let place = coordinates.map(|value| below(value.into()));
            return self.fetch(image, geometry, layer, place, self.texture.normalized);
        }
        let axes = match geometry {
            Geometry::Cube | Geometry::LayeredCube => 2,
            _ => geometry.axes(),
        };
        let places = coordinates.map(split);
        let mut sum = [0f32; 4];
        for corner in 0..1 << axes {
            let mut weight = 1.0;
            let mut place = [0i64; 3];
            for axis in 0..axes {
                let (first, part) = places[axis];
                let upper = corner >> axis & 1;
                place[axis] = first + upper as i64;
                weight *= if upper == 1 { part } else { 1.0 - part };
            }
            if weight != 0.0 {
                let texel = self.fetch(image, geometry, layer, place, self.texture.normalized);
                for (sum, channel) in sum.iter_mut().zip(texel) {
                    *sum += weight * f32::from_bits(channel);
                }
            }
        }
        sum.map(f32::to_bits)
    }

    /// The four elements around a place, one channel of each, in the order that the manual says.
    fn gather(&self, image: &Image, geometry: Geometry, layer: u32, coordinates: [f32; 3]) -> Texel {
        let (layer, coordinates) = self.scaled(image, geometry, layer, coordinates);
        let first = coordinates.map(|value| below(f64::from(value) - 0.5));
        let channel = (self.code >> 8 & 3) as usize;
        [[0, 1], [1, 1], [1, 0], [0, 0]].map(|[x, y]| {
            let place = [first[0] + x, first[1] + y, 0];
            self.fetch(image, geometry, layer, place, self.texture.normalized)[channel]
        })
    }

    /// One element, wherever it is.
    fn fetch(&self, image: &Image, geometry: Geometry, layer: u32, place: [i64; 3], wraps: bool) -> Texel {
        let cube = matches!(geometry, Geometry::Cube | Geometry::LayeredCube);
        let axes = if cube { 2 } else { geometry.axes() };
        let mut inside = [0u32; 3];
        for axis in 0..axes {
            let size = i64::from(image.size[axis]);
            let beside = match self.texture.beside[axis] {
                // These two need coordinates that know the size.
                Beside::Wrap | Beside::Mirror if !wraps => Beside::Clamp,
                _ if cube => Beside::Clamp,
                other => other,
            };
            let at = place[axis];
            let outside = at < 0 || at >= size;
            if outside && (beside == Beside::Border || self.texture.plain_memory && axes == 1) {
                return self.outside();
            }
            inside[axis] = match beside {
                Beside::Wrap => at.rem_euclid(size),
                Beside::Mirror => {
                    let turn = at.rem_euclid(2 * size);
                    if turn < size { turn } else { 2 * size - 1 - turn }
                }
                Beside::Clamp | Beside::Border => at.clamp(0, size - 1),
            } as u32;
        }
        if geometry.layered() || cube {
            inside[2] = layer.min(image.size[2] - 1);
        }
        self.convert(image, image.address(inside[0], inside[1], inside[2]))
    }

    /// What lies beside the image: the border's colour, or nothing.
    fn outside(&self) -> Texel {
        let border = self.texture.beside.contains(&Beside::Border);
        match (border, self.is_raw()) {
            (true, false) => self.texture.border.map(f32::to_bits),
            (true, true) => self.texture.border.map(|value| value as i32 as u32),
            (false, _) => [0; 4],
        }
    }

    /// Reads an element. Its address is in the window; a missing page is a fault of the kernel.
    fn convert(&self, image: &Image, address: u64) -> Texel {
        let mut texel = [0; 4];
        for (at, value) in texel.iter_mut().enumerate().take(usize::from(image.channels)) {
            let place = address + at as u64 * image.channel.bytes();
            // SAFETY: inside of the image, which is in the window.
            let bits = unsafe {
                match image.channel.bytes() {
                    1 => u32::from(*(place as *const u8)),
                    2 => u32::from((place as *const u16).read_unaligned()),
                    _ => (place as *const u32).read_unaligned(),
                }
            };
            *value = self.channel(image.channel, bits, at);
        }
        texel
    }

    fn channel(&self, channel: Channel, bits: u32, at: usize) -> u32 {
        let signed = |largest: f32, value: i32| (value as f32 / largest).max(-1.0);
        let raw = self.texture.raw;
        let real = match channel {
            Channel::U8 if raw => return bits,
            Channel::U16 if raw => return bits,
            Channel::S8 if raw => return bits as i8 as i32 as u32,
            Channel::S16 if raw => return bits as i16 as i32 as u32,
            Channel::U32 | Channel::S32 | Channel::F32 => return bits,
            Channel::U8 if self.texture.srgb && at < 3 => linear(bits as f32 / 255.0),
            Channel::U8 => bits as f32 / 255.0,
            Channel::U16 => bits as f32 / 65_535.0,
            Channel::S8 => signed(127.0, i32::from(bits as i8)),
            Channel::S16 => signed(32_767.0, i32::from(bits as i16)),
            Channel::F16 => f16::from_bits(bits as u16).to_f32(),
        };
        real.to_bits()
    }
}

/// The whole number that is not above: `floor`, which is a call where the processor is an old one.
fn below(value: f64) -> i64 {
    let whole = value as i64;
    whole.saturating_sub(i64::from(whole as f64 > value))
}

/// The element before a place, and how far the place is from it to the next one. The hardware has 8 bits for that.
fn split(value: f32) -> (i64, f32) {
    let fixed = below((f64::from(value) - 0.5) * 256.0 + 0.5);
    (fixed >> 8, (fixed & 255) as f32 / 256.0)
}

/// From sRGB to a linear scale.
fn linear(value: f32) -> f32 {
    if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
}

/// `txq` and `suq`. Words: object, level.
///
/// # Safety
/// On the fiber of `context`; there are two words.
pub(crate) unsafe fn query(context: *mut Context, code: u64, words: *mut u64) {
    // SAFETY: as promised; nothing is held when the fiber ends.
    unsafe {
        let (number, level) = (*words, *words.add(1) as usize);
        let found = if code & OF_SURFACE != 0 {
            SURFACES.get(number).map(|image| (*image, 1, false))
        } else {
            TEXTURES.get(number).map(|texture| {
                let last = texture.levels.len() - 1;
                (texture.levels[level.min(last)], last + 1, texture.normalized)
            })
        };
        let Some((image, levels, normalized)) = found else { no_object(context, number) };
        let layers = if image.layered || image.cube { image.size[2] } else { 0 };
        *words = match QUERIES.get((code & 15) as usize).copied().unwrap_or("") {
            "width" => u64::from(image.size[0]),
            "height" => u64::from(image.size[1]),
            "depth" => u64::from(image.size[2]),
            "array_size" => u64::from(layers),
            "num_mipmap_levels" => levels as u64,
            "normalized_coords" => u64::from(normalized),
            _ => 1,
        };
    }
}
