//! Status codes, the last error of a thread, and the guard that every entry runs under.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function returns: `NEAP_STATUS_OK`, or why not. The sentence is in `neap_last_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NeapStatus {
    /// Done.
    Ok = 0,
    /// An argument is null, too small, not UTF-8 or out of range.
    InvalidArgument = 1,
    /// The device cannot be had, or a driver call failed.
    Device = 2,
    /// The model folder cannot be used.
    Model = 3,
    /// The engine cannot be started or cannot take the request.
    Engine = 4,
    /// This build lacks the feature.
    Unsupported = 5,
    /// A bug in neap: a panic was caught. The handle must only be closed.
    Internal = 6,
}

/// A status and its sentence.
pub(super) struct Failure {
    pub status: NeapStatus,
    pub sentence: String,
}

impl Failure {
    pub fn new(status: NeapStatus, sentence: impl ToString) -> Failure {
        Failure {
            status,
            sentence: sentence.to_string(),
        }
    }

    pub fn argument(sentence: impl ToString) -> Failure {
        Failure::new(NeapStatus::InvalidArgument, sentence)
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

fn remember(sentence: &str) {
    let text = CString::new(sentence.replace('\0', " ")).unwrap_or_default();
    // During thread exit the slot may be gone; then nobody can ask for it either.
    let _ = LAST_ERROR.try_with(|slot| {
        if let Ok(mut slot) = slot.try_borrow_mut() {
            *slot = text;
        }
    });
}

/// Runs one entry: its failure becomes a status and the thread's last error, and so does a panic.
///
/// A panic may leave the handle's state half changed; the status says that it must only be closed.
pub(super) fn entry(body: impl FnOnce() -> Result<(), Failure>) -> NeapStatus {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => NeapStatus::Ok,
        Ok(Err(failure)) => {
            remember(&failure.sentence);
            failure.status
        }
        Err(payload) => {
            let said = payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            // A payload whose own drop panics must not unwind into C.
            std::mem::forget(payload);
            remember(&format!(
                "neap has a bug ({said}); close this handle and report it"
            ));
            NeapStatus::Internal
        }
    }
}

/// The sentence of the last failed call of this thread; empty when none has failed.
///
/// The text belongs to neap and stays valid until the next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn neap_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|slot| slot.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// neap's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn neap_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::{Failure, NeapStatus, entry, neap_last_error, neap_version};

    fn last_error() -> String {
        // SAFETY: neap_last_error returns a NUL-terminated text that lives until the next failed call.
        unsafe { CStr::from_ptr(neap_last_error()) }
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }

    #[test]
    fn failures_and_panics_become_statuses_with_a_sentence() {
        assert_eq!(last_error(), "");
        assert_eq!(entry(|| Ok(())), NeapStatus::Ok);
        assert_eq!(
            entry(|| Err(Failure::argument("a\0b"))),
            NeapStatus::InvalidArgument
        );
        assert_eq!(last_error(), "a b");
        assert_eq!(entry(|| panic!("at {}", 7)), NeapStatus::Internal);
        assert!(last_error().contains("at 7"));
        let other = std::thread::spawn(last_error)
            .join()
            .expect("the thread ends");
        assert_eq!(other, "", "another thread has its own last error");
    }

    #[test]
    fn the_version_is_the_packages() {
        // SAFETY: a static NUL-terminated text.
        let version = unsafe { CStr::from_ptr(neap_version()) };
        assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }
}
