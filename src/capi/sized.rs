//! Structs that begin with their own size: what an older or newer caller compiled is read and written as far as
//! both sides know it. And the checked reading of C pointers.

use std::ffi::{CStr, c_char};

use bytemuck::Pod;

use super::status::Failure;

/// A `repr(C)` struct whose first field is `struct_size: usize`, set by the caller to `sizeof` before the call.
///
/// # Safety
/// The first field must be that `usize`.
pub(super) unsafe trait Sized: Pod {
    /// The struct's C name, for messages.
    const NAME: &'static str;
    /// The size of the struct in the first version that had it: what every caller has at least.
    const FIRST_BYTES: usize;
}

fn stated_bytes<T: Sized>(pointer: *const T) -> Result<usize, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!(
            "a pointer to {} is null",
            T::NAME
        )));
    }
    // SAFETY: the caller of the entry passes a pointer to a T that begins with its size.
    let bytes = unsafe { pointer.cast::<usize>().read_unaligned() };
    if bytes < T::FIRST_BYTES {
        return Err(Failure::argument(format!(
            "{}.struct_size is {bytes}, expected sizeof({0}) = {1}; set it before the call",
            T::NAME,
            size_of::<T>()
        )));
    }
    Ok(bytes)
}

/// Reads a caller's struct; fields that the caller does not know keep the value they have in `defaults`.
///
/// # Safety
/// `pointer` is null or points to as many readable bytes as its `struct_size` says.
pub(super) unsafe fn read<T: Sized>(pointer: *const T, mut defaults: T) -> Result<T, Failure> {
    let bytes = stated_bytes(pointer)?.min(size_of::<T>());
    // SAFETY: the caller vouches for `struct_size` bytes, and `bytes` is at most that.
    let given = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), bytes) };
    bytemuck::bytes_of_mut(&mut defaults)[..bytes].copy_from_slice(given);
    Ok(defaults)
}

/// Writes a struct to the caller, but no more than the caller said there is room for; `struct_size` stays the caller's.
///
/// # Safety
/// `pointer` is null or points to as many writable bytes as its `struct_size` says.
pub(super) unsafe fn write<T: Sized>(pointer: *mut T, value: &T) -> Result<(), Failure> {
    let bytes = stated_bytes(pointer.cast_const())?.min(size_of::<T>());
    let skip = size_of::<usize>();
    let source = &bytemuck::bytes_of(value)[skip..bytes];
    // SAFETY: the caller vouches for `struct_size` bytes, and `skip < bytes <= struct_size`.
    let target = unsafe { pointer.cast::<u8>().add(skip) };
    // SAFETY: as above; the value is a local of this library and cannot overlap the caller's struct.
    unsafe { target.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
    Ok(())
}

/// A NUL-terminated UTF-8 argument.
///
/// # Safety
/// `pointer` is null or points to a NUL-terminated text that outlives `'a`.
pub(super) unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is null; pass a text")));
    }
    // SAFETY: not null, and the caller vouches for the terminator.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|error| Failure::argument(format!("{name} is not UTF-8 ({error})")))
}

/// An array argument; null is accepted for no elements.
///
/// # Safety
/// `pointer` is null or points to `count` readable elements that outlive `'a`.
pub(super) unsafe fn slice<'a, T>(
    name: &str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(format!(
            "{name} is null or misaligned, but its count is {count}"
        )));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::argument(format!(
            "{name} has an impossible count, {count}"
        )));
    }
    // SAFETY: not null, aligned, of possible size, and the caller vouches for the elements.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// The place where a result goes.
///
/// # Safety
/// `pointer` is null or points to a writable T that nothing else uses during the call.
pub(super) unsafe fn out<'a, T>(name: &str, pointer: *mut T) -> Result<&'a mut T, Failure> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(format!(
            "{name} is null or misaligned; pass the address of a variable"
        )));
    }
    // SAFETY: not null, aligned, and the caller vouches for the rest.
    Ok(unsafe { &mut *pointer })
}

#[cfg(test)]
mod tests {
    use bytemuck::{Pod, Zeroable};

    use super::{Sized, read, write};

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
    #[repr(C)]
    struct Options {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: the first field is the size.
    unsafe impl Sized for Options {
        const NAME: &'static str = "Options";
        const FIRST_BYTES: usize = 16;
    }

    #[test]
    fn an_older_callers_struct_keeps_the_defaults_of_new_fields_and_is_not_overrun() {
        let defaults = Options {
            struct_size: 24,
            old: 1,
            new: 2,
        };
        let mut older = Options {
            struct_size: 16,
            old: 7,
            new: 99,
        };
        // SAFETY: the struct has at least the bytes it states.
        let seen = unsafe { read(&older, defaults) }
            .ok()
            .expect("the size is plausible");
        assert_eq!((seen.old, seen.new), (7, 2));
        // SAFETY: as above.
        unsafe {
            write(
                &mut older,
                &Options {
                    struct_size: 24,
                    old: 5,
                    new: 6,
                },
            )
        }
        .ok()
        .expect("the size is plausible");
        assert_eq!(
            older,
            Options {
                struct_size: 16,
                old: 5,
                new: 99
            }
        );
    }

    #[test]
    fn a_size_that_was_never_set_is_refused() {
        let unset = Options {
            struct_size: 0,
            old: 7,
            new: 9,
        };
        // SAFETY: the struct is whole.
        assert!(unsafe { read(&unset, unset) }.is_err());
        // SAFETY: null is answered, not read.
        assert!(unsafe { read(std::ptr::null(), unset) }.is_err());
    }
}
