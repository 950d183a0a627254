//! Libraries: module images of the process, loaded into a context when one of their kernels is wanted there.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::arguments::{In, Out, Text, calls};
use super::capture::refuse_unsafe_call;
use super::entry::{named, on_device, settled};
use super::failure::Failure;
use super::image;
use super::jit_log::JitLog;
use super::module_calls::image_file;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::State;
use crate::driver::CuResult;
use crate::emulator::exec::ModuleCode;

/// A library.
#[derive(Debug)]
struct Library {
    image: Arc<[u8]>,
    /// Modules of the library by device.
    modules: BTreeMap<u32, u64>,
    /// Kernels handed out, by name.
    kernels: BTreeMap<CString, u64>,
}

/// A kernel of a library; its name is kept where callers may look at it.
#[derive(Debug)]
struct Kernel {
    library: u64,
    name: Arc<CString>,
}

/// All libraries, which belong to no context.
#[derive(Debug, Default)]
struct Libraries {
    newest: u64,
    libraries: BTreeMap<u64, Library>,
    kernels: BTreeMap<u64, Kernel>,
}

static LIBRARIES: Mutex<Option<Libraries>> = Mutex::new(None);

/// The libraries. A device may be locked when they are, never the other way round.
struct Guard(MutexGuard<'static, Option<Libraries>>);

impl std::ops::Deref for Guard {
    type Target = Libraries;
    fn deref(&self) -> &Libraries {
        self.0
            .as_ref()
            .unwrap_or_else(|| unreachable!("made when locked"))
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Libraries {
        self.0.get_or_insert_default()
    }
}

fn libraries() -> Guard {
    let mut guard = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    Guard(guard)
}

fn library_handle(id: u64) -> u64 {
    registry::handle(Kind::Library, 0, id)
}

fn of_library(library: u64) -> Result<u64, Failure> {
    match registry::decode_parts(library, Kind::Library) {
        Some((_, id)) if libraries().libraries.contains_key(&id) => Ok(id),
        _ => Err(Failure::handle("library")),
    }
}

fn of_kernel(kernel: u64) -> Result<u64, Failure> {
    match registry::decode_parts(kernel, Kind::Kernel) {
        Some((_, id)) if libraries().kernels.contains_key(&id) => Ok(id),
        _ => Err(Failure::handle("kernel")),
    }
}

/// Device and serial of a function handle, or of a kernel in its place: on the current context's device.
pub(super) fn of_function(raw: u64) -> Result<(Arc<EmulatedDevice>, u64), Failure> {
    if registry::decode_parts(raw, Kind::Kernel).is_some() {
        let device = registry::current_device()?;
        let serial = function_on(&device, raw)?;
        return Ok((device, serial));
    }
    named(raw, Kind::Function, "function")
}

/// The function that a kernel (or a function) is on a device.
pub(super) fn function_on(device: &Arc<EmulatedDevice>, kernel: u64) -> Result<u64, Failure> {
    if let Some((ordinal, serial)) = registry::decode_parts(kernel, Kind::Function)
        && ordinal == device.ordinal
    {
        return Ok(serial);
    }
    let mut state = device.lock();
    state.alive()?;
    state.function_of_kernel(kernel)
}

/// The module of a library on a device, loaded where it is not yet.
fn module_on(device: &Arc<EmulatedDevice>, library: u64) -> Result<u64, Failure> {
    let (image, known) = {
        let libraries = libraries();
        let library = libraries
            .libraries
            .get(&library)
            .ok_or_else(|| Failure::handle("library"))?;
        let known = library.modules.get(&device.ordinal).copied();
        (Arc::clone(&library.image), known)
    };
    let mut state = device.lock();
    state.alive()?;
    state.library_module(library, known, &image)
}

impl State {
    /// The module of a library here, loaded where it is not yet.
    fn library_module(
        &mut self,
        library: u64,
        known: Option<u64>,
        image: &Arc<[u8]>,
    ) -> Result<u64, Failure> {
        if let Some(module) = known
            && self.module(module).is_ok()
        {
            return Ok(module);
        }
        // SAFETY: the library keeps a whole image.
        let image = unsafe { image::read(image.as_ptr(), self.profile.compute_capability) }?;
        let module = self.load_module(&image, None)?;
        if let Some(library) = libraries().libraries.get_mut(&library) {
            library.modules.insert(self.ordinal, module);
        }
        Ok(module)
    }

    /// The function that a kernel is here.
    pub(super) fn function_of_kernel(&mut self, kernel: u64) -> Result<u64, Failure> {
        let id = of_kernel(kernel)?;
        let (library, name, image, known) = {
            let libraries = libraries();
            let kernel = &libraries.kernels[&id];
            let library = libraries
                .libraries
                .get(&kernel.library)
                .ok_or_else(|| Failure::handle("library"))?;
            let known = library.modules.get(&self.ordinal).copied();
            (
                kernel.library,
                Arc::clone(&kernel.name),
                Arc::clone(&library.image),
                known,
            )
        };
        let module = self.library_module(library, known, &image)?;
        self.function(module, &name)
    }
}

/// The library of a kernel.
pub(super) fn kernel_library(kernel: u64) -> Result<u64, Failure> {
    let id = of_kernel(kernel)?;
    Ok(library_handle(libraries().kernels[&id].library))
}

/// The name of a kernel, for as long as its library is loaded.
pub(super) fn kernel_name(kernel: u64) -> Result<*const c_char, Failure> {
    let id = of_kernel(kernel)?;
    Ok(libraries().kernels[&id].name.as_ptr())
}

/// Keeps an image as a library. Where a context is current it is loaded there at once, so that what is
/// wrong with the image shows here.
fn load(library: Out<u64>, bytes: Vec<u8>, log: &JitLog) -> Result<(), Failure> {
    library.required("the library")?;
    let id = {
        let mut libraries = libraries();
        libraries.newest += 1;
        let id = libraries.newest;
        let library = Library {
            image: Arc::from(bytes),
            modules: BTreeMap::new(),
            kernels: BTreeMap::new(),
        };
        libraries.libraries.insert(id, library);
        id
    };
    if let Ok(device) = registry::current_device()
        && let Err(failure) = module_on(&device, id)
    {
        log.error(&failure);
        libraries().libraries.remove(&id);
        return Err(failure);
    }
    library.put(library_handle(id), "the library")
}

/// Kernel names of a library, and the size of the variable `global` in it.
fn with_code<T>(library: u64, read: impl FnOnce(&ModuleCode) -> T) -> Result<T, Failure> {
    let device = match registry::current_device() {
        Ok(device) => device,
        Err(_) => registry::device(0).ok_or_else(|| Failure::from(CuResult::NO_DEVICE))?,
    };
    let module = module_on(&device, library)?;
    let state = device.lock();
    Ok(read(&state.module(module)?.code))
}

fn kernel_of(library: u64, name: CString) -> Result<u64, Failure> {
    let mut libraries = libraries();
    let unknown = || Failure::handle("library");
    let known = libraries.libraries.get(&library).ok_or_else(unknown)?;
    let id = match known.kernels.get(&name) {
        Some(&id) => id,
        None => {
            libraries.newest += 1;
            let id = libraries.newest;
            let kept = Arc::new(name.clone());
            libraries.kernels.insert(
                id,
                Kernel {
                    library,
                    name: kept,
                },
            );
            if let Some(known) = libraries.libraries.get_mut(&library) {
                known.kernels.insert(name, id);
            }
            id
        }
    };
    Ok(registry::handle(Kind::Kernel, 0, id))
}

fn kernel_names(library: u64) -> Result<Vec<CString>, Failure> {
    with_code(library, |code| {
        let names = code.kernel_names().into_iter();
        names.filter_map(|name| CString::new(name).ok()).collect()
    })
}

calls! {
    "cuLibraryLoadData" fn library_load_data(
        library: Out<u64>, image: In<u8>, options: In<c_uint>, values: In<u64>, option_count: c_uint,
        library_options: In<c_uint>, library_values: In<u64>, library_option_count: c_uint,
    ) {
        let _ = (library_options, library_values, library_option_count);
        refuse_unsafe_call(CALL)?;
        let log = JitLog::of(option_count as usize, options, values)?;
        // SAFETY: the caller passes a module image.
        let bytes = unsafe { image::copy(image.raw()) }?;
        load(library, bytes, &log)
    }

    "cuLibraryLoadFromFile" fn library_load_from_file(
        library: Out<u64>, name: Text, options: In<c_uint>, values: In<u64>, option_count: c_uint,
        library_options: In<c_uint>, library_values: In<u64>, library_option_count: c_uint,
    ) {
        let _ = (library_options, library_values, library_option_count);
        refuse_unsafe_call(CALL)?;
        let log = JitLog::of(option_count as usize, options, values)?;
        let bytes = image_file(name)?;
        image::check_length(&bytes)?;
        load(library, bytes, &log)
    }

    "cuLibraryUnload" fn library_unload(library: u64) {
        refuse_unsafe_call(CALL)?;
        let id = of_library(library)?;
        let gone = {
            let mut libraries = libraries();
            libraries.kernels.retain(|_, kernel| kernel.library != id);
            libraries.libraries.remove(&id)
        };
        for (ordinal, module) in gone.map(|library| library.modules).unwrap_or_default() {
            if let Some(device) = registry::device(ordinal) {
                device.lock().begin(CALL)?;
                let mut state = settled(&device);
                if state.module(module).is_ok() {
                    state.remove_module(module)?;
                }
            }
        }
        Ok(())
    }

    "cuLibraryGetKernel" fn library_get_kernel(kernel: Out<u64>, library: u64, name: Text) {
        kernel.required("the kernel")?;
        let id = of_library(library)?;
        let name = CString::from(name.get("the name")?);
        let known = kernel_names(id)?;
        if !known.contains(&name) {
            let known: Vec<_> = known.iter().map(|name| name.to_string_lossy()).collect();
            return Err(Failure::new(
                CuResult::NOT_FOUND,
                format!("the library has no kernel {}; it has: {}", name.to_string_lossy(), known.join(", ")),
            ));
        }
        kernel.put(kernel_of(id, name)?, "the kernel")
    }

    "cuLibraryGetKernelCount" fn library_get_kernel_count(count: Out<c_uint>, library: u64) {
        count.put(kernel_names(of_library(library)?)?.len() as c_uint, "the count")
    }

    "cuLibraryEnumerateKernels" fn library_enumerate_kernels(kernels: Out<u64>, count: c_uint, library: u64) {
        kernels.required("the kernels")?;
        let id = of_library(library)?;
        let names = kernel_names(id)?.into_iter().take(count as usize);
        let handles = names.map(|name| kernel_of(id, name)).collect::<Result<Vec<_>, _>>()?;
        kernels.put_list(handles);
        Ok(())
    }

    "cuLibraryGetModule" fn library_get_module(module: Out<u64>, library: u64) {
        let id = of_library(library)?;
        let device = registry::current_device()?;
        let serial = module_on(&device, id)?;
        module.put(registry::handle(Kind::Module, device.ordinal, serial), "the module")
    }

    "cuLibraryGetGlobal" fn library_get_global(pointer: Out<u64>, bytes: Out<usize>, library: u64, name: Text) {
        let id = of_library(library)?;
        let name = name.get("the name")?.to_string_lossy();
        let device = registry::current_device()?;
        let module = module_on(&device, id)?;
        on_device(CALL, &device, |state| {
            let Some((address, len)) = state.module(module)?.code.global(&name) else {
                return Err(Failure::new(CuResult::NOT_FOUND, format!("the library has no variable {name}")));
            };
            pointer.put_if_wanted(address);
            bytes.put_if_wanted(len as usize);
            Ok(())
        })
    }

    "cuLibraryGetManaged" fn library_get_managed(pointer: Out<u64>, bytes: Out<usize>, library: u64, name: Text) {
        let _ = (pointer, bytes);
        of_library(library)?;
        let name = name.get("the name")?.to_string_lossy();
        Err(Failure::new(CuResult::NOT_FOUND, format!("the library has no managed variable {name}")))
    }

    "cuLibraryGetUnifiedFunction" fn library_get_unified_function(address: Out<u64>, library: u64, name: Text) {
        let _ = (address, name);
        of_library(library)?;
        Err(Failure::new(CuResult::NOT_FOUND, "the library has no unified function"))
    }
}
