//! Models of bulk copies of tensors, by the PTX ISA's "Tensors" and `cuTensorMapEncodeTiled`.

use super::asynchronous::{OPERATIONS, bytes, reduce};
use super::{Scene, words};
use neap::driver::TensorElement;
use neap::emulator::probes::Map;

pub fn model(scene: &Scene<'_>, map: &Map) -> Vec<Vec<u32>> {
    let form = scene.form;
    if form.contains("prefetch") {
        return scene.each(|_, row| words(&bytes(row, 0, 8, 4)));
    }
    if let Some(changed) = &map.changed {
        let after = Map {
            tensor: changed.tensor.clone(),
            changed: None,
            ..map.clone()
        };
        return moved(scene, &after, changed.offset as usize);
    }
    moved(scene, map, 0)
}

/// `offset`: byte of the variable at which the tensor begins.
fn moved(scene: &Scene<'_>, map: &Map, offset: usize) -> Vec<Vec<u32>> {
    let form = scene.form;
    let size = map.tensor.element.bytes() as usize;
    if map.variable == "results" {
        let mut tensor: Vec<u8> = scene
            .rows
            .iter()
            .flat_map(|row| bytes(row, 0, 8, 4))
            .collect();
        let shared: Vec<u8> = scene
            .rows
            .iter()
            .flat_map(|row| bytes(row, 8, 16, 4))
            .collect();
        let opcode = form.split(' ').next().expect("an opcode");
        let operation = opcode.split('.').find(|part| OPERATIONS.contains(part));
        for (place, element) in elements(map) {
            let (Some(element), source) = (element, &shared[place..place + size]) else {
                continue;
            };
            let target = &mut tensor[element..element + size];
            let value = match operation {
                Some(operation) => reduce(operation, ptx_type(map.tensor.element), target, source),
                None => source.to_vec(),
            };
            target.copy_from_slice(&value);
        }
        return tensor.chunks(32).map(words).collect();
    }
    // The map's tensor is the first KiB: operands of the first block.
    let tensor: Vec<u8> = scene
        .rows
        .iter()
        .flat_map(|row| bytes(row, 0, 8, 4))
        .collect();
    let mut shared = vec![0xff; 1024];
    for (place, element) in elements(map) {
        let fill = fill(map).to_le_bytes();
        let value = element.map_or(&fill[..size], |element| &tensor[offset + element..][..size]);
        shared[place..place + size].copy_from_slice(value);
    }
    let mask = form.split_once("mask ").map_or(3, |(_, mask)| {
        mask.trim_end_matches(')').parse::<usize>().expect("a mask")
    });
    scene.each(|thread, _| {
        let (block, thread) = (thread / scene.threads, thread % scene.threads);
        if mask >> block & 1 == 0 {
            return vec![u32::MAX; 8];
        }
        words(&shared[32 * thread..32 * (thread + 1)])
    })
}

fn ptx_type(element: TensorElement) -> &'static str {
    match element {
        TensorElement::U32 => "u32",
        TensorElement::S32 => "s32",
        TensorElement::U64 => "u64",
        TensorElement::S64 => "s64",
        TensorElement::F16 => "f16",
        TensorElement::Bf16 => "bf16",
        TensorElement::F32 => "f32",
        element => panic!("no reduction of {element:?}"),
    }
}

/// What an element outside of the tensor is.
fn fill(map: &Map) -> u64 {
    match map.tensor.element {
        _ if !map.tensor.nan_fill => 0,
        TensorElement::F16 | TensorElement::Bf16 => 0x7fff,
        TensorElement::F32 => 0x7fff_ffff,
        TensorElement::F64 => 0x7fff_ffff_ffff_ffff,
        element => panic!("{element:?} has no NaN"),
    }
}

/// The elements of the box, the innermost dimension first: their byte in shared memory, and in the tensor unless they lie
/// outside.
fn elements(map: &Map) -> Vec<(usize, Option<usize>)> {
    let tensor = &map.tensor;
    let rank = tensor.dims.len();
    let size = tensor.element.bytes();
    let mut all = vec![(0u64, true)];
    // From the outermost dimension in: each place is followed by those along the next dimension.
    for axis in (0..rank).rev() {
        let stride = if axis == 0 {
            size
        } else {
            tensor.strides[axis - 1]
        };
        let step = tensor.element_strides[axis];
        let along: Vec<i64> = (0..tensor.box_dims[axis])
            .step_by(step as usize)
            .map(|offset| i64::from(map.at[axis]) + i64::from(offset))
            .collect();
        let inside = |at: i64| at >= 0 && (at as u64) < tensor.dims[axis];
        all = all
            .into_iter()
            .flat_map(|(address, within)| {
                along.iter().map(move |&at| {
                    (
                        address.wrapping_add((at as u64).wrapping_mul(stride)),
                        within && inside(at),
                    )
                })
            })
            .collect();
    }
    let units = (tensor.swizzle_bytes / 16).saturating_sub(1) as usize;
    let place = |number: usize| {
        let linear = number * size as usize;
        linear ^ ((linear / 128) & units) << 4
    };
    all.into_iter()
        .enumerate()
        .map(|(number, (address, within))| (place(number), within.then_some(address as usize)))
        .collect()
}
