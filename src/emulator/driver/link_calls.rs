//! The linker: several PTX modules become one, which module loading takes back.
//!
//! What `cuLinkComplete` gives in place of a cubin is PTX text, NUL-terminated.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};

use super::arguments::{In, Out, Text, calls};
use super::failure::Failure;
use super::image;
use super::jit_log::JitLog;
use super::registry::{self, Kind};
use crate::driver::CuResult;
use crate::driver::abi;
use crate::emulator::ptx::tell_private_names_apart;

/// Begins a linked image whose kernels may use only so many registers.
pub(super) const MAX_REGISTERS: &str = "// maxrregcount ";

/// What stands in for NVIDIA's device run time library.
const DEVICE_RUNTIME: &str = include_str!("device_runtime.ptx");

/// A linker at work.
#[derive(Debug)]
struct Link {
    capability: (u32, u32),
    inputs: Vec<String>,
    output: Option<Vec<u8>>,
    log: JitLog,
}

// SAFETY: the log's places belong to the caller, who must keep them valid until the linker is destroyed, and
// are written only inside calls that name the linker.
unsafe impl Send for Link {}

static LINKS: Mutex<(u64, BTreeMap<u64, Link>)> = Mutex::new((0, BTreeMap::new()));

fn with_link<T>(
    link: u64,
    body: impl FnOnce(&mut Link) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (_, id) =
        registry::decode_parts(link, Kind::Link).ok_or_else(|| Failure::handle("linker"))?;
    let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    body(
        links
            .1
            .get_mut(&id)
            .ok_or_else(|| Failure::handle("linker"))?,
    )
}

impl Link {
    /// Adds an image.
    fn add(&mut self, kind: c_uint, bytes: &[u8]) -> Result<(), Failure> {
        if self.output.is_some() {
            return Err(Failure::invalid("the linker is complete"));
        }
        let known = match kind {
            abi::CU_JIT_INPUT_PTX | abi::CU_JIT_INPUT_FATBINARY => true,
            // What this linker made before is PTX.
            abi::CU_JIT_INPUT_LIBRARY if image::is_device_runtime(bytes) => {
                self.inputs.push(DEVICE_RUNTIME.to_owned());
                return Ok(());
            }
            abi::CU_JIT_INPUT_CUBIN | abi::CU_JIT_INPUT_OBJECT | abi::CU_JIT_INPUT_LIBRARY => {
                !bytes.starts_with(b"\x7fELF") && !bytes.starts_with(b"!<arch>")
            }
            _ => false,
        };
        if !known {
            return Err(Failure::new(
                CuResult::NO_BINARY_FOR_GPU,
                "the emulator links PTX, and fatbins that hold it: not machine code or other input",
            ));
        }
        let mut whole = bytes.to_vec();
        if !image::is_fatbin(bytes) {
            whole.push(0);
        }
        image::check_length(&whole)?;
        // SAFETY: the bytes are a whole image, as was just checked.
        let image = unsafe { image::read(whole.as_ptr(), self.capability) }?;
        self.inputs.push(image.ptx);
        Ok(())
    }
}

calls! {
    "cuLinkCreate_v2" fn link_create(count: c_uint, options: In<c_uint>, values: In<u64>, link: Out<u64>) {
        link.required("the linker")?;
        let capability = registry::current_device()?.profile.compute_capability;
        let log = JitLog::of(count as usize, options, values)?;
        let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
        links.0 += 1;
        let id = links.0;
        links.1.insert(id, Link { capability, inputs: Vec::new(), output: None, log });
        link.put(registry::handle(Kind::Link, 0, id), "the linker")
    }

    "cuLinkAddData_v2" fn link_add_data(
        link: u64, kind: c_uint, data: In<u8>, bytes: usize, name: Text,
        count: c_uint, options: In<c_uint>, values: In<u64>,
    ) {
        let _ = (name, count, options, values);
        let bytes = data.list(bytes, "the data")?;
        with_link(link, |link| link.add(kind, &bytes).inspect_err(|failure| link.log.error(failure)))
    }

    "cuLinkAddFile_v2" fn link_add_file(
        link: u64, kind: c_uint, name: Text, count: c_uint, options: In<c_uint>, values: In<u64>,
    ) {
        let _ = (count, options, values);
        let name = name.get("the file name")?.to_string_lossy();
        let bytes = std::fs::read(name.as_ref()).map_err(|error| {
            Failure::new(CuResult::FILE_NOT_FOUND, format!("{name} cannot be read: {error}"))
        })?;
        with_link(link, |link| link.add(kind, &bytes).inspect_err(|failure| link.log.error(failure)))
    }

    "cuLinkComplete" fn link_complete(link: u64, image: Out<u64>, bytes: Out<usize>) {
        with_link(link, |link| {
            if link.inputs.is_empty() {
                return Err(Failure::invalid("nothing was added to the linker"));
            }
            // The parser joins what stands in one text: declarations with the definitions of other modules.
            let mut taken = BTreeSet::new();
            let inputs = link.inputs.iter().enumerate().map(|(number, text)| {
                // What is no PTX stays as it is: the parser below says where.
                tell_private_names_apart(text, number, &mut taken).unwrap_or_else(|_| text.clone())
            });
            let mut joined = inputs.collect::<Vec<_>>().join("\n");
            if let Some(most) = link.log.max_registers {
                joined.insert_str(0, &format!("{MAX_REGISTERS}{most}\n"));
            }
            let checked = crate::emulator::ptx::parse(&joined);
            if let Err(error) = checked {
                let failure = Failure::new(
                    CuResult::INVALID_PTX,
                    format!("linked PTX line {}: {}", error.line, error.message),
                );
                link.log.error(&failure);
                return Err(failure);
            }
            link.log.info(&format!("{} PTX modules were linked", link.inputs.len()));
            let mut whole = joined.into_bytes();
            whole.push(0);
            let output = link.output.insert(whole);
            bytes.put_if_wanted(output.len());
            image.put(output.as_ptr() as u64, "the image")
        })
    }

    "cuLinkDestroy" fn link_destroy(link: u64) {
        let (_, id) = registry::decode_parts(link, Kind::Link).ok_or_else(|| Failure::handle("linker"))?;
        let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
        links.1.remove(&id).map(|_| ()).ok_or_else(|| Failure::handle("linker"))
    }
}
