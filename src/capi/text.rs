//! Text to token ids and back for C callers.

use std::ffi::c_char;

use super::engine::NeapEngine;
use super::sized::{out, slice, text};
use super::status::{Failure, NeapStatus, entry};

#[cfg(feature = "text")]
impl NeapEngine {
    fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let tokenizer = self.tokenizer()?;
        tokenizer
            .encode(text)
            .map_err(|error| Failure::new(NeapStatus::Model, error))
    }

    fn decode(&self, ids: &[u32]) -> Result<String, Failure> {
        let tokenizer = self.tokenizer()?;
        tokenizer
            .decode(ids)
            .map_err(|error| Failure::new(NeapStatus::Model, error))
    }
}

#[cfg(not(feature = "text"))]
impl NeapEngine {
    fn encode(&self, _: &str) -> Result<Vec<u32>, Failure> {
        Err(without_text())
    }

    fn decode(&self, _: &[u32]) -> Result<String, Failure> {
        Err(without_text())
    }
}

#[cfg(not(feature = "text"))]
fn without_text() -> Failure {
    Failure::new(
        NeapStatus::Unsupported,
        "this libneap was built without the feature `text`; pass token ids, or build with it",
    )
}

/// Encodes a text with the model's tokenizer, the beginning-of-text token included.
///
/// `count` receives the number of ids whatever `capacity` is; ids are written only when all of them fit, so a
/// first call with `capacity` 0 asks for the size.
///
/// # Safety
/// `engine` is a live engine; `text_utf8` is NUL-terminated; `ids` points to `capacity` elements; `count` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_tokenize(
    engine: *const NeapEngine,
    text_utf8: *const c_char,
    ids: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine or null.
        let engine = unsafe { NeapEngine::borrow(engine) }?;
        // SAFETY: the caller passes a NUL-terminated text or null.
        let given = unsafe { text("text_utf8", text_utf8) }?;
        // SAFETY: the caller passes a writable size or null.
        let count = unsafe { out("count", count) }?;
        let encoded = engine.encode(given)?;
        *count = encoded.len();
        if encoded.len() <= capacity && !ids.is_null() {
            // SAFETY: `ids` has room for `capacity` elements, and no more than that are written.
            unsafe { ids.copy_from_nonoverlapping(encoded.as_ptr(), encoded.len()) };
        }
        Ok(())
    })
}

/// Decodes token ids to UTF-8; special tokens are left out, incomplete characters become U+FFFD.
///
/// `length` receives the number of bytes without the terminator; the text is written, NUL-terminated, only when
/// `capacity` is larger than that.
///
/// # Safety
/// `engine` is a live engine; `ids` points to `count` elements; `text_utf8` to `capacity` bytes; `length` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_detokenize(
    engine: *const NeapEngine,
    ids: *const u32,
    count: usize,
    text_utf8: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine or null.
        let engine = unsafe { NeapEngine::borrow(engine) }?;
        // SAFETY: the caller passes `count` ids.
        let ids = unsafe { slice("ids", ids, count) }?;
        // SAFETY: the caller passes a writable size or null.
        let length = unsafe { out("length", length) }?;
        let decoded = engine.decode(ids)?;
        *length = decoded.len();
        if decoded.len() < capacity && !text_utf8.is_null() {
            // SAFETY: there is room for `capacity` bytes, more than the text has.
            unsafe {
                text_utf8
                    .cast::<u8>()
                    .copy_from_nonoverlapping(decoded.as_ptr(), decoded.len())
            };
            // SAFETY: the terminator's place is below `capacity`.
            unsafe { text_utf8.add(decoded.len()).write(0) };
        }
        Ok(())
    })
}
