//! Loaded kernels and one launch method for each.

use std::collections::HashMap;

use bytemuck::Pod;

use crate::driver::{Attribute, Context, Kernel, LaunchConfig, Module, Stream};

use super::error::KernelError;
use super::image;
use super::params::{
    AddNormParams, ArgmaxParams, DecodeAttentionParams, DecodeMergeParams, EmbedParams,
    GatedActParams, GemmParams, KvAppendParams, KvView, PageCopyParams, PrefillAttentionParams,
    QkvRopeParams, TableUpdateParams,
};
use super::shape::{self, Phase, Shape};

/// Every kernel of this crate, loaded into one context.
///
/// The launch methods check what a wrong configuration could get wrong (head_dim, multiples, group size), choose instance and
/// grid from the bucket and fill in `bytes_touched`: the bytes the launch moves when every row of the bucket is real, keys and
/// values of attention not counted, since their number is not known when a launch is captured. They behave alike on a stream
/// that runs and on one that is being captured.
///
/// # Safety of the launch methods
/// They are `unsafe` for one reason, the same for all. The caller guarantees that
/// - every non-null pointer in the parameters is the 16-byte aligned device address of an array with the shape its field
///   states, T and R being the row counts passed to the method;
/// - index arrays (token ids, positions, slots, block tables, gathered rows, work items) hold valid indices by the time the
///   launch runs, and the [`StepHeader`](super::StepHeader) no more rows or items than passed here;
/// - all of it stays mapped, and nothing else writes it, until the launch (or each replay of a graph holding it) is complete.
#[derive(Debug)]
pub struct Kernels {
    by_name: HashMap<String, Kernel>,
    image_bytes: u64,
}

/// A condition on a parameter, checked before the launch.
fn require(
    holds: bool,
    kernel: &'static str,
    name: &'static str,
    found: u32,
    wanted: &'static str,
) -> Result<(), KernelError> {
    if holds {
        return Ok(());
    }
    Err(KernelError::Shape {
        kernel,
        name,
        found: u64::from(found),
        wanted,
    })
}

impl Kernels {
    /// Loads every image into `context` and raises the shared-memory limits of the kernels that need it.
    ///
    /// # Errors
    /// [`KernelError::Driver`] where an image is refused or a kernel is missing from it, [`KernelError::SharedMemory`] where the
    /// device's blocks are too small.
    pub fn load(context: &Context) -> Result<Kernels, KernelError> {
        let device = context.device();
        let images = image::images().iter();
        let images = images.map(|image| (image.ptx, image.bytes_for(device.driver())));
        Kernels::from_images(context, images)
    }

    /// Loads PTX texts instead of the embedded images: kernels of these names and parameters, such as mutants of them.
    /// What no text holds cannot be launched.
    ///
    /// # Errors
    /// As for [`Kernels::load`].
    pub fn load_ptx(context: &Context, texts: &[String]) -> Result<Kernels, KernelError> {
        let images = texts.iter().map(|text| (text.as_bytes(), text.as_bytes()));
        Kernels::from_images(context, images)
    }

    /// Loads images, each given as its PTX and as what the driver shall load.
    fn from_images<'a>(
        context: &Context,
        images: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Kernels, KernelError> {
        let device = context.device();
        let mut by_name = HashMap::new();
        let mut image_bytes = 0;
        for (ptx, bytes) in images {
            image_bytes += bytes.len() as u64;
            let module = Module::load(context, bytes)?;
            for name in image::kernel_names(ptx) {
                by_name.insert(name.to_owned(), module.kernel(name)?);
            }
        }
        let allowed_bytes = device.attribute(Attribute::MaxSharedBytesPerBlockOptin)?;
        let allowed_bytes = u32::try_from(allowed_bytes).unwrap_or(0);
        for (name, needed_bytes) in shape::dynamic_shared_bytes() {
            let Some(kernel) = by_name.get(name) else {
                continue;
            };
            let static_bytes = kernel.static_shared_bytes()?;
            if needed_bytes + static_bytes > allowed_bytes {
                return Err(KernelError::SharedMemory {
                    kernel: name,
                    needed_bytes: needed_bytes + static_bytes,
                    allowed_bytes,
                });
            }
            kernel.set_max_dynamic_shared_bytes(needed_bytes)?;
        }
        Ok(Kernels {
            by_name,
            image_bytes,
        })
    }

    /// Bytes of the images as given to the driver.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// A kernel by its symbol, such as `paged_decode_bf16_d64_g8`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Kernel> {
        self.by_name.get(name)
    }

    /// All kernels, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Kernel> {
        self.by_name.values()
    }

    /// # Safety
    /// See [`Kernels`].
    unsafe fn launch<P: Pod>(
        &self,
        stream: &Stream,
        shape: Shape,
        params: &P,
    ) -> Result<(), KernelError> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let config = LaunchConfig {
            grid: shape.grid,
            block: [shape.threads, 1, 1],
            shared_bytes: shape.shared_bytes,
        };
        let Some(kernel) = self.by_name.get(shape.kernel) else {
            let kernel = shape.kernel;
            return Err(KernelError::NotLoaded { kernel });
        };
        // SAFETY: the kernel takes this struct (the driver compares the sizes, params.rs the layouts); the caller answers for
        // the addresses in it.
        unsafe { stream.launch(kernel, config, params) }?;
        Ok(())
    }

    /// Applies the step's block-table updates, at most `max_updates` of them.
    ///
    /// # Safety
    /// See [`Kernels`]. No two updates may name the same table entry.
    ///
    /// # Errors
    /// [`KernelError::Driver`].
    pub unsafe fn table_update(
        &self,
        stream: &Stream,
        max_updates: u32,
        params: &TableUpdateParams,
    ) -> Result<(), KernelError> {
        let params = TableUpdateParams {
            bytes_touched: 20 * u64::from(max_updates),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape::table_update(), &params) }
    }

    /// `residual[t, :] = f32(table[token_ids[t], :]) * scale` for `rows` = T.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless `hidden` is a multiple of 4; [`KernelError::Driver`].
    pub unsafe fn embed(
        &self,
        stream: &Stream,
        rows: u32,
        params: &EmbedParams,
    ) -> Result<(), KernelError> {
        let hidden = params.hidden;
        require(
            hidden > 0 && hidden.is_multiple_of(4),
            "embed",
            "hidden",
            hidden,
            "a multiple of 4",
        )?;
        let params = EmbedParams {
            bytes_touched: u64::from(rows) * (6 * u64::from(hidden) + 4),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape::embed(rows, hidden), &params) }
    }

    /// Residual add and norms for `rows` = T, or R with `gather_rows`; `params` says which parts there are.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless `hidden` is a multiple of 4 up to 16384; [`KernelError::Driver`].
    pub unsafe fn add_norm(
        &self,
        stream: &Stream,
        rows: u32,
        params: &AddNormParams,
    ) -> Result<(), KernelError> {
        let hidden = params.hidden;
        require(
            hidden > 0 && hidden.is_multiple_of(4) && hidden <= shape::ADD_NORM_MAX_HIDDEN,
            "add_norm",
            "hidden",
            hidden,
            "a multiple of 4, at most 16384",
        )?;
        let added = !params.y.is_null();
        let written = added && params.gather_rows.is_null();
        let column_bytes = 4
            + if added { 4 } else { 0 }
            + if written { 4 } else { 0 }
            + if params.next_weight.is_null() { 0 } else { 2 };
        let params = AddNormParams {
            bytes_touched: u64::from(rows) * u64::from(hidden) * column_bytes,
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape::add_norm(rows, hidden), &params) }
    }

    /// `y = x . weight^T (+ bias)`, softcapped where asked, for `rows` = T or R as `rows_from` says.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] when `n` or `k` is 0; [`KernelError::Driver`].
    pub unsafe fn gemm(
        &self,
        stream: &Stream,
        phase: Phase,
        rows: u32,
        params: &GemmParams,
    ) -> Result<(), KernelError> {
        let (n, k) = (params.n, params.k);
        require(n > 0, "gemm", "n", n, "positive")?;
        require(k > 0, "gemm", "k", k, "positive")?;
        let params = GemmParams {
            bytes_touched: 2 * u64::from(n) * u64::from(k)
                + u64::from(rows) * (2 * u64::from(k) + 4 * u64::from(n)),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape::gemm(phase, rows, n, k), &params) }
    }

    /// Per-head norms, rotary embedding and rounding for `rows` = T. In decode, keys and values go to their pages by `slots`;
    /// in prefill to `k` and `v`.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::HeadDim`], [`KernelError::Shape`] for a page size that is no power of two; [`KernelError::Driver`].
    pub unsafe fn qkv_rope(
        &self,
        stream: &Stream,
        phase: Phase,
        rows: u32,
        params: &QkvRopeParams,
    ) -> Result<(), KernelError> {
        let head_dim = params.head_dim;
        if phase == Phase::Decode {
            check_view("qkv_rope", &params.kv)?;
        }
        let shape = shape::qkv_rope(phase, rows, head_dim).ok_or(KernelError::HeadDim {
            kernel: "qkv_rope",
            head_dim,
        })?;
        let heads = u64::from(params.num_q_heads) + 2 * u64::from(params.num_kv_heads);
        let params = QkvRopeParams {
            bytes_touched: u64::from(rows) * heads * 6 * u64::from(head_dim),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape, &params) }
    }

    /// Writes the keys and values of `rows` = T tokens to their pages. Attention of the same chunk must come before it on the
    /// stream: the chunk's last tokens may go to pages whose earlier tokens it still reads.
    ///
    /// # Safety
    /// See [`Kernels`]. No two tokens may share a slot.
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless `head_dim` is a multiple of 8; [`KernelError::Driver`].
    pub unsafe fn kv_append(
        &self,
        stream: &Stream,
        rows: u32,
        params: &KvAppendParams,
    ) -> Result<(), KernelError> {
        let (heads, head_dim) = (params.num_kv_heads, params.head_dim);
        require(
            head_dim > 0 && head_dim.is_multiple_of(8),
            "kv_append",
            "head_dim",
            head_dim,
            "a multiple of 8",
        )?;
        check_view("kv_append", &params.kv)?;
        let params = KvAppendParams {
            bytes_touched: u64::from(rows) * (8 * u64::from(heads) * u64::from(head_dim) + 8),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape::kv_append(rows, heads, head_dim), &params) }
    }

    /// Copies `num_pairs` pages of one group, all layers; as many of them as `count` says when it is launched, if it is given.
    ///
    /// # Safety
    /// See [`Kernels`]. No page may be the source of one pair and the destination of another, nor the destination of two.
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless `layer_page_bytes` is a multiple of 16; [`KernelError::Driver`].
    pub unsafe fn page_copy(
        &self,
        stream: &Stream,
        params: &PageCopyParams,
    ) -> Result<(), KernelError> {
        let bytes = params.layer_page_bytes;
        require(
            bytes.is_multiple_of(16),
            "page_copy",
            "layer_page_bytes",
            bytes,
            "a multiple of 16",
        )?;
        let params = PageCopyParams {
            bytes_touched: 2
                * u64::from(params.num_pairs)
                * u64::from(params.num_layers)
                * u64::from(bytes),
            ..*params
        };
        let shape = shape::page_copy(params.num_pairs, params.num_layers);
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape, &params) }
    }

    /// Attention of one query row a sequence over its pages, into partial results of at most `item_capacity` items.
    ///
    /// # Safety
    /// See [`Kernels`]; `partial_o` and `partial_ml` hold `item_capacity` items.
    ///
    /// # Errors
    /// [`KernelError::HeadDim`]; [`KernelError::Shape`] unless Hkv divides Hq into groups of at most 16;
    /// [`KernelError::Driver`].
    pub unsafe fn decode_attention(
        &self,
        stream: &Stream,
        item_capacity: u32,
        params: &DecodeAttentionParams,
    ) -> Result<(), KernelError> {
        const KERNEL: &str = "decode_attention";
        let (hq, hkv, head_dim) = (params.num_q_heads, params.num_kv_heads, params.head_dim);
        check_heads(KERNEL, hq, hkv)?;
        require(
            hq / hkv <= 16,
            KERNEL,
            "num_q_heads / num_kv_heads",
            hq / hkv,
            "at most 16",
        )?;
        check_view(KERNEL, &params.kv)?;
        check_group(KERNEL, params.layer_group)?;
        let shape = shape::decode_attention(item_capacity, hq, hkv, head_dim, params.softcap > 0.0)
            .ok_or(KernelError::HeadDim {
                kernel: KERNEL,
                head_dim,
            })?;
        let row_bytes = u64::from(hq) * (6 * u64::from(head_dim) + 8);
        let params = DecodeAttentionParams {
            bytes_touched: u64::from(item_capacity) * row_bytes,
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape, &params) }
    }

    /// Merges the partial results of `rows` = T decode rows.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::HeadDim`]; [`KernelError::Driver`].
    pub unsafe fn decode_merge(
        &self,
        stream: &Stream,
        rows: u32,
        params: &DecodeMergeParams,
    ) -> Result<(), KernelError> {
        let (hq, head_dim) = (params.num_q_heads, params.head_dim);
        let shape = shape::decode_merge(rows, hq, head_dim).ok_or(KernelError::HeadDim {
            kernel: "decode_merge",
            head_dim,
        })?;
        let params = DecodeMergeParams {
            bytes_touched: u64::from(rows) * u64::from(hq) * (6 * u64::from(head_dim) + 8),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape, &params) }
    }

    /// Attention of the chunks of a prefill step, in at most `item_capacity` items.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::HeadDim`]; [`KernelError::Shape`] unless Hkv divides Hq; [`KernelError::Driver`].
    pub unsafe fn prefill_attention(
        &self,
        stream: &Stream,
        item_capacity: u32,
        params: &PrefillAttentionParams,
    ) -> Result<(), KernelError> {
        const KERNEL: &str = "prefill_attention";
        let (hq, hkv, head_dim) = (params.num_q_heads, params.num_kv_heads, params.head_dim);
        check_heads(KERNEL, hq, hkv)?;
        check_view(KERNEL, &params.kv)?;
        check_group(KERNEL, params.layer_group)?;
        let shape = shape::prefill_attention(item_capacity, hq, head_dim, params.softcap > 0.0)
            .ok_or(KernelError::HeadDim {
                kernel: KERNEL,
                head_dim,
            })?;
        let tile_bytes = 64 * u64::from(head_dim) * (4 * u64::from(hq) + 4 * u64::from(hkv));
        let params = PrefillAttentionParams {
            bytes_touched: u64::from(item_capacity) * tile_bytes,
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape, &params) }
    }

    /// `out = act(gate) * up` for `rows` = T.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless `intermediate` is a multiple of 4 and `activation` 0 or 1; [`KernelError::Driver`].
    pub unsafe fn gated_act(
        &self,
        stream: &Stream,
        rows: u32,
        params: &GatedActParams,
    ) -> Result<(), KernelError> {
        let (columns, activation) = (params.intermediate, params.activation);
        require(
            columns > 0 && columns.is_multiple_of(4),
            "gated_act",
            "intermediate",
            columns,
            "a multiple of 4",
        )?;
        require(
            activation <= 1,
            "gated_act",
            "activation",
            activation,
            "0 (GELU, tanh form) or 1 (SiLU)",
        )?;
        let params = GatedActParams {
            bytes_touched: 10 * u64::from(rows) * u64::from(columns),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe {
            self.launch(
                stream,
                shape::gated_act(rows, columns, activation == 1),
                &params,
            )
        }
    }

    /// Lowest index of the largest logit of `rows` = R rows.
    ///
    /// # Safety
    /// See [`Kernels`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] when `vocab` is 0; [`KernelError::Driver`].
    pub unsafe fn argmax(
        &self,
        stream: &Stream,
        rows: u32,
        params: &ArgmaxParams,
    ) -> Result<(), KernelError> {
        let vocab = params.vocab;
        require(vocab > 0, "argmax", "vocab", vocab, "positive")?;
        let params = ArgmaxParams {
            bytes_touched: u64::from(rows) * (4 * u64::from(vocab) + 4),
            ..*params
        };
        // SAFETY: the caller's.
        unsafe { self.launch(stream, shape::argmax(rows, vocab), &params) }
    }
}

fn check_heads(
    kernel: &'static str,
    num_q_heads: u32,
    num_kv_heads: u32,
) -> Result<(), KernelError> {
    require(
        num_kv_heads > 0,
        kernel,
        "num_kv_heads",
        num_kv_heads,
        "positive",
    )?;
    require(
        num_q_heads > 0 && num_q_heads.is_multiple_of(num_kv_heads),
        kernel,
        "num_q_heads",
        num_q_heads,
        "a multiple of num_kv_heads",
    )
}

fn check_group(kernel: &'static str, layer_group: u32) -> Result<(), KernelError> {
    require(
        layer_group < 8,
        kernel,
        "layer_group",
        layer_group,
        "below 8",
    )
}

fn check_view(kernel: &'static str, view: &KvView) -> Result<(), KernelError> {
    let page_size = view.page_size;
    require(
        page_size.is_power_of_two() && page_size <= 256,
        kernel,
        "page_size",
        page_size,
        "a power of two, at most 256",
    )?;
    require(
        view.page_shift == page_size.trailing_zeros(),
        kernel,
        "page_shift",
        view.page_shift,
        "log2(page_size)",
    )?;
    let strides = [
        view.k_head_stride,
        view.k_token_stride,
        view.v_offset,
        view.v_head_stride,
        view.v_token_stride,
    ];
    for stride in strides {
        require(
            stride.is_multiple_of(16),
            kernel,
            "a stride of the KV view",
            stride,
            "a multiple of 16",
        )?;
    }
    Ok(())
}
