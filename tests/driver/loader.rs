//! Opening a driver library: what is said when there is none, or one that is too old.

use std::path::Path;
use std::process::Command;

use neap::driver::{Api, Driver, DriverError};

/// Compiles a shared library from C text.
fn library(dir: &Path, source: &str) -> String {
    let c = dir.join("fake.c");
    let so = dir.join("libfake.so");
    std::fs::write(&c, source).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&so)
        .arg(&c)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    so.to_str().unwrap().to_owned()
}

#[test]
fn a_missing_library_is_named_with_the_remedy() {
    let error = Driver::open("libcuda-that-is-not-there.so.1").unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("no NVIDIA driver: libcuda-that-is-not-there.so.1 could not be opened"),
        "{text}"
    );
    assert!(text.contains("use --device emu"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn the_real_driver_opens_or_says_why_not() {
    match Driver::cuda() {
        Ok(driver) => {
            assert!(!driver.is_emulator());
            assert!(driver.version().unwrap() >= (12, 0));
        }
        Err(DriverError::NoLibrary { library, .. }) => assert_eq!(library, Driver::LIBRARY),
        Err(error @ (DriverError::MissingSymbol { .. } | DriverError::Call { .. })) => {
            println!("not run on a device: {error}");
        }
        Err(error) => panic!("no reason why a driver cannot be opened: {error}"),
    }
}

#[test]
fn a_library_without_the_loader_is_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), "int cuInit(unsigned flags) { return 0; }\n");
    let error = Driver::open(&path).unwrap_err();
    assert_eq!(
        error,
        DriverError::MissingSymbol {
            symbol: "cuGetProcAddress_v2"
        }
    );
    assert!(error.to_string().contains("driver 525"), "{error}");
}

/// A driver that has every entry point but one: the error names that one.
#[test]
fn a_missing_entry_point_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(
        dir.path(),
        r#"
        #include <string.h>
        static int nothing(void) { return 0; }
        int cuGetProcAddress_v2(const char *symbol, void **address, int version,
                                unsigned long long flags, int *status) {
            if (strcmp(symbol, "cuMemAddressReserve") == 0) { *status = 1; return 500; }
            *address = (void *)nothing; *status = 0; return 0;
        }
        "#,
    );
    let error = Driver::open(&path).unwrap_err();
    assert_eq!(
        error,
        DriverError::MissingSymbol {
            symbol: "cuMemAddressReserve"
        }
    );
}

/// Optional entry points may be absent: the driver opens without them.
#[test]
fn optional_entry_points_may_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(
        dir.path(),
        r#"
        #include <string.h>
        static int nothing(void) { return 0; }
        int cuGetProcAddress_v2(const char *symbol, void **address, int version,
                                unsigned long long flags, int *status) {
            if (strcmp(symbol, "cuFuncGetParamInfo") == 0) { *status = 2; *address = 0; return 0; }
            *address = (void *)nothing; *status = 0; return 0;
        }
        "#,
    );
    let driver = Driver::open(&path).unwrap();
    assert!(driver.api().cu_func_get_param_info.is_none());
    assert!(driver.api().cu_func_get_name.is_some());
}

/// `cuInit` failing is an error with its code, name and remedy.
#[test]
fn a_failing_init_is_told_with_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(
        dir.path(),
        r#"
        #include <string.h>
        static int nothing(void) { return 0; }
        static int no_device(unsigned flags) { return 100; }
        int cuGetProcAddress_v2(const char *symbol, void **address, int version,
                                unsigned long long flags, int *status) {
            *address = strcmp(symbol, "cuInit") ? (void *)nothing : (void *)no_device;
            *status = 0; return 0;
        }
        "#,
    );
    let text = Driver::open(&path).unwrap_err().to_string();
    assert_eq!(
        text,
        "cuInit failed with CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected; \
         check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device emu"
    );
}

/// The table can be asked for every entry point it lists, which is what a library over it exports.
#[test]
fn the_emulators_table_is_complete() {
    let driver = Driver::emulator();
    for symbol in Api::SYMBOLS {
        assert!(!driver.api().address_of(symbol).is_null(), "{symbol}");
    }
    assert!(driver.api().address_of("cuTexRefCreate").is_null());
}

/// A library whose loader asks a function that is set from outside: through it a driver is opened with
/// `dlopen` and `cuGetProcAddress`, as NVIDIA's is, and every symbol resolves to the emulator.
const FORWARDING: &str = r#"
typedef void *(*lookup_t)(const char *);
static lookup_t lookup;
void set_lookup(lookup_t function) { lookup = function; }
int cuGetProcAddress_v2(const char *symbol, void **address, int version,
                        unsigned long long flags, int *status) {
    if (version < 12000 || flags != 0) return 1;
    *address = lookup(symbol);
    *status = *address ? 0 : 1;
    return 0;
}
"#;

unsafe extern "C" fn emulated(symbol: *const std::ffi::c_char) -> *const std::ffi::c_void {
    // SAFETY: the loader passes a NUL-terminated string.
    let symbol = unsafe { std::ffi::CStr::from_ptr(symbol) };
    Driver::emulator()
        .api()
        .address_of(symbol.to_str().unwrap())
}

#[test]
fn a_driver_opened_by_dlopen_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), FORWARDING);
    let name = std::ffi::CString::new(path.as_str()).unwrap();
    // SAFETY: the name is NUL-terminated and the library has no initialisers.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    // SAFETY: the library is open and the name NUL-terminated.
    let set_lookup = unsafe { libc::dlsym(handle, c"set_lookup".as_ptr()) };
    assert!(!set_lookup.is_null());
    type Lookup = unsafe extern "C" fn(*const std::ffi::c_char) -> *const std::ffi::c_void;
    // SAFETY: the library defines it with this signature.
    let set_lookup = unsafe {
        std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn(Lookup)>(set_lookup)
    };
    // SAFETY: as above.
    unsafe { set_lookup(emulated) };

    let driver = Driver::open(&path).unwrap();
    assert!(!driver.is_emulator(), "nothing tells it apart");
    let ordinal = neap::emulator::add_device(crate::tiny());
    let context = neap::driver::Context::retain_primary(&driver.device(ordinal).unwrap()).unwrap();
    let block = crate::mapped(&context, crate::GRAIN);
    let stream = neap::driver::Stream::new(&context).unwrap();
    stream
        .copy_to_device(block.base(), b"through dlopen")
        .unwrap();
    let mut read = [0u8; 14];
    stream.copy_to_host(&mut read, block.base()).unwrap();
    assert_eq!(&read, b"through dlopen");
    drop((stream, block));
    context.close().unwrap();
    crate::assert_nothing_left(ordinal);
}
