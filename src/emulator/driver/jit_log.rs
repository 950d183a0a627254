//! The compiler's log buffers that a caller hands over with a module.

use std::ffi::c_uint;

use super::arguments::{In, Out};
use super::failure::Failure;
use crate::driver::abi;

/// Options of the PTX compiler that lead to something: the rest are hints.
#[derive(Clone, Copy, Debug)]
pub(super) struct JitLog {
    error: Option<(Out<u8>, usize)>,
    info: Option<(Out<u8>, usize)>,
    /// Where the size of each log is told: in the options' own values.
    error_size: Option<Out<u64>>,
    info_size: Option<Out<u64>>,
    wall_time: Option<Out<f32>>,
    /// Registers of a thread at most (`CU_JIT_MAX_REGISTERS`).
    pub(super) max_registers: Option<u32>,
}

impl JitLog {
    /// Reads the options.
    pub(super) fn of(
        count: usize,
        options: In<c_uint>,
        values: In<u64>,
    ) -> Result<JitLog, Failure> {
        let mut log = JitLog {
            error: None,
            info: None,
            error_size: None,
            info_size: None,
            wall_time: None,
            max_registers: None,
        };
        let options = options.list(count, "the options")?;
        let given = values.list(count, "the options' values")?;
        let size = |wanted: c_uint| {
            let at = options.iter().position(|&option| option == wanted)?;
            // The size is the value itself, 32 bits of it.
            Some((given[at] as u32 as usize, values.at(at)))
        };
        for (&option, &value) in options.iter().zip(&given) {
            match option {
                abi::CU_JIT_ERROR_LOG_BUFFER => {
                    let (room, at) = size(abi::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES).unzip();
                    log.error = Some((Out::at(value), room.unwrap_or(0)));
                    log.error_size = at;
                }
                abi::CU_JIT_INFO_LOG_BUFFER => {
                    let (room, at) = size(abi::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES).unzip();
                    log.info = Some((Out::at(value), room.unwrap_or(0)));
                    log.info_size = at;
                }
                abi::CU_JIT_WALL_TIME => log.wall_time = values.at_option(&options, option),
                abi::CU_JIT_MAX_REGISTERS => {
                    log.max_registers = Some(value as u32).filter(|&most| most > 0)
                }
                other if other >= abi::CU_JIT_NUM_OPTIONS => {
                    return Err(Failure::invalid(format!("no compiler option {other}")));
                }
                _ => {}
            }
        }
        log.write(log.error, log.error_size, "");
        log.write(log.info, log.info_size, "");
        if let Some(time) = log.wall_time {
            time.put_if_wanted(0.0);
        }
        Ok(log)
    }

    /// Tells a refusal.
    pub(super) fn error(&self, failure: &Failure) {
        let text = failure.detail.as_deref().unwrap_or("");
        self.write(self.error, self.error_size, text);
    }

    /// Tells something that is no refusal.
    pub(super) fn info(&self, text: &str) {
        self.write(self.info, self.info_size, text);
    }

    fn write(&self, buffer: Option<(Out<u8>, usize)>, size: Option<Out<u64>>, text: &str) {
        let Some((buffer, room)) = buffer.filter(|(buffer, room)| buffer.is_wanted() && *room > 0)
        else {
            return;
        };
        let len = text.len().min(room - 1);
        buffer.put_list(text.bytes().take(len).chain([0]));
        if let Some(size) = size {
            // Bytes of the log, its NUL aside.
            size.put_if_wanted(len as u64);
        }
    }
}
