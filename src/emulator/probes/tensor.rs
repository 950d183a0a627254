//! Bulk copies of tensors, and changes of their maps. The kernel's tensor map is the variable `map`, which the driver makes ([`Map`]) before the launch.
//!
//! The tensor is a KiB of operands or of results. Behind a form stand its elements and dimensions, the box, where it is, and
//! what else is special; a thread's results are its 32 bytes of the KiB that is copied to, where nothing is copied all ones
//! or, of results, operands.

use crate::driver::{TensorElement, TiledTensor};

use super::asynchronous::{MEET, ONES};
use super::matrix::names;
use super::memory::{IMAGE, POLICY};
use super::{Family, Fill, Needs, Pattern, Probe};

/// The tensor map of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The tensor.
    pub tensor: TiledTensor,
    /// The module's variable that it lies in.
    pub variable: &'static str,
    /// Coordinates of the box.
    pub at: Vec<i32>,
    /// What the kernel makes of the map before it uses it.
    pub changed: Option<Changed>,
}

/// A tensor map after `tensormap.replace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The tensor.
    pub tensor: TiledTensor,
    /// Bytes by which its address has moved on.
    pub offset: u64,
}

/// `%r0`: the thread's 32 bytes of the KiB; `%r1`: the mbarrier behind it. `%rd0`: the map.
const START: &str = "shl.b32 %r0, %t, 5; add.u32 %r0, %r0, %s; add.u32 %r1, %s, 1024; mov.u64 %rd0, map{n}; setp.eq.u32 %p1, %t, 0;";
const READ: &str = "ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r0]; ld.shared.v4.b32 {%r14, %r15, %r16, %r17}, [%r0+16];\n\
     st.global.v4.b32 [%out], {%r10, %r11, %r12, %r13}; st.global.v4.b32 [%out+16], {%r14, %r15, %r16, %r17};";
const INIT: &str = "@%p1 mbarrier.init.shared.b64 [%r1], 1;";
const WAIT: &str = "WAIT{n}: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra WAIT{n};";
const WAIT_CLUSTER: &str = "WAIT{n}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra WAIT{n};";
const DONE: &str = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";

/// The shape of a tensor of a KiB whose elements have so many bytes; of each rank one.
fn tensor(element: TensorElement, rank: usize) -> TiledTensor {
    // Bytes of a row, then elements.
    let (row, outer): (u64, &[u64]) = match rank {
        1 => (1024, &[]),
        2 => (64, &[16]),
        3 => (32, &[8, 4]),
        4 => (32, &[4, 4, 2]),
        _ => (32, &[4, 2, 2, 2]),
    };
    let bytes = element.bytes();
    let mut dims = vec![row / bytes];
    dims.extend(outer);
    let mut strides = Vec::new();
    let mut stride = row;
    for size in outer {
        strides.push(stride);
        stride *= size;
    }
    let mut box_dims = vec![(row.min(128) / bytes) as u32];
    box_dims.extend(outer.iter().map(|size| (*size as u32).min(4)));
    TiledTensor {
        element,
        element_strides: vec![1; rank],
        dims,
        strides,
        box_dims,
        swizzle_bytes: 0,
        nan_fill: false,
    }
}

impl Map {
    fn new(element: TensorElement, rank: usize, at: &[i32]) -> Map {
        Map {
            tensor: tensor(element, rank),
            variable: "operands",
            at: at.to_vec(),
            changed: None,
        }
    }

    /// Rows of one span of a swizzle: a tensor of two dimensions.
    fn swizzled(element: TensorElement, span: u32, at: &[i32]) -> Map {
        let bytes = element.bytes();
        let mut map = Map::new(element, 2, at);
        let width = u64::from(span);
        map.tensor.dims = vec![width / bytes, 1024 / width];
        map.tensor.strides = vec![width];
        map.tensor.box_dims = vec![(width / bytes) as u32, (1024 / width) as u32];
        map.tensor.swizzle_bytes = span;
        map
    }

    fn results(mut self) -> Map {
        self.variable = "results";
        self
    }

    fn nan(mut self) -> Map {
        self.tensor.nan_fill = true;
        self
    }

    fn steps(mut self, steps: &[u32]) -> Map {
        self.tensor.element_strides = steps.to_vec();
        self
    }

    fn rank(&self) -> usize {
        self.at.len()
    }

    /// Bytes of a box in shared memory.
    fn bytes(&self) -> u64 {
        let tensor = self
            .changed
            .as_ref()
            .map_or(&self.tensor, |changed| &changed.tensor);
        let steps = tensor.element_strides.iter();
        let extent = tensor.box_dims.iter().zip(steps);
        let elements: u64 = extent
            .map(|(size, step)| u64::from(size.div_ceil(*step)))
            .product();
        elements * tensor.element.bytes()
    }

    /// PTX behind which `%r20`, ... are the coordinates, and the operand that names map and box.
    fn operand(&self) -> (String, String) {
        let set: Vec<String> = self
            .at
            .iter()
            .enumerate()
            .map(|(axis, at)| format!("mov.s32 %r{}, {at};", 20 + axis))
            .collect();
        let names = names("%r", 20, self.rank());
        (set.join(" "), format!("[%rd0, {names}]"))
    }

    fn described(&self, more: &str) -> String {
        let tensor = &self.tensor;
        let element = format!("{:?}", tensor.element).to_lowercase();
        let mut text = format!(
            "{element} {}, box {} at {}",
            joined(&tensor.dims, "x"),
            joined(&tensor.box_dims, "x"),
            joined(&self.at, " ")
        );
        if tensor.swizzle_bytes > 0 {
            text += &format!(", {}B", tensor.swizzle_bytes);
        }
        if tensor.nan_fill {
            text += ", NaN";
        }
        if tensor.element_strides.iter().any(|step| *step > 1) {
            text += &format!(", steps {}", joined(&tensor.element_strides, "x"));
        }
        text + more
    }

    fn probe(self, form: String, inputs: &[Fill], needs: Needs, body: String) -> Probe {
        let probe = Probe::new(Family::Asynchronous, form, 0)
            .inputs(inputs)
            .memory(8);
        let (set, _) = self.operand();
        let body = format!("{START} {set}\n{body}");
        probe.shared(1040).needs(needs).mapped(self).body(body)
    }
}

fn joined<T: ToString>(list: &[T], between: &str) -> String {
    let names: Vec<String> = list.iter().map(ToString::to_string).collect();
    names.join(between)
}

/// A KiB of elements, 32 bytes a thread.
fn image(element: TensorElement) -> [Fill; 8] {
    [Fill::Word(match element {
        TensorElement::F16 => Pattern::Small("f16"),
        TensorElement::Bf16 => Pattern::Small("bf16"),
        TensorElement::F32 => Pattern::Small("f32"),
        _ => Pattern::Noise,
    }); 8]
}

const ELEMENTS: [TensorElement; 10] = [
    TensorElement::U8,
    TensorElement::U16,
    TensorElement::U32,
    TensorElement::S32,
    TensorElement::U64,
    TensorElement::S64,
    TensorElement::F16,
    TensorElement::F32,
    TensorElement::F64,
    TensorElement::Bf16,
];

/// Corners of boxes inside, over each edge, and outside of the tensors of each rank.
const CORNERS: [[&[i32]; 3]; 5] = [
    [&[32], &[-16], &[1000]],
    [&[0, 3], &[-4, 14], &[4, -2]],
    [&[0, 2, 0], &[-4, 6, 2], &[4, -1, -1]],
    [&[0, 0, 0, 0], &[-4, 2, 1, 1], &[4, -1, -2, -1]],
    [&[0, 0, 0, 0, 0], &[-4, 2, 1, 1, 1], &[4, -1, -1, 0, -1]],
];

pub(super) fn list(probes: &mut Vec<Probe>) {
    loads(probes);
    stores(probes);
    reductions(probes);
    changes(probes);
    let probe = Map::new(TensorElement::U32, 2, &[0, 3]);
    let body = "prefetch.tensormap [%rd0]; st.global.v4.b32 [%out], {%a0, %a1, %a2, %a3}; st.global.v4.b32 [%out+16], {%a4, %a5, %a6, %a7};";
    probes.push(probe.probe(
        "prefetch.tensormap".into(),
        &IMAGE,
        Needs::HOPPER,
        body.into(),
    ));
}

fn loads(probes: &mut Vec<Probe>) {
    let hopper = Needs::HOPPER;
    let opcode = |rank: usize, window: &str, tile: &str, more: &str| {
        format!(
            "cp.async.bulk.tensor.{rank}d.{window}.global{tile}.mbarrier::complete_tx::bytes{more}"
        )
    };
    let mut add = |map: Map, opcode: String, more: &str, needs: Needs| {
        let (_, operand) = map.operand();
        let (before, hint) = if opcode.ends_with("cache_hint") {
            (POLICY, ", %rd2")
        } else {
            ("", "")
        };
        let body = format!(
            "{ONES} {INIT} {before} fence.proxy.async; bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], {};\n\
             @%p1 {opcode} [%s], {operand}, [%r1]{hint}; {WAIT} {READ}",
            map.bytes()
        );
        let form = format!("{opcode} ({})", map.described(more));
        let fill = image(map.tensor.element);
        probes.push(map.probe(form, &fill, needs, body));
    };
    let cluster = "shared::cluster";
    for element in ELEMENTS {
        for rank in 1..=5 {
            for corner in CORNERS[rank - 1] {
                add(
                    Map::new(element, rank, corner),
                    opcode(rank, cluster, "", ""),
                    "",
                    hopper,
                );
            }
        }
        for span in [32, 64, 128] {
            let map = Map::swizzled(element, span, &[0, -3]);
            add(map, opcode(2, cluster, "", ""), "", hopper);
        }
        if matches!(
            element,
            TensorElement::F16 | TensorElement::Bf16 | TensorElement::F32 | TensorElement::F64
        ) {
            let map = Map::new(element, 3, CORNERS[2][1]).nan();
            add(map, opcode(3, cluster, "", ""), "", hopper);
        }
    }
    let u32_map = |rank: usize| Map::new(TensorElement::U32, rank, CORNERS[rank - 1][1]);
    for rank in 1..=5 {
        add(
            u32_map(rank),
            opcode(rank, cluster, ".tile", ""),
            "",
            hopper,
        );
        add(
            u32_map(rank),
            opcode(rank, "shared::cta", "", ""),
            "",
            hopper.ptx(86),
        );
        let hinted = opcode(rank, cluster, "", ".L2::cache_hint");
        add(u32_map(rank), hinted, "", hopper);
    }
    for (rank, steps) in [
        (2, &[1, 2][..]),
        (2, &[2, 1]),
        (3, &[1, 3, 1]),
        (3, &[1, 1, 2]),
    ] {
        add(
            u32_map(rank).steps(steps),
            opcode(rank, cluster, "", ""),
            "",
            hopper,
        );
    }
    // Block 0 sends to the blocks of a mask.
    for rank in [1, 2, 5] {
        for mask in [1, 2, 3] {
            let map = u32_map(rank);
            let opcode = opcode(rank, cluster, "", ".multicast::cluster");
            let (_, operand) = map.operand();
            let form = format!("{opcode} ({})", map.described(&format!(", mask {mask}")));
            let body = format!(
                "{ONES} {INIT} @%p1 fence.mbarrier_init.release.cluster; mov.u32 %r5, %cluster_ctarank; mov.b32 %r6, {mask}; shr.u32 %r7, %r6, %r5; and.b32 %r7, %r7, 1; mul.lo.u32 %r7, %r7, {};\n\
                 @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], %r7; fence.proxy.async; {MEET} cvt.u16.u32 %rs1, %r6; setp.eq.and.u32 %p3, %r5, 0, %p1;\n\
                 @%p3 {opcode} [%s], {operand}, [%r1], %rs1; {WAIT_CLUSTER} {READ} {MEET}",
                map.bytes()
            );
            let probe = map.probe(form, &IMAGE, Needs::HOPPER_ONLY, body);
            probes.push(probe.cluster(2));
        }
    }
    for rank in 1..=5 {
        let map = u32_map(rank);
        let opcode = format!("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile");
        let (_, operand) = map.operand();
        let form = format!("{opcode} ({})", map.described(""));
        let body = format!(
            "@%p1 {opcode} {operand}; st.global.v4.b32 [%out], {{%a0, %a1, %a2, %a3}}; st.global.v4.b32 [%out+16], {{%a4, %a5, %a6, %a7}};"
        );
        probes.push(map.probe(form, &IMAGE, hopper, body));
    }
}

/// Results that hold the first eight words of the operands, and shared memory that holds the last eight; then `action`.
fn to_results(action: &str) -> String {
    format!(
        "st.global.v4.b32 [%out], {{%a0, %a1, %a2, %a3}}; st.global.v4.b32 [%out+16], {{%a4, %a5, %a6, %a7}};\n\
         st.shared.v4.b32 [%r0], {{%a8, %a9, %a10, %a11}}; st.shared.v4.b32 [%r0+16], {{%a12, %a13, %a14, %a15}};\n\
         fence.proxy.async; bar.sync 0; @!%p1 bra END{{n}}; {action} {DONE} END{{n}}: bar.sync 0;"
    )
}

fn twice(element: TensorElement) -> Vec<Fill> {
    [image(element), image(element)].concat()
}

fn stores(probes: &mut Vec<Probe>) {
    let mut add = |map: Map, opcode: String| {
        let map = map.results();
        let (_, operand) = map.operand();
        let (before, hint) = if opcode.ends_with("cache_hint") {
            (POLICY, ", %rd2")
        } else {
            ("", "")
        };
        let form = format!("{opcode} ({})", map.described(""));
        let body = to_results(&format!("{before} {opcode} {operand}, [%s]{hint};"));
        let fill = twice(map.tensor.element);
        probes.push(map.probe(form, &fill, Needs::HOPPER, body));
    };
    let opcode =
        |rank: usize, more: &str| format!("cp.async.bulk.tensor.{rank}d.global.shared::cta{more}");
    for element in ELEMENTS {
        for rank in 1..=5 {
            for corner in &CORNERS[rank - 1][..2] {
                add(Map::new(element, rank, corner), opcode(rank, ".bulk_group"));
            }
        }
        for span in [32, 64, 128] {
            add(
                Map::swizzled(element, span, &[0, 2]),
                opcode(2, ".bulk_group"),
            );
        }
    }
    for rank in 1..=5 {
        let map = Map::new(TensorElement::U32, rank, CORNERS[rank - 1][2]);
        add(map.clone(), opcode(rank, ".tile.bulk_group"));
        add(map, opcode(rank, ".bulk_group.L2::cache_hint"));
    }
    let map = Map::new(TensorElement::U32, 2, CORNERS[1][1]);
    add(map.clone().steps(&[1, 2]), opcode(2, ".bulk_group"));
    add(map.steps(&[2, 1]), opcode(2, ".bulk_group"));
}

/// Operations of `cp.reduce.async.bulk.tensor`, and types that have them.
const REDUCTIONS: [(&str, &[TensorElement]); 8] = {
    use TensorElement::{Bf16, F16, F32, S32, S64, U32, U64};
    [
        ("add", &[U32, S32, U64, F16, Bf16, F32]),
        ("min", &[U32, S32, U64, S64, F16, Bf16]),
        ("max", &[U32, S32, U64, S64, F16, Bf16]),
        ("inc", &[U32]),
        ("dec", &[U32]),
        ("and", &[U32, U64]),
        ("or", &[U32, U64]),
        ("xor", &[U32, U64]),
    ]
};

fn reductions(probes: &mut Vec<Probe>) {
    for (operation, elements) in REDUCTIONS {
        for &element in elements {
            for rank in 1..=5 {
                let map = Map::new(element, rank, CORNERS[rank - 1][1]).results();
                let opcode = format!(
                    "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operation}.tile.bulk_group"
                );
                let (_, operand) = map.operand();
                let form = format!("{opcode} ({})", map.described(""));
                let body = to_results(&format!("{opcode} {operand}, [%s];"));
                let fill = twice(element);
                probes.push(map.probe(form, &fill, Needs::HOPPER, body));
            }
        }
    }
}

/// Fields that a kernel replaces: the form, the statement's operands behind the map, and what they make of it.
fn changes(probes: &mut Vec<Probe>) {
    type Change = fn(&mut Changed);
    let plain = Map::new(TensorElement::U32, 2, &[0, 3]);
    let short = Map::new(TensorElement::U16, 2, &[0, 3]);
    let deep = Map::new(TensorElement::U32, 3, &[0, 2]);
    let floats = Map::new(TensorElement::F32, 2, &[-4, 14]);
    let fields: [(&Map, &str, &str, &str, &str, Change); 17] = [
        (&plain, "global_address", "b64", "", "%rd5", |map| {
            map.offset = 256
        }),
        (&deep, "rank", "b32", "", "1", |map| {
            map.tensor.dims.pop();
            map.tensor.strides.pop();
            map.tensor.box_dims.pop();
            map.tensor.element_strides.pop();
        }),
        (&plain, "global_dim", "b32", "0, ", "%r8", |map| {
            map.tensor.dims[0] = 5
        }),
        (&plain, "global_dim", "b32", "1, ", "%r8", |map| {
            map.tensor.dims[1] = 5
        }),
        (&plain, "global_stride", "b64", "0, ", "%rd6", |map| {
            map.tensor.strides[0] = 128
        }),
        (&plain, "box_dim", "b32", "0, ", "8", |map| {
            map.tensor.box_dims[0] = 8
        }),
        (&plain, "box_dim", "b32", "1, ", "%r8", |map| {
            map.tensor.box_dims[1] = 5
        }),
        (&plain, "element_stride", "b32", "0, ", "2", |map| {
            map.tensor.element_strides[0] = 2
        }),
        (&plain, "element_stride", "b32", "1, ", "2", |map| {
            map.tensor.element_strides[1] = 2
        }),
        (&short, "elemtype", "b32", "", "0", |map| {
            map.tensor.element = TensorElement::U8
        }),
        (&plain, "elemtype", "b32", "", "3", |map| {
            map.tensor.element = TensorElement::S32
        }),
        (&plain, "interleave_layout", "b32", "", "0", |_| {}),
        (&plain, "swizzle_mode", "b32", "", "0", |_| {}),
        (&plain, "swizzle_mode", "b32", "", "2", |map| {
            map.tensor.swizzle_bytes = 64
        }),
        (&plain, "swizzle_mode", "b32", "", "3", |map| {
            map.tensor.swizzle_bytes = 128
        }),
        (&floats, "fill_mode", "b32", "", "0", |_| {}),
        (&floats, "fill_mode", "b32", "", "1", |map| {
            map.tensor.nan_fill = true
        }),
    ];
    // The map's copy is changed in shared memory and put back by the warp, or in global memory.
    let copied = "ld.global.b32 %r2, [%rd3];";
    let fence = "fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;";
    for (before, space, place, behind) in [
        (
            "st.shared.b32 [%r3+1152], %r2; bar.warp.sync -1; add.u32 %r4, %s, 1152;",
            ".shared::cta",
            "[%r4]",
            "bar.warp.sync -1; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd4], [%r4], 128;",
        ),
        (
            "add.u64 %rd3, %rd4, %rd7; st.global.b32 [%rd3], %r2; bar.warp.sync -1;",
            ".global",
            "[%rd4]",
            "bar.warp.sync -1; fence.proxy.tensormap::generic.release.gpu;",
        ),
        (
            "add.u64 %rd3, %rd4, %rd7; st.global.b32 [%rd3], %r2; bar.warp.sync -1;",
            "",
            "[%rd4]",
            "bar.warp.sync -1; fence.proxy.tensormap::generic.release.gpu;",
        ),
    ] {
        for (map, field, ty, axis, value, change) in &fields {
            let mut map = (*map).clone();
            let mut changed = Changed {
                tensor: map.tensor.clone(),
                offset: 0,
            };
            change(&mut changed);
            map.changed = Some(changed);
            let opcode = format!("tensormap.replace.tile.{field}{space}.b1024.{ty}");
            let form = format!("{opcode} ({axis}{value}, {})", map.described(""));
            let (_, operand) = map.operand();
            let body = format!(
                "{ONES} {INIT} shl.b32 %r3, %t, 2; cvt.u64.u32 %rd7, %r3; add.u32 %r3, %r3, %s; add.u64 %rd3, %rd0, %rd7; {copied} mov.u64 %rd4, changed{{n}};\n\
                 mov.b32 %r8, 5; mov.b64 %rd6, 128; add.u64 %rd5, %in, 256; {before}\n@%p1 {opcode} {place}, {axis}{value};\n{behind} {fence}\n\
                 fence.proxy.async; bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], {};\n\
                 mov.u64 %rd0, %rd4; @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%s], {operand}, [%r1]; {WAIT} {READ}",
                map.bytes()
            );
            let fill = image(map.tensor.element);
            let probe = map.probe(form, &fill, Needs::HOPPER_ONLY.ptx(83), body);
            let globals = ".global .align 128 .b8 changed{n}[128];\n";
            probes.push(probe.shared(1280).globals(globals));
        }
    }
}
