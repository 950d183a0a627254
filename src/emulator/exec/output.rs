//! Where the text goes that kernels print.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Where `printf` of kernels goes when their launch has ended.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Output {
    /// Standard output.
    #[default]
    Stdout,
    /// Bytes to look at later.
    Buffer(Arc<Mutex<Vec<u8>>>),
}

impl Output {
    /// Passes on what a launch printed.
    pub(super) fn write(&self, printed: &Mutex<Vec<u8>>) {
        let printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.is_empty() {
            return;
        }
        match self {
            Output::Stdout => {
                let mut stdout = std::io::stdout().lock();
                // A closed standard output must not stop a launch.
                let _ = stdout.write_all(&printed).and_then(|()| stdout.flush());
            }
            Output::Buffer(buffer) => buffer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend_from_slice(&printed),
        }
    }
}
