//! Arguments of C calls, and the macro that declares entry points.
//!
//! The types here stand in signatures of `unsafe extern "C"` functions and come from nowhere else: that
//! a pointer is null or good is the promise that the caller of the C function makes.

use std::ffi::{CStr, c_char, c_void};

use super::failure::Failure;

/// Where a call writes a result: null, or valid for writing a `T`.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

// Derived, these would ask the same of `T`.
impl<T> Copy for Out<T> {}
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Out<T> {
    /// Writes a result that the caller must have asked for.
    pub(super) fn put(self, value: T, what: &str) -> Result<(), Failure> {
        self.required(what)?;
        self.put_if_wanted(value);
        Ok(())
    }

    /// Writes a result that the caller may leave out with a null pointer.
    pub(super) fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: a pointer that is not null is valid for writing: the caller of the C function says so.
            unsafe { self.0.write(value) };
        }
    }

    /// Refuses a null pointer.
    pub(super) fn required(self, what: &str) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(Failure::null(what));
        }
        Ok(())
    }

    /// True where the caller wants the result.
    pub(super) fn is_wanted(self) -> bool {
        !self.0.is_null()
    }

    /// The place at an address that an option's value holds, under the same promise.
    pub(super) fn at(address: u64) -> Out<T> {
        Out(address as *mut T)
    }

    /// The same place for a result of another type: calls whose type follows from another argument.
    pub(super) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Writes as many results as there are values; the caller's array has room for them.
    pub(super) fn put_list(self, values: impl IntoIterator<Item = T>) {
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: the caller of the C function gives an array with room for all values.
            unsafe { self.0.add(index).write(value) };
        }
    }
}

impl<T: Copy> Out<T> {
    /// What stands where the result goes: calls that read a size and write the size they used.
    pub(super) fn get(self, what: &str) -> Result<T, Failure> {
        self.required(what)?;
        // SAFETY: such an argument is valid for reading as well: the caller of the C function says so.
        Ok(unsafe { self.0.read() })
    }
}

/// What a call reads: null, or valid for reading one `T`, or as many as another argument says.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T> Copy for In<T> {}
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Copy> In<T> {
    /// The value.
    pub(super) fn get(self, what: &str) -> Result<T, Failure> {
        self.optional().ok_or_else(|| Failure::null(what))
    }

    /// The value, unless the pointer is null.
    pub(super) fn optional(self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: a pointer that is not null is valid for reading: the caller of the C function says so.
        Some(unsafe { self.0.read_unaligned() })
    }

    /// An array of `count` values; no array is needed for none.
    pub(super) fn list(self, count: usize, what: &str) -> Result<Vec<T>, Failure> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Failure::null(what));
        }
        // SAFETY: the caller of the C function gives an array of `count` values.
        Ok((0..count)
            .map(|index| unsafe { self.0.add(index).read_unaligned() })
            .collect())
    }

    /// The place of an element, for calls that write results into the array they read.
    pub(super) fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index).cast_mut())
    }

    /// The place of the value of an option, by the list of options.
    pub(super) fn at_option<U>(self, options: &[u32], wanted: u32) -> Option<Out<U>> {
        let index = options.iter().position(|&option| option == wanted)?;
        Some(self.at(index).cast())
    }

    /// The pointer itself.
    pub(super) fn raw(self) -> *const T {
        self.0
    }

    /// An argument that a structure holds, under the same promise.
    pub(super) fn of(pointer: *const T) -> In<T> {
        In(pointer)
    }
}

/// A name: null, or NUL-terminated.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Text(*const c_char);

impl Text {
    /// The name.
    pub(super) fn get(&self, what: &str) -> Result<&CStr, Failure> {
        if self.0.is_null() {
            return Err(Failure::null(what));
        }
        // SAFETY: a pointer that is not null leads to NUL-terminated text: the caller of the C function says so.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// An entry point under the name that the library exports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Export {
    pub(super) symbol: &'static str,
    pub(super) address: *const c_void,
    /// The variant whose default stream is the thread's own.
    pub(super) per_thread: *const c_void,
}

// SAFETY: the address is that of a function, which any thread may call.
unsafe impl Sync for Export {}

/// Declares entry points: C functions whose body gives `Result<(), Failure>`, and `EXPORTS`, the list of them.
/// In a body, `CALL` is the name of the C function.
macro_rules! calls {
    ($( $(#[$doc:meta])* $symbol:literal fn $name:ident ( $($arg:ident : $type:ty),* $(,)? ) $body:block )*) => {
        $(
            $(#[$doc])*
            // Some do not need their own name, or hold no statement that can fail.
            #[allow(dead_code, clippy::unnecessary_wraps, clippy::too_many_arguments)]
            pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> crate::driver::CuResult {
                const CALL: &str = super::entry::base_name($symbol);
                super::entry::entry(CALL, || -> Result<(), super::failure::Failure> { $body })
            }
        )*

        /// The entry points of this module.
        pub(super) static EXPORTS: &[super::arguments::Export] = &[
            $( super::arguments::Export {
                symbol: $symbol,
                address: $name as *const std::ffi::c_void,
                per_thread: {
                    #[allow(clippy::too_many_arguments)]
                    unsafe extern "C" fn variant($($arg: $type),*) -> crate::driver::CuResult {
                        // SAFETY: forwarded from the caller.
                        super::streams::per_thread(|| unsafe { $name($($arg),*) })
                    }
                    variant as *const std::ffi::c_void
                },
            } ),*
        ];
    };
}
pub(super) use calls;
