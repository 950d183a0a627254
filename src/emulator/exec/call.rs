//! Device functions: calls, returns, the thread's stack.
//!
//! A function runs on a register file of its own, so that it may call itself, and on a frame of every lane's stack. Lanes
//! that return wait until all lanes of the call have: an activation ends when no path of it is left.

use super::fault::Fault;
use super::heap::{self, DeviceHeap};
use super::host_call;
use super::op::{Op, plain_handler};
use super::warp::{Handler, Ins, LANES, Warp};
use crate::emulator::ir::FUNCTION_WINDOW;
use crate::emulator::ptx::RegClass;
use std::sync::Arc;

/// What a call leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// A function of the module, by number.
    Function(u32),
    /// A function whose address is in a register.
    Indirect,
    /// `vprintf`
    Printf,
    /// `__assertfail`
    AssertFail,
    /// `malloc`
    Malloc,
    /// `free`
    Free,
}

/// A call instruction: places in the caller's frame, as offset and bytes.
#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    pub callee: Callee,
    pub arguments: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

/// A function of the device run time.
pub(crate) fn built_in(name: &str) -> Option<Callee> {
    Some(match name {
        "vprintf" => Callee::Printf,
        "__assertfail" => Callee::AssertFail,
        "malloc" => Callee::Malloc,
        "free" => Callee::Free,
        _ => return None,
    })
}

/// Register memory of an activation; as aligned as the slots in it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Line(pub [u8; 128]);

/// A function that runs, and what to go back to.
pub(crate) struct Activation {
    /// Its register file.
    file: Box<[Line]>,
    /// Index in [`Code::functions`](crate::emulator::ir::Code).
    function: u32,
    /// Lanes that were called with.
    called: u32,
    /// Of the caller: lanes on its path, register file, frame, stack top, returned lanes, divergence floor.
    active: u32,
    registers: *mut u8,
    frame: u32,
    top: u32,
    returned: u32,
    floor: usize,
    /// The call site, and the instruction behind it.
    site: u32,
    next: u32,
}

/// What a warp needs to call functions.
#[derive(Default)]
pub(crate) struct Calls {
    /// Register file of each function, constants in place, as an activation begins with it.
    pub templates: Vec<Box<[Line]>>,
    /// Register files to use again, by function.
    spare: Vec<Vec<Box<[Line]>>>,
    /// Where `malloc` allocates.
    pub heap: Option<Arc<DeviceHeap>>,
    activations: Vec<Activation>,
}

impl Calls {
    /// No calls yet, of kernels that allocate from this heap.
    pub(crate) fn with_heap(heap: Option<Arc<DeviceHeap>>) -> Calls {
        Calls {
            heap,
            ..Calls::default()
        }
    }

    /// Calls that the warp is in.
    pub(crate) fn depth(&self) -> usize {
        self.activations.len()
    }

    /// Forgets everything about the block before.
    pub(crate) fn reset(&mut self) {
        self.activations.clear();
    }
}

/// Calls nested deeper than this are a fault whatever their frames need.
const DEPTH_LIMIT: usize = 1 << 14;

/// Starts function number `function` (in the kernel's list) in the warp's masked lanes.
fn enter(warp: &mut Warp, ip: *const Ins, site: u32, function: u32) -> *const Ins {
    // SAFETY: the kernel's code outlives its warps.
    let code = unsafe { &*warp.program };
    let (routine, frame) = &code.functions[function as usize];
    let base = (warp.top + crate::emulator::ir::CALL_BYTES).next_multiple_of(16);
    let end = u64::from(base) + u64::from(frame.bytes);
    let depth = warp.calls.activations.len();
    if end > u64::from(warp.local_bytes) || depth >= DEPTH_LIMIT {
        let (lane, bytes) = (warp.mask.trailing_zeros(), warp.local_bytes);
        return warp.fail(ip, lane, |site| Fault::StackOverflow {
            site,
            depth: depth as u32 + 1,
            bytes,
        });
    }
    let site_data = &code.sites[site as usize];
    // Results that the function does not give are what was there before, as with hardware's calling convention.
    if site_data.arguments.len() != frame.params.len() {
        let message = format!(
            "a function of {} parameters is called with {}",
            frame.params.len(),
            site_data.arguments.len()
        );
        let lane = warp.mask.trailing_zeros();
        return warp.fail(ip, lane, |site| Fault::Unsupported { site, message });
    }
    let lanes = warp.mask;
    let pairs = site_data.arguments.iter().zip(&frame.params);
    for (&(from, given), &(to, wanted)) in pairs {
        warp.copy_in_stack(lanes, warp.frame + from, base + to, given.min(wanted));
    }
    let calls = &mut warp.calls;
    if calls.spare.len() < calls.templates.len() {
        calls.spare.resize_with(calls.templates.len(), Vec::new);
    }
    let template = &calls.templates[function as usize];
    let mut file = match calls.spare[function as usize].pop() {
        Some(mut file) => {
            file.copy_from_slice(template);
            file
        }
        None => template.clone(),
    };
    let registers: *mut u8 = file.as_mut_ptr().cast();
    let next = warp.pc(ip) + 1;
    warp.calls.activations.push(Activation {
        file,
        function,
        called: lanes,
        active: warp.active,
        registers: warp.regs,
        frame: warp.frame,
        top: warp.top,
        returned: warp.returned,
        floor: warp.floor,
        site,
        next,
    });
    warp.regs = registers;
    warp.frame = base;
    warp.top = end as u32;
    warp.returned = 0;
    warp.floor = warp.stack.len();
    warp.active = lanes;
    warp.mask = lanes;
    for slot in &routine.constants {
        if let crate::emulator::ir::Constant::Frame(offset) = slot.constant {
            let value = base + offset;
            if slot.class == RegClass::B64 {
                // SAFETY: the slot lies in the function's register file.
                unsafe { *warp.slot::<[u64; LANES]>(slot.offset) = [value.into(); LANES] };
            } else {
                // SAFETY: as above.
                unsafe { *warp.slot::<[u32; LANES]>(slot.offset) = [value; LANES] };
            }
        }
    }
    warp.at(routine.entry)
}

impl Warp {
    /// Ends the innermost activation and gives the instruction behind its call, or `None` in the kernel itself or when no
    /// lane is left to go on there.
    pub(crate) fn end_activation(&mut self) -> Option<*const Ins> {
        let Activation {
            file,
            function,
            called,
            active,
            registers,
            frame,
            top,
            returned,
            floor,
            site,
            next,
        } = self.calls.activations.pop()?;
        // SAFETY: the kernel's code outlives its warps.
        let code = unsafe { &*self.program };
        let results = &code.functions[function as usize].1.returns;
        let pairs = results.iter().zip(&code.sites[site as usize].returns);
        for (&(from, given), &(to, wanted)) in pairs {
            let lanes = called & self.live;
            self.copy_in_stack(lanes, self.frame + from, frame + to, given.min(wanted));
        }
        self.calls.spare[function as usize].push(file);
        self.regs = registers;
        self.frame = frame;
        self.top = top;
        self.returned = returned;
        self.floor = floor;
        self.active = active & self.live;
        self.mask = self.active;
        Some(self.at(next))
    }

    /// Copies bytes of the stacks of some lanes. Both ranges are variables of frames, which lie inside of the stack.
    fn copy_in_stack(&mut self, lanes: u32, from: u32, to: u32, bytes: u32) {
        let limit = u64::from(self.local_bytes);
        if u64::from(from) + u64::from(bytes) > limit || u64::from(to) + u64::from(bytes) > limit {
            return;
        }
        for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
            let stack = self.local.wrapping_add(lane * self.local_bytes as usize);
            let (from, to) = (
                stack.wrapping_add(from as usize),
                stack.wrapping_add(to as usize),
            );
            // SAFETY: both ranges were checked to lie inside of the lane's stack.
            unsafe { std::ptr::copy(from, to, bytes as usize) };
        }
    }
}

/// A call by name. `imm`: call site.
struct Direct;
impl Op for Direct {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let site = unsafe { &*ip }.imm as u32;
        // SAFETY: the kernel's code outlives its warps.
        let code = unsafe { &*warp.program };
        let Callee::Function(number) = code.sites[site as usize].callee else {
            return unknown_function(warp, ip, 0);
        };
        match code.by_number[number as usize] {
            Some(function) => enter(warp, ip, site, function),
            None => unknown_function(warp, ip, u64::from(number)),
        }
    }
}

/// A call through a register. `imm`: call site; `ops[0]`: address. Lanes with the same address go together; the instruction
/// is executed again for the others, and a `Join` follows it.
struct Indirect;
impl Op for Indirect {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operand is a slot of 32 lanes.
        let addresses = unsafe { warp.read::<u64>(ins.ops[0]) };
        let address = addresses[warp.mask.trailing_zeros() as usize & 31];
        let same = (0..LANES).fold(0, |bits, lane| {
            bits | u32::from(addresses[lane] == address) << lane
        }) & warp.mask;
        // SAFETY: the kernel's code outlives its warps.
        let code = unsafe { &*warp.program };
        let number = address.wrapping_sub(FUNCTION_WINDOW) / 16;
        let function = number
            .checked_sub(1)
            .filter(|_| address % 16 == 0)
            .and_then(|number| *code.by_number.get(usize::try_from(number).ok()?)?);
        let Some(function) = function else {
            return unknown_function(warp, ip, address);
        };
        let rest = warp.mask & !same;
        if rest != 0 {
            warp.stack.push(super::warp::Frame {
                join: warp.pc(ip) + 1,
                restore: warp.active,
                other_pc: warp.pc(ip),
                other_mask: rest,
            });
        }
        warp.active = same;
        warp.mask = same;
        enter(warp, ip, ins.imm as u32, function)
    }
}

#[cold]
fn unknown_function(warp: &mut Warp, ip: *const Ins, address: u64) -> *const Ins {
    let lane = warp.mask.trailing_zeros();
    let message = format!("a call of {address:#x}, which is not a function of the module");
    warp.fail(ip, lane, |site| Fault::Unsupported { site, message })
}

/// A function of the device run time. `imm`: call site.
struct HostCall;
impl Op for HostCall {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let site = unsafe { &*ip }.imm as usize;
        // SAFETY: the kernel's code outlives its warps.
        let site = unsafe { &(&(*warp.program).sites)[site] };
        match site.callee {
            Callee::Printf => host_call::printf(warp, ip, site),
            Callee::Malloc => heap::malloc(warp, ip, site),
            Callee::Free => heap::free(warp, ip, site),
            _ => host_call::assert_fail(warp, ip, site),
        }
    }
}

/// `alloca`: a piece of the stack, at the same offset for all lanes. `ops`: d, size; `imm`: alignment.
struct Allocate<const WIDE: bool>;
impl<const WIDE: bool> Op for Allocate<WIDE> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operand is a slot of 32 lanes of this width.
        let sizes = unsafe { lanes::<WIDE>(warp, ins.ops[1]) };
        let mask = warp.mask;
        let size = (0..LANES)
            .filter(|lane| mask >> lane & 1 != 0)
            .map(|lane| sizes[lane])
            .max()
            .unwrap_or(0);
        let start = u64::from(warp.top).next_multiple_of(ins.imm as u64);
        let end = start.saturating_add(size);
        if end > u64::from(warp.local_bytes) {
            let (lane, bytes) = (warp.mask.trailing_zeros(), warp.local_bytes);
            let depth = warp.calls.activations.len() as u32;
            return warp.fail(ip, lane, |site| Fault::StackOverflow { site, depth, bytes });
        }
        warp.top = end as u32;
        // SAFETY: the first operand is a destination of this width.
        unsafe { set_lanes::<WIDE>(warp, ins.ops[0], start) };
        ip.wrapping_add(1)
    }
}

/// `stacksave`. `ops`: d.
struct StackSave<const WIDE: bool>;
impl<const WIDE: bool> Op for StackSave<WIDE> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let top = warp.top;
        // SAFETY: the first operand is a destination of this width.
        unsafe { set_lanes::<WIDE>(warp, ins.ops[0], top.into()) };
        ip.wrapping_add(1)
    }
}

/// `stackrestore`. `ops`: a. Lanes on another path may have allocated since: then the memory is kept until the function
/// ends.
struct StackRestore<const WIDE: bool>;
impl<const WIDE: bool> Op for StackRestore<WIDE> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operand is a slot of 32 lanes of this width.
        let tops = unsafe { lanes::<WIDE>(warp, ins.ops[0]) };
        let mask = warp.mask;
        let highest = (0..LANES)
            .filter(|lane| mask >> lane & 1 != 0)
            .map(|lane| tops[lane])
            .max()
            .unwrap_or(0);
        if warp.stack.len() == warp.floor && highest <= u64::from(warp.top) {
            warp.top = highest as u32;
        }
        ip.wrapping_add(1)
    }
}

unsafe fn lanes<const WIDE: bool>(warp: &Warp, slot: u32) -> [u64; LANES] {
    if WIDE {
        // SAFETY: the caller passes a slot of this width.
        unsafe { warp.read::<u64>(slot) }
    } else {
        // SAFETY: as above.
        unsafe { warp.read::<u32>(slot) }.map(u64::from)
    }
}

unsafe fn set_lanes<const WIDE: bool>(warp: &mut Warp, slot: u32, value: u64) {
    if WIDE {
        // SAFETY: the caller passes a slot of this width.
        unsafe { warp.write64(slot, &[value; LANES]) }
    } else {
        // SAFETY: as above.
        unsafe { warp.write32(slot, &[value as u32; LANES]) }
    }
}

pub(crate) fn handler(callee: Callee) -> Handler {
    match callee {
        Callee::Function(_) => plain_handler::<Direct>(),
        Callee::Indirect => plain_handler::<Indirect>(),
        Callee::Printf | Callee::AssertFail | Callee::Malloc | Callee::Free => {
            plain_handler::<HostCall>()
        }
    }
}

pub(crate) fn allocate(class: RegClass) -> Handler {
    if class == RegClass::B64 {
        plain_handler::<Allocate<true>>()
    } else {
        plain_handler::<Allocate<false>>()
    }
}

pub(crate) fn stack_save(class: RegClass) -> Handler {
    if class == RegClass::B64 {
        plain_handler::<StackSave<true>>()
    } else {
        plain_handler::<StackSave<false>>()
    }
}

pub(crate) fn stack_restore(class: RegClass) -> Handler {
    if class == RegClass::B64 {
        plain_handler::<StackRestore<true>>()
    } else {
        plain_handler::<StackRestore<false>>()
    }
}
