//! The checked mode: each kind of report, by a program that has the fault and by the same program without it.

/// Calls an exported function by name with arguments of these types; it must succeed.
macro_rules! ok {
    ($name:literal ( $($value:expr => $type:ty),* )) => {{
        let address = neap::emulator::entry_point($name);
        // SAFETY: the exported function of this name has this signature, by NVIDIA's header.
        let function = unsafe {
            std::mem::transmute::<*const std::ffi::c_void, unsafe extern "C" fn($($type),*) -> neap::driver::CuResult>(address)
        };
        // SAFETY: all pointers are to live locals, or null where the function allows it.
        assert_eq!(unsafe { function($($value),*) }, neap::driver::CuResult::SUCCESS, "{}", $name);
    }};
}

mod cooperative;
mod driver;
mod hopper;
mod kernels;
mod sharing;

use neap::driver::{
    AddressReservation, Context, DevicePtr, Driver, LaunchConfig, Module, PhysicalAllocation,
    Stream,
};
use neap::emulator::{self, CheckKind, CheckOptions, CheckReport, Profile};
use std::cell::RefCell;
use std::sync::Arc;

/// A checked device that collects reports, with one mapped grain that nobody has written.
struct Device {
    ordinal: u32,
    memory: AddressReservation,
    modules: RefCell<Vec<Module>>,
    stream: Stream,
    context: Context,
}

impl Device {
    fn new(seed: u64) -> Device {
        let mut profile = Profile::named("tiny").expect("a known profile");
        profile.check = Some(CheckOptions::with_seed(seed).collecting());
        let ordinal = emulator::add_device(profile);
        let device = Driver::emulator().device(ordinal).expect("just added");
        let context = Context::retain_primary(&device).expect("a context");
        let bytes = device.granularity_bytes();
        let memory = AddressReservation::new(&context, bytes, 0).expect("addresses");
        let physical = PhysicalAllocation::new(&context, bytes).expect("memory");
        memory.map(0, Arc::new(physical)).expect("mapping");
        memory.set_access(0, bytes).expect("access");
        Device {
            ordinal,
            memory,
            modules: RefCell::default(),
            stream: Stream::new(&context).expect("a stream"),
            context,
        }
    }

    /// Byte `offset` of the mapped grain.
    fn at(&self, offset: u64) -> DevicePtr {
        self.memory.base().add(offset)
    }

    /// Launches the only kernel of a module with two pointers and waits.
    fn run(&self, ptx: &str, grid: u32, block: u32, params: [DevicePtr; 2]) {
        self.launch(&self.stream, ptx, grid, block, params);
        self.stream
            .synchronize()
            .expect("reports are only collected");
    }

    fn launch(&self, stream: &Stream, ptx: &str, grid: u32, block: u32, params: [DevicePtr; 2]) {
        let module = Module::load(&self.context, ptx.as_bytes()).expect("the module loads");
        let kernel = module.kernel("k").expect("the kernel");
        let config = LaunchConfig {
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared_bytes: 0,
        };
        // SAFETY: the emulator checks every access of the kernel, which takes two pointers.
        unsafe { stream.launch(&kernel, config, &params) }.expect("the launch is accepted");
        // Unloading a module waits for everything.
        self.modules.borrow_mut().push(module);
    }

    /// Kinds reported since the last call.
    fn kinds(&self) -> Vec<CheckKind> {
        let reports = emulator::take_check_reports(self.ordinal);
        for report in &reports {
            println!("{report}");
        }
        reports.iter().map(|report| report.kind).collect()
    }

    fn reports(&self) -> Vec<CheckReport> {
        emulator::take_check_reports(self.ordinal)
    }
}

/// A module with one kernel `k(x, y)`; `%tid` and `%ctaid` are in `%t` and `%b`, four times the linear thread index in
/// `%o`, and `%x`, `%y` are the parameters plus that. A body that begins with the comment `// cluster` runs in clusters of
/// two blocks.
fn kernel(shared_bytes: u32, body: &str) -> String {
    let cluster = if body.starts_with("// cluster") {
        ".reqnctapercluster 2, 1, 1"
    } else {
        ""
    };
    format!(
        "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .align 8 .b8 p[16])
{cluster}
{{
.reg .b32 %r<16>, %t, %b, %n, %i;
.reg .b64 %rd<16>, %x, %y, %o, %x0, %y0;
.reg .f32 %f<8>;
.reg .pred %p<8>;
.shared .align 16 .b8 s[{shared_bytes}];
ld.param.u64 %x0, [p];
ld.param.u64 %y0, [p+8];
mov.u32 %t, %tid.x;
mov.u32 %b, %ctaid.x;
mov.u32 %n, %ntid.x;
mad.lo.u32 %i, %b, %n, %t;
mul.wide.u32 %o, %i, 4;
add.u64 %x, %x0, %o;
add.u64 %y, %y0, %o;
{body}
ret;
}}
"
    )
}
