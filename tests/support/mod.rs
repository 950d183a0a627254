//! What the kernel tests share: a device, device arrays, random data, comparison with an oracle, paged keys and values.
//!
//! The device is a fresh emulated one, or GPU 0 with `NEAP_TEST_DEVICE=cuda`. Inputs come from a seed that each test prints;
//! `NEAP_TEST_SEED` sets it.
#![allow(dead_code)]

pub mod attention;
pub mod oracle;
pub mod paged;
pub mod random;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use half::bf16;
use neap::driver::{
    AddressReservation, Context, Device, DevicePtr, Driver, PhysicalAllocation, Stream,
};
use neap::emulator::{self, Profile};
use neap::kernels::{KernelError, Kernels, StepHeader};

/// Device memory of one test.
const ARENA_BYTES: u64 = 192 << 20;

/// A device with the kernels loaded and memory to bump-allocate from.
pub struct Rig {
    used_bytes: Cell<u64>,
    reserved_bytes: u64,
    arena: AddressReservation,
    pub kernels: Kernels,
    pub stream: Stream,
    pub context: Context,
    headers: RefCell<Vec<DevicePtr>>,
    /// Set once arrays are fenced: their reservations.
    fenced: RefCell<Option<Vec<AddressReservation>>>,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::open(Profile::named("tiny").expect("a known profile"))
    }

    /// An emulated device that counts sectors and bank passes, with its ordinal; `None` on a GPU, which cannot.
    pub fn counting() -> Option<(Rig, u32)> {
        let mut profile = Profile::named("tiny").expect("a known profile");
        profile.counters = true;
        let rig = Rig::open(profile);
        let emulated = rig.context.device().driver().is_emulator();
        let ordinal = rig.context.device().ordinal();
        if !emulated {
            println!("skipped: only the emulator counts");
        }
        emulated.then_some((rig, ordinal))
    }

    /// An emulated device on `threads` CPU threads, with its ordinal.
    pub fn emulated(threads: usize) -> (Rig, u32) {
        let mut profile = Profile::named("tiny").expect("a known profile");
        profile.threads = threads;
        let rig = Rig::open(profile);
        let ordinal = rig.context.device().ordinal();
        (rig, ordinal)
    }

    /// An emulated device with the kernels of these PTX texts and no others, and its ordinal.
    pub fn with_ptx(emulated: Profile, texts: &[String]) -> Result<(Rig, u32), KernelError> {
        let ordinal = emulator::add_device(emulated);
        let device = Driver::emulator().device(ordinal).expect("just added");
        let load = |context: &Context| Kernels::load_ptx(context, texts);
        Ok((Rig::on(&device, load)?, ordinal))
    }

    /// The device the environment names; `emulated` says what it is when it is an emulated one.
    fn open(emulated: Profile) -> Rig {
        let device = match std::env::var("NEAP_TEST_DEVICE").as_deref() {
            Ok("cuda") => Driver::cuda()
                .and_then(|driver| driver.device(0))
                .expect("NEAP_TEST_DEVICE=cuda needs a GPU"),
            Ok("emu") | Err(_) => {
                let ordinal = emulator::add_device(emulated);
                Driver::emulator().device(ordinal).expect("just added")
            }
            Ok(other) => panic!("NEAP_TEST_DEVICE is {other:?}, it must be `cuda` or `emu`"),
        };
        Rig::on(&device, Kernels::load).expect("kernels load")
    }

    fn on(
        device: &Device,
        load: impl Fn(&Context) -> Result<Kernels, KernelError>,
    ) -> Result<Rig, KernelError> {
        let context = Context::retain_primary(device).expect("a context");
        let stream = Stream::new(&context).expect("a stream");
        let kernels = load(&context)?;
        let bytes = ARENA_BYTES.next_multiple_of(device.granularity_bytes());
        let arena = AddressReservation::new(&context, bytes, 0).expect("addresses");
        let memory = Arc::new(PhysicalAllocation::new(&context, bytes).expect("memory"));
        arena.map(0, memory).expect("mapping");
        arena.set_access(0, bytes).expect("access");
        Ok(Rig {
            used_bytes: Cell::new(0),
            reserved_bytes: bytes,
            arena,
            kernels,
            stream,
            context,
            headers: RefCell::default(),
            fenced: RefCell::default(),
        })
    }

    /// From now on every array ends where its mapping ends, to within its alignment of 16 bytes: a kernel that goes past it faults.
    /// Costs a mapping an array.
    pub fn fence_arrays(&self) {
        *self.fenced.borrow_mut() = Some(Vec::new());
    }

    /// `bytes` at the end of a mapping of their own, with nothing mapped behind them.
    fn allocate_fenced(&self, bytes: u64, fenced: &mut Vec<AddressReservation>) -> DevicePtr {
        let grain = self.context.device().granularity_bytes();
        let mapped = bytes.max(1).next_multiple_of(grain);
        let reservation =
            AddressReservation::new(&self.context, mapped + grain, 0).expect("addresses");
        let memory = Arc::new(PhysicalAllocation::new(&self.context, mapped).expect("memory"));
        reservation.map(0, memory).expect("mapping");
        reservation.set_access(0, mapped).expect("access");
        let begin = reservation.base().add(mapped - bytes.next_multiple_of(16));
        fenced.push(reservation);
        begin
    }

    /// `bytes` of device memory, 256-byte aligned (16 where arrays are fenced), as they are.
    pub fn allocate(&self, bytes: u64) -> DevicePtr {
        if let Some(fenced) = self.fenced.borrow_mut().as_mut() {
            return self.allocate_fenced(bytes, fenced);
        }
        let begin = self.used_bytes.get();
        let end = (begin + bytes).next_multiple_of(256) + 256;
        assert!(
            end <= self.reserved_bytes,
            "the test needs more than {ARENA_BYTES} bytes of device memory"
        );
        self.used_bytes.set(end);
        self.arena.base().add(begin)
    }

    /// Forgets every array: their memory is handed out again.
    pub fn reset(&self) {
        self.used_bytes.set(0);
    }

    /// An array with the given values.
    pub fn upload<T: Pod>(&self, values: &[T]) -> Array<T> {
        let array = self.array(values.len());
        array.write(self, values);
        array
    }

    /// An array of `len` elements, every byte 0xFF: NaN as bf16 and f32.
    pub fn poisoned<T: Pod>(&self, len: usize) -> Array<T> {
        let array = self.array::<T>(len);
        self.stream
            .copy_to_device(array.pointer, &vec![0xff; len * size_of::<T>()])
            .expect("copy");
        array
    }

    fn array<T: Pod>(&self, len: usize) -> Array<T> {
        Array {
            pointer: self.allocate((len * size_of::<T>()) as u64),
            len,
            element: PhantomData,
        }
    }

    /// A step header with these counts.
    pub fn header(&self, header: StepHeader) -> DevicePtr {
        let pointer = self.upload(&[header]).pointer;
        self.headers.borrow_mut().push(pointer);
        pointer
    }

    /// A header of a step with `rows` tokens and as many outputs.
    pub fn header_of_rows(&self, rows: u32) -> DevicePtr {
        self.header(StepHeader {
            num_tokens: rows,
            num_outputs: rows,
            num_seqs: rows,
            ..StepHeader::default()
        })
    }
}

/// A typed device array of a test.
pub struct Array<T> {
    pub pointer: DevicePtr,
    pub len: usize,
    element: PhantomData<T>,
}

impl<T: Pod + Zeroable> Array<T> {
    pub fn write(&self, rig: &Rig, values: &[T]) {
        assert_eq!(values.len(), self.len);
        rig.stream
            .copy_to_device(self.pointer, bytemuck::cast_slice(values))
            .expect("copy");
    }

    pub fn read(&self, rig: &Rig) -> Vec<T> {
        let mut values = vec![T::zeroed(); self.len];
        rig.stream
            .copy_to_host(bytemuck::cast_slice_mut(&mut values), self.pointer)
            .expect("the launches before this copy succeed");
        values
    }
}

/// True when every byte is still what [`Rig::poisoned`] left.
pub fn untouched<T: Pod>(values: &[T]) -> bool {
    bytemuck::cast_slice::<T, u8>(values)
        .iter()
        .all(|&byte| byte == 0xff)
}

/// Bits, for comparisons that NaN and signed zeros must not blur.
pub fn bits<T: Pod>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

pub fn to_f32(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// How many random cases to run: `NEAP_TEST_CASES`, or `usual`.
pub fn random_cases(usual: u32) -> u32 {
    std::env::var("NEAP_TEST_CASES").map_or(usual, |text| {
        text.parse().expect("NEAP_TEST_CASES is a number")
    })
}
