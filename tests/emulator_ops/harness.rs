//! A device of one buffer, and kernels made from a few lines of PTX.

use neap::emulator::exec::{
    AccessError, Counters, DeviceMemory, ExecOptions, Fault, GranuleTable, LaunchSpec, ModuleCode,
    PtxError, run,
};
use neap::emulator::{CheckKind, CheckOptions};

/// Device memory: 4 KiB granules over a buffer, with an unmapped granule on either side.
pub struct Memory {
    bytes: Vec<u64>,
    table: GranuleTable,
    end: u64,
    next: u64,
}

const GRANULE: u64 = 4096;

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let granules = bytes.div_ceil(GRANULE as usize) + 3;
        let mut buffer = vec![u64::MAX; granules * GRANULE as usize / 8];
        let start = (buffer.as_mut_ptr() as u64).next_multiple_of(GRANULE);
        let table = GranuleTable::new(start, 12, granules);
        let base = start + GRANULE;
        let end = base + (bytes as u64).next_multiple_of(GRANULE);
        table.set(
            base,
            end - base,
            GranuleTable::READ | GranuleTable::WRITE | GranuleTable::RESERVED,
        );
        Memory {
            bytes: buffer,
            table,
            end,
            next: base,
        }
    }

    /// Address of fresh memory, 256-byte aligned.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let address = self.next;
        self.next = (self.next + bytes as u64).next_multiple_of(256);
        assert!(self.next <= self.end, "the test's memory is too small");
        address
    }

    pub fn put<T: bytemuck::Pod>(&mut self, values: &[T]) -> u64 {
        let address = self.alloc(std::mem::size_of_val(values));
        self.write(address, values);
        address
    }

    pub fn write<T: bytemuck::Pod>(&mut self, address: u64, values: &[T]) {
        let offset = (address - self.bytes.as_ptr() as u64) as usize;
        let bytes = std::mem::size_of_val(values);
        bytemuck::cast_slice_mut::<u64, u8>(&mut self.bytes)[offset..offset + bytes]
            .copy_from_slice(bytemuck::cast_slice(values));
    }

    pub fn get<T: bytemuck::Pod>(&self, address: u64, count: usize) -> Vec<T> {
        let offset = (address - self.bytes.as_ptr() as u64) as usize;
        let bytes = count * size_of::<T>();
        let all = &bytemuck::cast_slice::<u64, u8>(&self.bytes)[offset..offset + bytes];
        all.chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }

    /// Takes the rights of a granule away.
    pub fn set_flags(&self, address: u64, bytes: u64, flags: u8) {
        self.table.set(address, bytes, flags);
    }
}

impl DeviceMemory for Memory {
    fn check(&self, address: u64, bytes: u64, write: bool) -> Result<(), AccessError> {
        if address < 4096 {
            return Err(AccessError::Null);
        }
        let right = if write {
            GranuleTable::WRITE
        } else {
            GranuleTable::READ
        };
        for at in [address, address + bytes - 1] {
            match self.table.get(at) {
                flags if flags & right != 0 => {}
                0 => return Err(AccessError::Unmapped),
                flags if flags & GranuleTable::READ != 0 => return Err(AccessError::Denied),
                _ => return Err(AccessError::ReservedOnly),
            }
        }
        Ok(())
    }

    fn granules(&self) -> &GranuleTable {
        &self.table
    }
}

/// Loads a module whose variables live in `memory`.
pub fn load(memory: &mut Memory, ptx: &str) -> Result<ModuleCode, PtxError> {
    ModuleCode::load(ptx, &mut |bytes, align| {
        assert!(align <= 256);
        Some(memory.alloc(bytes as usize))
    })
}

pub struct Launch<'a> {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub cluster: [u32; 3],
    /// Address of a cooperative launch's workspace.
    pub cooperative: Option<u64>,
    pub shared: u32,
    pub params: &'a [u64],
    pub options: ExecOptions,
}

impl Default for Launch<'_> {
    fn default() -> Self {
        let mut options = ExecOptions::default();
        options.watchdog_branches = 1 << 20;
        if let Some(check) = CheckOptions::from_environment().expect("a value of NEAP_CHECK") {
            options = options.checked(check);
        }
        Launch {
            grid: [1, 1, 1],
            block: [32, 1, 1],
            cluster: [0; 3],
            cooperative: None,
            shared: 0,
            params: &[],
            options,
        }
    }
}

/// Whether `NEAP_CHECK` turns the checked mode on.
pub fn checked() -> bool {
    let asked = CheckOptions::from_environment().expect("a value of NEAP_CHECK");
    asked.is_some()
}

/// The outcome of a launch that does on purpose what the checked mode reports; `None` where it has, as it must.
pub fn on_purpose<T: std::fmt::Debug>(outcome: Result<T, Fault>, kind: CheckKind) -> Option<T> {
    if !checked() {
        return Some(outcome.expect("it runs"));
    }
    match outcome {
        Err(Fault::Checked { report }) if report.kind == kind => None,
        other => panic!("{kind} must be reported: {other:?}"),
    }
}

impl Launch<'_> {
    /// Reports of the checked mode, if it is on, are only collected.
    pub fn collect(&mut self) {
        if let Some(check) = &self.options.check {
            let options = check.options().collecting();
            self.options = self.options.clone().checked(options);
        }
    }

    /// Asserts that the checked mode, if it is on, has reported what the launch did on purpose, and nothing else.
    pub fn assert_reported(&self, kinds: &[CheckKind]) {
        if let Some(check) = &self.options.check {
            let reports = check.take_reports();
            let found: Vec<CheckKind> = reports.iter().map(|report| report.kind).collect();
            assert_eq!(found, kinds, "{reports:?}");
        }
    }
}

/// Runs one kernel of a module; parameters are 64-bit words.
pub fn launch(
    module: &ModuleCode,
    name: &str,
    memory: &Memory,
    launch: &Launch<'_>,
) -> Result<Counters, Fault> {
    let kernel = module.kernel(name).expect("the module has the kernel");
    let spec = LaunchSpec {
        kernel: &kernel,
        grid: launch.grid,
        block: launch.block,
        cluster: launch.cluster,
        cooperative: launch.cooperative,
        dynamic_shared_bytes: launch.shared,
        params: bytemuck::cast_slice(launch.params),
    };
    run(&spec, memory, &launch.options)
}

/// A module with one kernel `k` of `params` 64-bit parameters `p0`, `p1`, ... whose body is `body`; registers %p, %rs, %r,
/// %rd, %f, %fd are declared.
pub fn kernel(params: usize, body: &str) -> String {
    let list: Vec<String> = (0..params).map(|i| format!(".param .u64 p{i}")).collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 dyn[];\n.visible .entry k({}) {{\n.reg .pred %p<20>;\n.reg .b16 %rs<60>;\n\
         .reg .b32 %r<100>;\n.reg .b64 %rd<60>;\n.reg .f32 %f<60>;\n.reg .f64 %fd<60>;\n{body}\nret;\n}}\n",
        list.join(", ")
    )
}

/// Runs such a kernel and panics with the reason if it does not load or run.
pub fn run_body(memory: &mut Memory, body: &str, how: &Launch<'_>) -> Result<Counters, Fault> {
    let text = kernel(how.params.len(), body);
    let module = load(memory, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    launch(&module, "k", memory, how)
}
