//! Images through the driver's entry points: fatbins, linked inputs, launches of what loads.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, PoisonError};

use neap::driver::CuResult;
use neap::emulator::{self, CheckOptions, Profile, entry_point};

use super::fuzzing::Choices;
use super::{below, bent};

const FATBINS: [&[u8]; 4] = [
    include_bytes!("../data/fatbin/none.fatbin"),
    include_bytes!("../data/fatbin/speed.fatbin"),
    include_bytes!("../data/fatbin/balance.fatbin"),
    include_bytes!("../data/fatbin/size.fatbin"),
];
/// Room behind an image whose header promises more than there is.
const ROOM_BYTES: usize = 1 << 16;

/// Calls an exported function by name with arguments of these types; the code is never that of a panic.
macro_rules! call {
    ($name:literal ( $($value:expr => $type:ty),* )) => {{
        let address = entry_point($name);
        // SAFETY: the exported function of this name has this signature, by NVIDIA's header.
        let function = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> CuResult>(address)
        };
        // SAFETY: all pointers are to live locals, or deliberately null.
        let code = unsafe { function($($value),*) };
        assert_ne!(code, CuResult::UNKNOWN, "{} panicked: {:?}", $name, emulator::last_error_detail());
        code
    }};
}

/// Two devices, the second in checked mode.
static DEVICES: LazyLock<[u32; 2]> = LazyLock::new(|| {
    let mut plain = Profile::named("tiny").expect("a known profile");
    plain.threads = 1;
    plain.watchdog_branches = 1 << 7;
    plain.progress = None;
    let mut checked = plain.clone();
    checked.check = Some(CheckOptions::with_seed(3));
    let _ = neap::driver::Driver::emulator();
    [plain, checked].map(emulator::add_device)
});
/// Inputs follow each other on the devices.
static LOCK: Mutex<()> = Mutex::new(());

/// Runs `body` in a device's primary context, which is destroyed afterwards.
fn on_device(device: usize, body: impl FnOnce() -> u64) -> u64 {
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let ordinal = DEVICES[device] as c_int;
    let mut context = 0u64;
    assert_eq!(
        call!("cuDevicePrimaryCtxRetain"(&mut context => *mut u64, ordinal => c_int)),
        CuResult::SUCCESS
    );
    assert_eq!(call!("cuCtxSetCurrent"(context => u64)), CuResult::SUCCESS);
    let done = body();
    call!("cuDevicePrimaryCtxReset_v2"(ordinal => c_int));
    // Reports are text, which must not panic either.
    emulator::take_check_reports(ordinal as u32)
        .iter()
        .for_each(|report| assert!(!report.to_string().is_empty()));
    done
}

/// A fatbin with some bytes changed, or the text of its payload; given to one of the calls that take images.
pub fn image(choices: &mut impl Choices) -> u64 {
    let mut bytes = FATBINS[below(choices, FATBINS.len())].to_vec();
    for _ in 0..below(choices, 6) {
        let at = below(choices, bytes.len());
        match below(choices, 4) {
            0 => bytes[at] = below(choices, 256) as u8,
            1 => bytes[at] ^= 1 << below(choices, 8),
            2 => bytes.truncate(at.max(1)),
            _ => {
                let end = (at + below(choices, 64)).min(bytes.len());
                bytes.extend_from_within(at..end);
            }
        }
    }
    let (len, way) = (bytes.len(), below(choices, 4));
    // Calls that are not told a length believe the header.
    bytes.resize(len + ROOM_BYTES, 0);
    let promised = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if way != 0 && promised > (ROOM_BYTES / 2) as u64 {
        return 0;
    }
    on_device(0, || {
        let mut module = 0u64;
        let code = match way {
            0 => return linked_inputs(&[(below(choices, 6) as c_uint, bytes[..len].to_vec())]),
            1 => call!("cuModuleLoadData"(&mut module => *mut u64, bytes.as_ptr() => *const u8)),
            2 => {
                call!("cuModuleLoadFatBinary"(&mut module => *mut u64, bytes.as_ptr() => *const u8))
            }
            _ => {
                let null = std::ptr::null::<c_void>();
                call!("cuLibraryLoadData"(
                    &mut module => *mut u64, bytes.as_ptr() => *const u8, null => *const c_void, null => *const c_void,
                    0 => c_uint, null => *const c_void, null => *const c_void, 0 => c_uint
                ))
            }
        };
        if code.is_success() && way == 3 {
            let mut count = 0u32;
            call!("cuLibraryGetKernelCount"(&mut count => *mut u32, module => u64));
            call!("cuLibraryUnload"(module => u64));
        }
        u64::from(code.is_success())
    })
}

/// Bent modules, linked.
pub fn linked(choices: &mut impl Choices) -> u64 {
    let inputs: Vec<(c_uint, Vec<u8>)> = (0..1 + below(choices, 3))
        .map(|_| {
            (
                1 + 3 * (below(choices, 8) / 7) as c_uint,
                bent(choices).into_bytes(),
            )
        })
        .collect();
    on_device(0, || linked_inputs(&inputs))
}

fn linked_inputs(inputs: &[(c_uint, Vec<u8>)]) -> u64 {
    let (mut link, mut image, mut len, mut module) = (0u64, std::ptr::null::<u8>(), 0usize, 0u64);
    let null = std::ptr::null::<c_void>();
    call!("cuLinkCreate_v2"(0 => c_uint, null => *const c_void, null => *const c_void, &mut link => *mut u64));
    for (kind, bytes) in inputs {
        call!("cuLinkAddData_v2"(
            link => u64, *kind => c_uint, bytes.as_ptr() => *const u8, bytes.len() => usize, null => *const c_void,
            0 => c_uint, null => *const c_void, null => *const c_void
        ));
    }
    let mut code =
        call!("cuLinkComplete"(link => u64, &mut image => *mut *const u8, &mut len => *mut usize));
    if code.is_success() {
        code = call!("cuModuleLoadData"(&mut module => *mut u64, image => *const u8));
    }
    call!("cuLinkDestroy"(link => u64));
    u64::from(code.is_success())
}

/// Loads a bent module and launches its kernels, in checked mode or without.
pub fn driven(choices: &mut impl Choices) -> u64 {
    let device = below(choices, 2);
    let Ok(text) = CString::new(bent(choices)) else {
        return 0;
    };
    on_device(device, || {
        let (mut module, mut count) = (0u64, 0u32);
        if !call!("cuModuleLoadData"(&mut module => *mut u64, text.as_ptr() => *const c_char))
            .is_success()
        {
            return 0;
        }
        call!("cuModuleGetFunctionCount"(&mut count => *mut u32, module => u64));
        let mut functions = vec![0u64; count.min(2) as usize];
        call!("cuModuleEnumerateFunctions"(
            functions.as_mut_ptr() => *mut u64, functions.len() as c_uint => c_uint, module => u64
        ));
        functions
            .into_iter()
            .map(|function| launched(function, choices))
            .sum()
    })
}

fn launched(function: u64, choices: &mut impl Choices) -> u64 {
    let mut data = 0u64;
    call!("cuMemAlloc_v2"(&mut data => *mut u64, 4096 => usize));
    let mut params = [0u64; 128];
    for word in &mut params {
        *word = match below(choices, 4) {
            0 | 1 => data + 8 * below(choices, 256) as u64,
            2 => below(choices, 64) as u64,
            _ => u64::MAX >> below(choices, 64),
        };
    }
    let mut bytes = size_of_val(&params);
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        params.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut bytes).cast(),
        std::ptr::null_mut(),
    ];
    let threads = [32, 1, 64][below(choices, 3)];
    let shared = 1024 * below(choices, 16) as c_uint;
    let launch = call!("cuLaunchKernel"(
        function => u64, 1 + below(choices, 2) as c_uint => c_uint, 1 => c_uint, 1 => c_uint, threads => c_uint,
        1 => c_uint, 1 => c_uint, shared => c_uint, 0 => u64, std::ptr::null_mut() => *mut *mut c_void,
        extra.as_mut_ptr() => *mut *mut c_void
    ));
    let end = call!("cuCtxSynchronize"());
    u64::from(launch.is_success() && end.is_success())
}
