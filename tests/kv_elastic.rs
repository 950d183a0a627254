//! KV memory that moves and shrinks under captured graphs, on emulated devices.

use neap::arena::AllocationGate;
use neap::driver::{Context, DevicePtr, Driver, GraphExec, Stream};
use neap::emulator::{self, Profile};
use neap::kernels::{Kernels, PageCopyParams};
use neap::kv::{
    AttentionKind, Geometry, GroupId, KvArena, KvDtype, KvError, KvSequences, LayerSpec, PageEntry,
    PageMove, PageSize, Phase,
};

const MIB: u64 = 1 << 20;
const GRAIN: u64 = 2 * MIB;

struct Rig {
    kv: KvArena,
    sequences: KvSequences,
    kernels: Kernels,
    /// `[64, 2]` u32: the pairs of a copy.
    pairs: neap::arena::Arena,
    stream: Stream,
    context: Context,
    ordinal: u32,
}

/// The bundled model's layers on a device of 512 MiB.
fn rig() -> Rig {
    let ordinal = emulator::add_device(Profile::named("tiny").expect("a known profile"));
    let context = Context::retain_primary(&Driver::emulator().device(ordinal).unwrap()).unwrap();
    let spec = |kind| LayerSpec {
        kind,
        num_kv_heads: 2,
        k_head_dim: 64,
        v_head_dim: 64,
    };
    let mut layers = vec![spec(AttentionKind::Sliding { window: 64 }); 5];
    layers.push(spec(AttentionKind::Full));
    let geometry = Geometry::new(&layers, PageSize::new(16).unwrap(), KvDtype::Bf16, None).unwrap();
    let stream = Stream::new(&context).unwrap();
    let kernels = Kernels::load(&context).unwrap();
    let gate = AllocationGate::new();
    let mut pairs = neap::arena::Arena::reserve(&context, &gate, "pairs", GRAIN).unwrap();
    pairs.map_to(GRAIN).unwrap();
    let bound = context.mem_info().unwrap().free_bytes;
    let mut kv = KvArena::reserve(&context, &gate, &geometry, bound).unwrap();
    let extension = kv.extend(32 * MIB, None).unwrap();
    let sequences = KvSequences::new(geometry, kv.layout(), extension.carve.slabs, 64).unwrap();
    Rig {
        kv,
        sequences,
        kernels,
        pairs,
        stream,
        context,
        ordinal,
    }
}

impl Rig {
    fn free_bytes(&self) -> u64 {
        self.context.mem_info().unwrap().free_bytes
    }

    /// Layer chunks of a page.
    fn chunks(
        &self,
        group: GroupId,
        entry: PageEntry,
    ) -> impl Iterator<Item = (DevicePtr, u64)> + use<> {
        let pool = self.kv.layout().pools[group.index()];
        let base = self.kv.base().add(entry.offset_bytes());
        (0..pool.page_bytes / pool.layer_page_bytes).map(move |layer| {
            (
                base.add(layer * pool.layer_stride_bytes),
                pool.layer_page_bytes,
            )
        })
    }

    fn fill(&self, group: GroupId, entry: PageEntry, value: u8) {
        for (layer, (pointer, bytes)) in (0_u8..).zip(self.chunks(group, entry)) {
            self.stream
                .copy_to_device(pointer, &vec![value.wrapping_add(layer); bytes as usize])
                .unwrap();
        }
    }

    fn holds(&self, group: GroupId, entry: PageEntry, value: u8) -> bool {
        (0_u8..)
            .zip(self.chunks(group, entry))
            .all(|(layer, (pointer, bytes))| {
                let mut found = vec![0; bytes as usize];
                self.stream.copy_to_host(&mut found, pointer).unwrap();
                found.iter().all(|byte| *byte == value.wrapping_add(layer))
            })
    }

    /// Runs the copies of the planned step, as the engine does at its start, and completes it.
    fn run_copies(&mut self) {
        let copies: Vec<PageMove> = self.sequences.page_copies().to_vec();
        let step = self.sequences.begin_step();
        for group in self.sequences.geometry().group_ids() {
            let of_group = copies.iter().filter(|copy| copy.group == group);
            let pairs = of_group
                .flat_map(|copy| [copy.source.0, copy.target.0])
                .collect::<Vec<_>>();
            let pool = self.kv.layout().pools[group.index()];
            if pairs.is_empty() {
                continue;
            }
            let bytes = pairs
                .iter()
                .flat_map(|entry| entry.to_le_bytes())
                .collect::<Vec<_>>();
            self.stream
                .copy_to_device(self.pairs.base(), &bytes)
                .unwrap();
            let params = PageCopyParams {
                pairs: self.pairs.base(),
                base: self.kv.base(),
                layer_stride: pool.layer_stride_bytes,
                num_pairs: pairs.len() as u32 / 2,
                num_layers: (pool.page_bytes / pool.layer_page_bytes) as u32,
                layer_page_bytes: pool.layer_page_bytes as u32,
                ..PageCopyParams::default()
            };
            // SAFETY: all entries are pages of the arena; no target is a source, and none is a target twice.
            unsafe { self.kernels.page_copy(&self.stream, &params) }.unwrap();
            self.stream.synchronize().unwrap();
        }
        self.sequences.complete_step(step).unwrap();
    }

    /// A graph that writes the null page of the full pool.
    fn graph(&self) -> (GraphExec, DevicePtr) {
        let target = self
            .kv
            .base()
            .add(self.kv.null_page(GroupId(0)).offset_bytes());
        self.stream.begin_capture().unwrap();
        // SAFETY: the null page is backed whenever the graph is launched.
        unsafe { self.stream.memset_d8_async(target, 0x5a, 256) }.unwrap();
        let graph = self.stream.end_capture().unwrap();
        (graph.instantiate().unwrap(), target)
    }

    fn launches(&self, graph: &(GraphExec, DevicePtr)) {
        self.stream.copy_to_device(graph.1, &[0; 256]).unwrap();
        graph.0.launch(&self.stream).unwrap();
        let mut found = [0; 256];
        self.stream.copy_to_host(&mut found, graph.1).unwrap();
        assert_eq!(found, [0x5a; 256]);
    }

    /// A prompt of `tokens`, each of its pages filled with a value of its own.
    fn start(&mut self, tokens: u32, value: u8) -> neap::kv::SequenceId {
        let id = self.sequences.create(tokens + 16).unwrap();
        self.sequences
            .append(id, tokens, Phase::Prefill, &mut Vec::new())
            .unwrap();
        let step = self.sequences.begin_step();
        self.sequences.complete_step(step).unwrap();
        self.sequences.settle(id, tokens).unwrap();
        for (group, column, entry) in self.pages(id) {
            self.fill(
                group,
                entry,
                value
                    .wrapping_add(column as u8)
                    .wrapping_add(group.0 as u8 * 100),
            );
        }
        id
    }

    fn pages(&self, id: neap::kv::SequenceId) -> Vec<(GroupId, u32, PageEntry)> {
        let groups = self.sequences.geometry().group_ids();
        let pages = groups.flat_map(|group| {
            self.sequences
                .table(id, group)
                .unwrap()
                .map(move |(column, entry)| (group, column, entry))
        });
        pages.collect()
    }

    fn is_whole(&self, id: neap::kv::SequenceId, value: u8) -> bool {
        self.pages(id).into_iter().all(|(group, column, entry)| {
            self.holds(
                group,
                entry,
                value
                    .wrapping_add(column as u8)
                    .wrapping_add(group.0 as u8 * 100),
            )
        })
    }
}

#[test]
fn shrinking_moves_pages_gives_back_what_it_says_and_graphs_stay() {
    let mut rig = rig();
    let graph = rig.graph();
    rig.launches(&graph);
    let slabs = rig.sequences.allocator().online_slabs();
    // Sequences all over the carve; those of the lower half go.
    let pages = rig.kv.layout().pools[0].pages_per_slab;
    let filler = (0..u64::from(slabs) / 2).map(|_| rig.sequences.create(pages * 16).unwrap());
    let filler = filler.take(60).collect::<Vec<_>>();
    for id in &filler {
        rig.sequences
            .append(*id, pages * 16, Phase::Prefill, &mut Vec::new())
            .unwrap();
    }
    let step = rig.sequences.begin_step();
    rig.sequences.complete_step(step).unwrap();
    let id = rig.start(1_000, 3);
    for other in filler {
        rig.sequences.release(other).unwrap();
    }
    let highest = |rig: &Rig| {
        rig.pages(id)
            .iter()
            .map(|page| rig.sequences.allocator().slab_of(page.2))
            .max()
            .unwrap()
    };
    let target = highest(&rig) / 2;
    assert!(target > 8, "the sequence stands at the carve's beginning");
    let updates = &mut Vec::new();
    let moves = rig.sequences.shrink(target, updates).unwrap();
    assert!(!moves.is_empty() && !updates.is_empty());
    assert!(
        rig.sequences.allocator().stranded_slabs() > 0,
        "sources wait for the copies"
    );
    rig.run_copies();
    assert_eq!(rig.sequences.allocator().stranded_slabs(), 0);
    assert!(highest(&rig) < target);
    assert!(rig.is_whole(id, 3));
    let (free, mapped) = (rig.free_bytes(), rig.kv.arena().mapped_bytes());
    let given_back = rig.kv.shrink_to(target).unwrap();
    assert!(given_back > 0);
    assert_eq!(
        (rig.free_bytes(), rig.kv.arena().mapped_bytes()),
        (free + given_back, mapped - given_back)
    );
    assert!(rig.kv.backed_slabs() >= target);
    assert!(rig.is_whole(id, 3));
    rig.launches(&graph);
    // And back.
    assert_eq!(rig.kv.grow_to(slabs).unwrap(), slabs);
    rig.sequences.grow(slabs).unwrap();
    assert_eq!(
        (rig.free_bytes(), rig.kv.arena().mapped_bytes()),
        (free, mapped)
    );
    assert!(rig.is_whole(id, 3));
    rig.launches(&graph);
    rig.sequences.allocator().audit().unwrap();
}

#[test]
fn c23_sleep_gives_back_every_byte_and_graphs_run_again_after_it() {
    let mut rig = rig();
    let graph = rig.graph();
    let id = rig.start(300, 9);
    assert!(matches!(
        rig.sequences.check_asleep(),
        Err(KvError::InUse { .. })
    ));
    rig.sequences.release(id).unwrap();
    rig.sequences.check_asleep().unwrap();
    let (free, mapped, base) = (
        rig.free_bytes(),
        rig.kv.arena().mapped_bytes(),
        rig.kv.base(),
    );
    assert_eq!(rig.kv.sleep().unwrap(), mapped);
    assert_eq!(
        (rig.free_bytes(), rig.kv.arena().mapped_bytes()),
        (free + mapped, 0)
    );
    assert_eq!(rig.kv.sleep().unwrap(), 0);
    let slabs = rig.sequences.allocator().online_slabs();
    assert_eq!(rig.kv.wake().unwrap(), slabs);
    assert_eq!(
        (
            rig.free_bytes(),
            rig.kv.arena().mapped_bytes(),
            rig.kv.base()
        ),
        (free, mapped, base)
    );
    rig.launches(&graph);
    let id = rig.start(300, 9);
    assert!(rig.is_whole(id, 9));
}

#[test]
fn waking_on_a_fuller_device_takes_what_there_is() {
    let mut rig = rig();
    let slabs = rig.sequences.allocator().online_slabs();
    rig.kv.sleep().unwrap();
    let gate = AllocationGate::new();
    let mut other = neap::arena::Arena::reserve(&rig.context, &gate, "other", 512 * MIB).unwrap();
    other.map_up_to(rig.free_bytes() - 100 * MIB).unwrap();
    let backed = rig.kv.wake().unwrap();
    assert!(backed > 0 && backed < slabs);
    rig.sequences.shrink(backed, &mut Vec::new()).unwrap();
    let id = rig.start(500, 1);
    assert!(rig.is_whole(id, 1));
    other.close().unwrap();
    assert_eq!(rig.kv.grow_to(slabs).unwrap(), slabs);
    // A device that has nothing left: it sleeps on, and says what it needs.
    rig.sequences.release(id).unwrap();
    rig.kv.sleep().unwrap();
    let mut other = neap::arena::Arena::reserve(&rig.context, &gate, "other", 512 * MIB).unwrap();
    other.map_up_to(512 * MIB).unwrap();
    let error = rig.kv.wake().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("bytes of KV memory are too little"),
        "{error}"
    );
    assert_eq!(rig.kv.arena().mapped_bytes(), 0);
}

#[test]
fn forks_copy_on_write_by_the_page_copy_kernel() {
    let mut rig = rig();
    let parent = rig.start(200, 17);
    let child = rig.sequences.fork(parent, 300, &mut Vec::new()).unwrap();
    assert_eq!(rig.pages(parent), rig.pages(child));
    rig.sequences
        .append(child, 1, Phase::Decode, &mut Vec::new())
        .unwrap();
    // One page of each pool: that of the next token.
    assert_eq!(rig.sequences.page_copies().len(), 2);
    rig.run_copies();
    rig.sequences.settle(child, 201).unwrap();
    assert!(rig.is_whole(parent, 17) && rig.is_whole(child, 17));
    let differing = rig
        .pages(parent)
        .into_iter()
        .zip(rig.pages(child))
        .filter(|(a, b)| a != b);
    assert_eq!(differing.count(), 2);
    // The parent is alone on its page now and writes it in place.
    rig.sequences
        .append(parent, 1, Phase::Decode, &mut Vec::new())
        .unwrap();
    assert!(rig.sequences.page_copies().is_empty());
}

#[test]
fn nothing_is_left_behind() {
    let rig = rig();
    let ordinal = rig.ordinal;
    let Rig {
        kv,
        pairs,
        context,
        stream,
        kernels,
        ..
    } = rig;
    drop((stream, kernels));
    kv.close().unwrap();
    pairs.close().unwrap();
    context.close().unwrap();
    assert_eq!(emulator::report(ordinal).live_objects(), 0);
}
