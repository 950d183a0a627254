//! Start-up in the order that makes the KV size a measurement: context, kernels, weights, workspace, KV addresses with only the null
//! pages mapped, every graph captured and warmed, and only then the carve of what is left.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use crate::arena::{AllocationGate, Arena, Claims, LedgerMeter, Stage};
use crate::driver::{Context, Device, DevicePtr, MemInfo, PinnedBuffer, Stream};
use crate::kernels::{self, Kernels, KvView, Phase};
use crate::kv::eligibility::{Eligibility, StartUp, eligibility};
use crate::kv::reserve::{PrefillGraphs, StaticReserve};
use crate::kv::{
    self, Caps, Carve, Geometry, KvArena, KvDtype, KvSequences, PageEntry, PageSize, PageWatch,
    PolicyError, PrefixTree, Shard, SlabLayout,
};
use crate::model::{Checkpoint, ModelConfig, ModelError, ModelProgram, WeightLayout};

use super::forward::Forward;
use super::moves::{MOVES_BYTES, Moves};
use super::options::Limits;
use super::runner::Runner;
use super::scheduler::Scheduler;
use super::serve::Engine;
use super::sizing::Pools;
use super::staging::Staging;
use super::step::{Bucket, StepLayout};
use super::upload::upload_weights;
use super::warm_up::WarmUp;
use super::workspace::{Workspace, WorkspaceSizes};
use super::{EngineError, EngineOptions, Progress, StartupTimings};

/// Sequence lengths at which the capacity is reported.
const REPORTED_LENGTHS: [u32; 4] = [1 << 10, 8 << 10, 32 << 10, 128 << 10];

/// Alignment of what stands in the weights and workspace arenas.
const ARENA_ALIGNMENT_BYTES: u64 = 256;

/// What is known of a model before any device memory is taken.
struct Loaded {
    config: ModelConfig,
    checkpoint: Checkpoint,
    weights: WeightLayout,
    geometry: Geometry,
    program: ModelProgram,
    limits: Limits,
}

impl Loaded {
    /// Whether KV may be sized from what capture leaves.
    fn eligibility(&self, options: &EngineOptions) -> Eligibility {
        let captured = |phase, buckets: &[u32]| {
            if options.captures(phase) {
                buckets.to_vec()
            } else {
                Vec::new()
            }
        };
        let start_up = StartUp {
            role: options.role,
            decode_buckets: captured(Phase::Decode, &self.limits.decode_buckets),
            prefill_buckets: captured(Phase::Prefill, &self.limits.prefill_buckets),
            max_prefill_tokens: self.limits.max_chunk_tokens,
            ..StartUp::default()
        };
        eligibility(&start_up, &self.geometry, &Shard::WHOLE, true)
    }

    /// What the static reserve leaves for KV. On a device hardly larger than the reserve that is no carve, and the leftover
    /// stands.
    fn static_kv_bytes(&self, before_weights: MemInfo, free_bytes: u64) -> Option<u64> {
        let reserve = StaticReserve {
            chunk_tokens: self.limits.max_chunk_tokens,
            decode_max_batch: None,
            prefill_graphs: PrefillGraphs::Off,
            ..StaticReserve::of_card(before_weights.total_bytes >> 20, 1)
        };
        let bytes = reserve.kv_budget_bytes(before_weights.free_bytes, free_bytes);
        let layout = kv::solve_slab(&self.geometry, bytes).ok()?;
        let carve = Carve::new(&self.geometry, &layout, bytes).ok()?;
        Some(carve.carved_bytes)
    }

    fn open(dir: &Path, options: &EngineOptions) -> Result<Loaded, EngineError> {
        let config = ModelConfig::from_dir(dir)?;
        let limits = options.limits(config.max_position_embeddings)?;
        let geometry = PageSize::new(options.page_size.into())
            .map_err(kv::ConfigError::from)
            .and_then(|page_size| Geometry::from_config(&config.text, page_size, KvDtype::Bf16))
            .map_err(|source| ModelError::Geometry {
                path: config.path.clone(),
                source,
            })?;
        let checkpoint = Checkpoint::open(dir)?;
        let weights = WeightLayout::plan(&config, &checkpoint)?;
        let program = ModelProgram::new(&config, &geometry, &weights)?;
        Ok(Loaded {
            config,
            checkpoint,
            weights,
            geometry,
            program,
            limits,
        })
    }

    fn windows(&self) -> Vec<Option<u32>> {
        self.geometry
            .groups
            .iter()
            .map(|group| group.kind.window())
            .collect()
    }

    /// One layout a bucket of either phase.
    fn layouts(&self) -> BTreeMap<Bucket, StepLayout> {
        let Limits {
            max_seqs,
            max_model_len,
            ..
        } = self.limits;
        let page_tokens = self.geometry.page_size.tokens();
        let groups = self.geometry.groups.len() as u32;
        let windows = self.windows();
        let decode = self.limits.decode_buckets.iter().map(|rows| {
            let items = windows
                .iter()
                .map(|window| kernels::max_decode_items(*rows, max_model_len, *window))
                .collect();
            // A token starts at most one page of each group.
            StepLayout::new(
                Bucket {
                    phase: Phase::Decode,
                    rows: *rows,
                },
                *rows,
                items,
                groups * rows,
            )
        });
        let prefill = self.limits.prefill_buckets.iter().map(|rows| {
            let segments = max_seqs.min(*rows);
            let items = windows
                .iter()
                .map(|_| kernels::max_prefill_items(*rows, segments))
                .collect();
            // A segment starts and ends inside a page.
            let updates = groups * (rows.div_ceil(page_tokens) + 2 * segments);
            StepLayout::new(
                Bucket {
                    phase: Phase::Prefill,
                    rows: *rows,
                },
                segments,
                items,
                updates,
            )
        });
        decode
            .chain(prefill)
            .map(|layout| (layout.bucket, layout))
            .collect()
    }

    fn sizes(&self, layouts: &BTreeMap<Bucket, StepLayout>) -> WorkspaceSizes {
        let decode = layouts
            .values()
            .filter(|layout| layout.bucket.phase == Phase::Decode);
        let items = decode.flat_map(|layout| &layout.item_capacity).copied();
        WorkspaceSizes {
            max_rows: layouts.keys().map(|bucket| bucket.rows).max().unwrap_or(0),
            max_output_rows: layouts
                .values()
                .map(|layout| layout.output_rows)
                .max()
                .unwrap_or(0),
            max_decode_items: items.max().unwrap_or(0),
            step_bytes: layouts
                .values()
                .map(|layout| layout.total_bytes)
                .max()
                .unwrap_or(0),
            table_columns: self
                .limits
                .max_model_len
                .div_ceil(self.geometry.page_size.tokens()),
        }
    }

    /// Where each layer's keys and values lie, given the slab and the arena's base.
    fn kv_views(&self, base: DevicePtr, slab: &SlabLayout) -> Vec<KvView> {
        let page_size = self.geometry.page_size.tokens();
        let view = |layer: &crate::model::LayerProgram| {
            let strides = self.geometry.groups[layer.group].strides();
            let layer_stride_bytes = slab.pools[layer.group].layer_stride_bytes;
            KvView {
                base,
                layer_offset: u64::from(layer.layer_in_group) * layer_stride_bytes,
                k_head_stride: strides.k_head_bytes,
                k_token_stride: strides.k_token_bytes,
                v_offset: strides.v_offset_bytes,
                v_head_stride: strides.v_head_bytes,
                v_token_stride: strides.v_token_bytes,
                page_size,
                page_shift: page_size.trailing_zeros(),
                ..KvView::default()
            }
        };
        self.program.layers.iter().map(view).collect()
    }
}

/// Measures the time since the last call.
struct Stopwatch(Instant);

impl Stopwatch {
    fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let lap = now.duration_since(self.0).as_micros() as u64;
        self.0 = now;
        lap
    }
}

impl Engine {
    /// Loads a model folder onto a device and gets ready to serve.
    ///
    /// `progress` is called from this thread, in the order of [`Progress`]'s variants.
    ///
    /// # Errors
    /// The folder cannot be used, an option is out of range, a driver call fails, or too little memory is left for the pools. Whatever
    /// was taken from the device by then is given back.
    pub fn load(
        device: &Device,
        model_dir: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Engine, EngineError> {
        Engine::load_rank(device, model_dir, options, progress, &mut Ok)
    }

    /// As [`Engine::load`] for one of several ranks, whose KV shall be of one size. `agree` is called twice: with the bytes that are free before
    /// capture, from which the slab follows, and with those that KV can have after it. It gathers the number of every rank and returns
    /// what they agree on, the least: [`crate::kv::policy::agree`].
    ///
    /// # Errors
    /// As [`Engine::load`], and what `agree` returns.
    pub fn load_rank(
        device: &Device,
        model_dir: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(Progress),
        agree: &mut dyn FnMut(u64) -> Result<u64, PolicyError>,
    ) -> Result<Engine, EngineError> {
        let started = Instant::now();
        let mut watch = Stopwatch(started);
        let mut timings = StartupTimings::default();
        // Everything that can be refused without the device is refused before it is touched.
        let loaded = Loaded::open(model_dir, options)?;
        timings.model_us = watch.lap();

        let used_before_bytes = device.used_bytes_before_context();
        let context = Context::retain_primary(device)?;
        let stream = Stream::new(&context)?;
        let first = context.mem_info()?;
        let taken_bytes = first.total_bytes - first.free_bytes;
        let context_bytes =
            used_before_bytes.map_or(0, |foreign_bytes| taken_bytes.saturating_sub(foreign_bytes));
        let mut meter = LedgerMeter::start(first, context_bytes);
        let gate = AllocationGate::new();
        timings.context_us = watch.lap();

        let kernels = Kernels::load(&context)?;
        let before_weights = context.mem_info()?;
        meter.record(Stage::Modules, before_weights);
        timings.modules_us = watch.lap();

        let mut weights = Arena::reserve(&context, &gate, "weights", loaded.weights.total_bytes)?;
        weights.map_to(loaded.weights.total_bytes)?;
        let weights_base = weights.alloc(loaded.weights.total_bytes, ARENA_ALIGNMENT_BYTES)?;
        let mut uploaded = |done_bytes, total_bytes| {
            progress(Progress::Weights {
                done_bytes,
                total_bytes,
            })
        };
        if !options.dummy_weights {
            upload_weights(
                &context,
                &stream,
                weights_base,
                &loaded.weights,
                &loaded.checkpoint,
                &mut uploaded,
            )?;
        }
        meter.record(Stage::Arena, context.mem_info()?);
        timings.weights_us = watch.lap();

        let layouts = loaded.layouts();
        let sizes = loaded.sizes(&layouts);
        let place = |base| {
            let groups = loaded.geometry.groups.len();
            Workspace::place(
                base,
                &loaded.config,
                &loaded.program,
                groups,
                &loaded.limits,
                &sizes,
            )
        };
        let (_, workspace_bytes) = place(DevicePtr(0));
        let mut workspace_arena = Arena::reserve(&context, &gate, "workspace", workspace_bytes)?;
        workspace_arena.map_to(workspace_bytes)?;
        let (workspace, _) = place(workspace_arena.alloc(workspace_bytes, ARENA_ALIGNMENT_BYTES)?);
        for (rope, table) in loaded.program.ropes.iter().zip(&workspace.inv_freq) {
            let inv_freq = rope.inv_freq(loaded.config.head_dim);
            stream.copy_to_device(*table, bytemuck::cast_slice(&inv_freq))?;
        }
        let mut staging = Staging::new(&context, sizes.step_bytes.max(MOVES_BYTES) as usize)?;
        let sampled_image =
            PinnedBuffer::new(&context, sizes.max_output_rows as usize * size_of::<u32>())?;

        // The slab is part of the captured addresses, so it follows from what could be carved at most.
        let free_bytes = context.mem_info()?.free_bytes;
        let free_bytes = agree(free_bytes)?.min(free_bytes);
        let eligibility = loaded.eligibility(options);
        let static_limit = (!eligibility.is_eligible())
            .then(|| loaded.static_kv_bytes(before_weights, free_bytes))
            .flatten();
        let limit_bytes = [options.kv_limit_bytes, static_limit]
            .into_iter()
            .flatten()
            .min();
        let bound_bytes = limit_bytes.map_or(free_bytes, |limit| limit.min(free_bytes));
        let mut kv = KvArena::reserve(&context, &gate, &loaded.geometry, bound_bytes)?;
        meter.record(Stage::Arena, context.mem_info()?);
        timings.workspace_us = watch.lap();

        let forward = Forward {
            kv_views: loaded.kv_views(kv.base(), kv.layout()),
            config: loaded.config.clone(),
            program: loaded.program.clone(),
            kernels,
            weights: weights_base,
            workspace,
            table_columns: sizes.table_columns,
        };
        let moves = Moves::new(&kv);
        // Nothing may take device memory between here and the reading but the driver itself, for graphs.
        gate.close();
        let null_pages: Vec<PageEntry> = loaded
            .geometry
            .group_ids()
            .map(|group| kv.null_page(group))
            .collect();
        let mut warm_up = WarmUp {
            stream: &stream,
            forward: &forward,
            moves: &moves,
            staging: &mut staging,
            null_pages,
            windows: loaded.windows(),
            computes: !options.dummy_weights,
        };
        let (captured, eager): (Vec<_>, Vec<_>) = layouts
            .values()
            .partition(|layout| options.captures(layout.bucket.phase));
        let graphs = warm_up.capture(&captured, progress)?;
        warm_up.eagerly(&eager)?;
        let moves_graph = if options.eager {
            warm_up.issue_moves()?;
            None
        } else {
            Some(warm_up.capture_moves()?)
        };
        timings.capture_us = watch.lap();

        progress(Progress::Measure);
        let free_bytes = context.mem_info()?.free_bytes;
        if free_bytes < options.headroom_bytes {
            return Err(EngineError::TooLittleMemory {
                free_bytes,
                headroom_bytes: options.headroom_bytes,
            });
        }
        progress(Progress::Carve);
        gate.open();
        let available = kv.arena().mapped_bytes() + (free_bytes - options.headroom_bytes);
        let agreed = agree(available)?.min(limit_bytes.unwrap_or(u64::MAX));
        let caps = Caps {
            tokens: options.max_kv_tokens,
            requests: options.max_kv_tokens.map(|_| loaded.limits.max_seqs),
            bytes: None,
        };
        let limit_bytes = caps.apply(&loaded.geometry, kv.layout(), agreed);
        let extension = kv.extend(options.headroom_bytes, Some(limit_bytes))?;
        gate.close();
        meter.record(Stage::Graphs, extension.measured);
        let carve = &extension.carve;
        let max_model_len = loaded.limits.max_model_len;
        let mut lengths: Vec<u32> = REPORTED_LENGTHS
            .into_iter()
            .filter(|length| *length < max_model_len)
            .collect();
        lengths.push(max_model_len);
        let pools = Pools::new(
            options.policy,
            &loaded.geometry,
            carve,
            max_model_len,
            &lengths,
        )?;
        let ledger = meter.finish(
            context.mem_info()?,
            Claims {
                weights_bytes: weights.mapped_bytes(),
                workspace_bytes: workspace_arena.mapped_bytes(),
                headroom_bytes: extension.headroom_bytes,
                kv: pools.shares,
                tail_bytes: carve.tail_bytes,
                unmapped_bytes: extension.unmapped_bytes(),
                grain_bytes: device.granularity_bytes(),
                ineligible: eligibility.ledger_line(),
            },
        );
        let mut sequences = KvSequences::new(
            loaded.geometry.clone(),
            kv.layout(),
            carve.slabs,
            loaded.limits.max_seqs,
        )?;
        sequences.fix_pools(pools.split.as_ref());
        timings.carve_us = watch.lap();
        timings.total_us = started.elapsed().as_micros() as u64;
        Ok(Engine {
            carve: pools.report,
            pool_tokens: pools.longest_tokens,
            policy: options.policy,
            scheduler: Scheduler::new(loaded.limits.max_chunk_tokens),
            ledger,
            timings,
            eager: options.eager,
            next_request: 0,
            admit_new_tokens: options.admit_new_tokens,
            num_preemptions: 0,
            gate,
            asleep: false,
            failure: None,
            runner: Runner {
                windows: loaded.windows(),
                graphs,
                moves_graph,
                moves,
                layouts,
                forward,
                prefixes: options
                    .prefix_cache
                    .then(|| PrefixTree::for_sequences(&sequences)),
                sequences,
                limits: loaded.limits,
                updates: Vec::new(),
                pending: Vec::new(),
                num_moved_pages: 0,
                staging,
                sampled_image,
                page_watch: PageWatch::new(&kv),
                kv,
                workspace: workspace_arena,
                weights,
                stream,
                context,
            },
        })
    }
}
