//! The border to C: what a caller's pointers become before any function of ours sees them.
//!
//! A C API gives pointers with a promise: each is NULL or good for what its documentation says. The exports, which are
//! generated from a table of the API, turn each pointer into one of the types here and call a safe function with it. So
//! `unsafe` stands in one place, the `from_raw` of a type, and what is behind the border can neither read past an
//! array nor keep a pointer beyond the call.
//!
//! NULL stays part of the types, because APIs differ in *when* they refuse it: before or after they look at a device
//! or a context. A function that uses a pointer gets the API's code for NULL (`NULL`, of CUDA unless another is named) as the
//! error. Nothing is taken to be aligned: programs pass fields of packed structures.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use crate::error::CUDA_ERROR_INVALID_VALUE;

/// A place of the caller's for one value.
pub struct Out<'a, T, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    place: *mut T,
    call: PhantomData<&'a mut T>,
}

/// One value of the caller's.
pub struct In<'a, T, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    place: *const T,
    call: PhantomData<&'a T>,
}

/// A value of the caller's that is read and replaced.
pub struct InOut<'a, T, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    place: *mut T,
    call: PhantomData<&'a mut T>,
}

/// An array of the caller's.
pub struct InSlice<'a, T, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    first: *const T,
    count: usize,
    call: PhantomData<&'a [T]>,
}

/// Room of the caller's for an array.
pub struct OutSlice<'a, T, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    first: *mut T,
    room: usize,
    call: PhantomData<&'a mut [T]>,
}

/// A NUL-terminated string of the caller's.
pub struct Str<'a, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    first: *const c_char,
    call: PhantomData<&'a CStr>,
}

/// A place whose type an argument of the call says.
pub struct Untyped<'a, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    place: *mut std::ffi::c_void,
    call: PhantomData<&'a mut u8>,
}

/// A struct of the caller's whose first word says which of its versions it is.
pub struct Versioned<'a, T, const NULL: u32 = CUDA_ERROR_INVALID_VALUE> {
    place: *mut T,
    call: PhantomData<&'a mut T>,
}

/// A number of the width that an attribute has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// One byte, as a truth value of C++.
    Byte(u8),
    /// An `int` or `unsigned int`.
    Int(u32),
    /// A size, an address or a handle.
    Word(u64),
}

/// What the types have in common. They are as freely copied as the pointers that they were made from.
macro_rules! pointers {
    ($($name:ident<$($type:ident)?> $field:ident)*) => { $(
        impl<$($type,)? const NULL: u32> Clone for $name<'_, $($type,)? NULL> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<$($type,)? const NULL: u32> Copy for $name<'_, $($type,)? NULL> {}

        impl<$($type,)? const NULL: u32> $name<'_, $($type,)? NULL> {
            /// Whether the caller gave no pointer.
            pub fn is_null(&self) -> bool {
                self.$field.is_null()
            }

            /// Refuses NULL before anything is done for the call.
            ///
            /// # Errors
            /// `NULL`, where the caller gave no pointer.
            pub fn required(&self) -> Result<(), u32> {
                if self.is_null() { Err(NULL) } else { Ok(()) }
            }
        }
    )* };
}

pointers! { Out<T> place In<T> place InOut<T> place InSlice<T> first OutSlice<T> first Str<> first Untyped<> place
Versioned<T> place }

impl<'a, T, const NULL: u32> Out<'a, T, NULL> {
    /// # Safety
    /// `place` is NULL or writable for one `T` during the call.
    pub unsafe fn from_raw(place: *mut T) -> Self {
        Self { place, call: PhantomData }
    }

    /// A place of our own, for one function that calls another.
    pub fn to(value: &'a mut T) -> Self {
        Self { place: value, call: PhantomData }
    }

    /// No place at all.
    pub fn nowhere() -> Self {
        Self { place: std::ptr::null_mut(), call: PhantomData }
    }

    /// Writes an output that the API requires.
    ///
    /// # Errors
    /// `NULL`, where there is no place for it.
    pub fn put(self, value: T) -> Result<(), u32> {
        self.required()?;
        // SAFETY: not NULL, and by the promise of `from_raw` writable for one `T`.
        unsafe { self.place.write_unaligned(value) };
        Ok(())
    }

    /// Writes an output that the caller need not want.
    pub fn put_if(self, value: T) {
        let _ = self.put(value);
    }
}

impl<'a, T: Copy, const NULL: u32> In<'a, T, NULL> {
    /// # Safety
    /// `place` is NULL or holds a `T` during the call.
    pub unsafe fn from_raw(place: *const T) -> Self {
        Self { place, call: PhantomData }
    }

    /// A value of our own, for one function that calls another.
    pub fn of(value: &'a T) -> Self {
        Self { place: value, call: PhantomData }
    }

    /// Reads an input that the API requires.
    ///
    /// # Errors
    /// `NULL`, where there is none.
    pub fn take(self) -> Result<T, u32> {
        self.get().ok_or(NULL)
    }

    /// Reads an input that need not be there.
    pub fn get(self) -> Option<T> {
        // SAFETY: not NULL, and by the promise of `from_raw` a `T`.
        (!self.is_null()).then(|| unsafe { self.place.read_unaligned() })
    }
}

impl<'a, T: Copy, const NULL: u32> InOut<'a, T, NULL> {
    /// # Safety
    /// `place` is NULL, or holds a `T` and is writable during the call.
    pub unsafe fn from_raw(place: *mut T) -> Self {
        Self { place, call: PhantomData }
    }

    /// A value of our own, for one function that calls another.
    pub fn with(value: &'a mut T) -> Self {
        Self { place: value, call: PhantomData }
    }

    /// Reads the value.
    ///
    /// # Errors
    /// `NULL`, where there is none.
    pub fn take(self) -> Result<T, u32> {
        In::<T, NULL> { place: self.place, call: PhantomData }.take()
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// `NULL`, where there is none.
    pub fn put(self, value: T) -> Result<(), u32> {
        self.as_out().put(value)
    }

    /// The place alone.
    pub fn as_out(self) -> Out<'a, T, NULL> {
        Out { place: self.place, call: PhantomData }
    }
}

impl<'a, T: Copy, const NULL: u32> InSlice<'a, T, NULL> {
    /// # Safety
    /// `first` is NULL or the first of `count` values during the call.
    pub unsafe fn from_raw(first: *const T, count: u64) -> Self {
        Self { first, count: usize::try_from(count).unwrap_or(usize::MAX), call: PhantomData }
    }

    /// Values of our own, for one function that calls another.
    pub fn of(values: &'a [T]) -> Self {
        Self { first: values.as_ptr(), count: values.len(), call: PhantomData }
    }

    /// No array: NULL and nothing in it.
    pub fn none() -> Self {
        Self { first: std::ptr::null(), count: 0, call: PhantomData }
    }

    /// The same array, of which no more than so many values are looked at.
    pub fn at_most(self, count: usize) -> Self {
        Self { count: self.count.min(count), ..self }
    }

    /// How many values the caller says there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the caller says that there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Reads one of the values.
    ///
    /// # Errors
    /// `NULL`, where there is no array, or it is shorter.
    pub fn at(&self, index: usize) -> Result<T, u32> {
        if self.is_null() || index >= self.count {
            return Err(NULL);
        }
        // SAFETY: not NULL, and inside of what the promise of `from_raw` covers.
        Ok(unsafe { self.first.add(index).read_unaligned() })
    }

    /// Reads all values. NULL is an empty array if the count is zero.
    ///
    /// # Errors
    /// `NULL`, where values are announced and none are given.
    pub fn list(&self) -> Result<Vec<T>, u32> {
        (0..self.count).map(|index| self.at(index)).collect()
    }
}

impl<'a, T: Copy, const NULL: u32> OutSlice<'a, T, NULL> {
    /// # Safety
    /// `first` is NULL or writable for `room` values during the call.
    pub unsafe fn from_raw(first: *mut T, room: u64) -> Self {
        Self { first, room: usize::try_from(room).unwrap_or(usize::MAX), call: PhantomData }
    }

    /// No room: NULL.
    pub fn nowhere() -> Self {
        Self { first: std::ptr::null_mut(), room: 0, call: PhantomData }
    }

    /// How many values the caller has room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Writes one of the values.
    ///
    /// # Errors
    /// `NULL`, where there is no room for it.
    pub fn put_at(&self, index: usize, value: T) -> Result<(), u32> {
        if self.is_null() || index >= self.room {
            return Err(NULL);
        }
        // SAFETY: not NULL, and inside of what the promise of `from_raw` covers.
        unsafe { self.first.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Writes as many values as there is room for, and says how many.
    ///
    /// # Errors
    /// `NULL`, where there should be room and is none.
    pub fn put_list(&self, values: &[T]) -> Result<usize, u32> {
        let count = self.room.min(values.len());
        for (index, value) in values[..count].iter().enumerate() {
            self.put_at(index, *value)?;
        }
        Ok(count)
    }
}

impl<const NULL: u32> OutSlice<'_, c_char, NULL> {
    /// Writes text and its NUL, cut if need be.
    ///
    /// # Errors
    /// `NULL`, where there is no room, not even for the NUL.
    pub fn put_text(&self, text: &[u8]) -> Result<(), u32> {
        self.required()?;
        let count = text.len().min(self.room.checked_sub(1).ok_or(NULL)?);
        for (index, byte) in text[..count].iter().chain(&[0]).enumerate() {
            self.put_at(index, *byte as c_char)?;
        }
        Ok(())
    }
}

impl<'a, const NULL: u32> Str<'a, NULL> {
    /// # Safety
    /// `first` is NULL or a NUL-terminated string during the call.
    pub unsafe fn from_raw(first: *const c_char) -> Self {
        Self { first, call: PhantomData }
    }

    /// A string of our own, for one function that calls another.
    pub fn of(text: &'a CStr) -> Self {
        Self { first: text.as_ptr(), call: PhantomData }
    }

    /// The string.
    ///
    /// # Errors
    /// `NULL`, where there is none.
    pub fn text(self) -> Result<&'a CStr, u32> {
        self.get().ok_or(NULL)
    }

    /// A string that need not be there.
    pub fn get(self) -> Option<&'a CStr> {
        // SAFETY: not NULL, and by the promise of `from_raw` NUL-terminated and there during the call.
        (!self.is_null()).then(|| unsafe { CStr::from_ptr(self.first) })
    }
}

impl<'a, const NULL: u32> Untyped<'a, NULL> {
    /// # Safety
    /// `place` is NULL, or during the call good for a value of the type that another argument says.
    pub unsafe fn from_raw(place: *mut std::ffi::c_void) -> Self {
        Self { place, call: PhantomData }
    }

    /// The place as one that is written.
    ///
    /// # Safety
    /// `T` is what that argument says.
    pub unsafe fn out<T>(self) -> Out<'a, T, NULL> {
        Out { place: self.place.cast(), call: PhantomData }
    }

    /// The place as room for an array.
    ///
    /// # Safety
    /// `T` is what that argument says, and there is room for that many.
    pub unsafe fn slice<T: Copy>(self, room: usize) -> OutSlice<'a, T, NULL> {
        OutSlice { first: self.place.cast(), room, call: PhantomData }
    }

    /// Writes a number of the width that the argument says.
    ///
    /// # Safety
    /// The place is for a number of this width.
    ///
    /// # Errors
    /// `NULL`, where there is no place for it.
    pub unsafe fn put(self, number: Number) -> Result<(), u32> {
        // SAFETY: passed on.
        unsafe {
            match number {
                Number::Byte(value) => self.out().put(value),
                Number::Int(value) => self.out().put(value),
                Number::Word(value) => self.out().put(value),
            }
        }
    }

    /// The place as an array that is read.
    ///
    /// # Safety
    /// `T` is what that argument says, and there are that many, or no more are read than there are.
    pub unsafe fn array<T: Copy>(self, count: usize) -> InSlice<'a, T, NULL> {
        InSlice { first: self.place.cast_const().cast(), count, call: PhantomData }
    }

    /// The place as one that is read.
    ///
    /// # Safety
    /// `T` is what that argument says.
    pub unsafe fn value<T: Copy>(self) -> In<'a, T, NULL> {
        In { place: self.place.cast_const().cast(), call: PhantomData }
    }
}

impl<'a, T: Copy, const NULL: u32> Versioned<'a, T, NULL> {
    /// # Safety
    /// `place` is NULL or good, during the call, for the struct that its first word says.
    pub unsafe fn from_raw(place: *mut T) -> Self {
        Self { place, call: PhantomData }
    }

    /// The struct, if its first word is the one of `T`.
    ///
    /// # Errors
    /// `NULL`, where there is none; `otherwise`, where it is another.
    pub fn of_version(self, version: u32, otherwise: u32) -> Result<InOut<'a, T, NULL>, u32> {
        self.required()?;
        // SAFETY: not NULL, and whatever struct it is, it begins with a word.
        let found = unsafe { self.place.cast::<u32>().read_unaligned() };
        let known = InOut { place: self.place, call: PhantomData };
        if found == version { Ok(known) } else { Err(otherwise) }
    }
}

/// How long an array is, as its caller says; less than nothing is nothing.
pub fn count<T: TryInto<u64>>(count: T) -> u64 {
    count.try_into().unwrap_or(0)
}

/// How long an array is whose room another pointer holds; NULL is no room.
///
/// # Safety
/// `place` is NULL or holds a value.
pub unsafe fn room<T: Copy + TryInto<u64>>(place: *const T) -> u64 {
    // SAFETY: passed on.
    unsafe { In::<T>::from_raw(place) }.get().map_or(0, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misaligned address inside of an array.
    fn odd<T>(bytes: &mut [u8; 64]) -> *mut T {
        bytes.as_mut_ptr().wrapping_add(1).cast()
    }

    #[test]
    fn null_is_refused_when_it_is_used() {
        assert_eq!(Out::<u32>::nowhere().put(1), Err(CUDA_ERROR_INVALID_VALUE));
        Out::<u32>::nowhere().put_if(1);
        // SAFETY: NULL.
        unsafe {
            assert_eq!(Out::<u32, 2>::from_raw(std::ptr::null_mut()).put(1), Err(2));
            assert_eq!(In::<u32>::from_raw(std::ptr::null()).take(), Err(1));
            assert_eq!(InSlice::<u32>::from_raw(std::ptr::null(), 0).list(), Ok(Vec::new()));
            assert_eq!(InSlice::<u32>::from_raw(std::ptr::null(), 3).list(), Err(1));
            assert_eq!(OutSlice::<u32>::from_raw(std::ptr::null_mut(), 3).put_list(&[1]), Err(1));
            assert_eq!(OutSlice::<u32>::from_raw(std::ptr::null_mut(), 0).put_list(&[1]), Ok(0));
            assert!(Str::<2>::from_raw(std::ptr::null()).text().is_err_and(|code| code == 2));
            assert_eq!(room::<usize>(std::ptr::null()), 0);
        }
    }

    #[test]
    fn misaligned_places_are_good() {
        let mut bytes = [0; 64];
        let place = odd::<u64>(&mut bytes);
        // SAFETY: inside of the array.
        unsafe {
            assert_eq!(Out::<u64>::from_raw(place).put(0x1122_3344_5566_7788), Ok(()));
            assert_eq!(In::<u64>::from_raw(place).take(), Ok(0x1122_3344_5566_7788));
            assert_eq!(OutSlice::<u64>::from_raw(place, 2).put_list(&[5, 6, 7]), Ok(2));
            assert_eq!(InSlice::<u64>::from_raw(place, 3).list(), Ok(vec![5, 6, 0]));
            assert_eq!(room(place), 5);
        }
    }

    #[test]
    fn a_struct_of_another_version_is_not_looked_into() {
        let mut words = [7u32, 8];
        let place = words.as_mut_ptr().cast::<[u32; 2]>();
        // SAFETY: a local.
        let versioned = unsafe { Versioned::<[u32; 2], 2>::from_raw(place) };
        assert_eq!(versioned.of_version(7, 25).and_then(|found| found.take()), Ok([7, 8]));
        assert!(versioned.of_version(6, 25).is_err_and(|code| code == 25));
    }

    #[test]
    fn text_is_cut_with_its_end_in_place() {
        let mut bytes = [b'x' as c_char; 8];
        // SAFETY: as long as it is said to be.
        unsafe {
            assert_eq!(OutSlice::<c_char>::from_raw(bytes.as_mut_ptr(), 4).put_text(b"abcdef"), Ok(()));
            assert_eq!(Str::<1>::from_raw(bytes.as_ptr()).text().map(CStr::to_bytes), Ok(&b"abc"[..]));
            assert_eq!(OutSlice::<c_char>::from_raw(bytes.as_mut_ptr(), 0).put_text(b"a"), Err(1));
        }
        assert_eq!(bytes[4], b'x' as c_char);
    }
}
