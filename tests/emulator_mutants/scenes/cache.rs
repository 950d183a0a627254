//! Scenes of the kernels that move cache entries.

use super::Values;
use crate::support::Rig;
use crate::support::paged::PagedKv;
use crate::support::random::Random;
use neap::driver::DevicePtr;
use neap::kernels::{KvAppendParams, PageCopyParams, StepHeader, TableUpdate, TableUpdateParams};

pub fn table_update(rig: &Rig) -> Values {
    let table = rig.upload(&[7u32; 60]);
    let other = rig.upload(&[7u32; 80]);
    let updates: Vec<TableUpdate> = (0..6)
        .map(|index| TableUpdate {
            group: index % 2,
            seq_slot: index / 2,
            column: 3 * index,
            entry: 100 + index,
        })
        .collect();
    let mut params = TableUpdateParams {
        header: rig.header(StepHeader {
            num_table_updates: 5,
            ..StepHeader::default()
        }),
        updates: rig.upload(&updates).pointer,
        ..TableUpdateParams::default()
    };
    (params.tables[0], params.strides[0]) = (table.pointer, 15);
    (params.tables[1], params.strides[1]) = (other.pointer, 20);
    // SAFETY: every array has the shape of its field; no place is named twice.
    unsafe { rig.kernels.table_update(&rig.stream, 6, &params) }.expect("launch");
    Values::exact(&[table.read(rig), other.read(rig)].concat())
}

pub fn kv_append(rig: &Rig) -> Values {
    let mut random = Random::fixed(19);
    let (rows, bucket, heads, dim) = (21u32, 24u32, 3u32, 96u32);
    let mut kv = PagedKv::new(rig, &mut random, 16, heads, dim, 1, 5);
    kv.assign(0, 0, rows);
    let slots: Vec<u64> = (0..bucket)
        .map(|token| match token {
            0..4 => u64::MAX,
            token => kv.slot(0, token.min(rows - 1)),
        })
        .collect();
    let len = (bucket * heads * dim) as usize;
    let params = KvAppendParams {
        header: rig.header_of_rows(rows),
        k: rig.upload(&random.normals_bf16(len, 1.0)).pointer,
        v: rig.upload(&random.normals_bf16(len, 1.0)).pointer,
        slots: rig.upload(&slots).pointer,
        kv: kv.view(2),
        num_kv_heads: heads,
        head_dim: dim,
        ..KvAppendParams::default()
    };
    // SAFETY: every array has the shape of its field; slots name tokens of assigned pages.
    unsafe { rig.kernels.kv_append(&rig.stream, bucket, &params) }.expect("launch");
    Values::exact(&kv.contents(rig))
}

/// As many pairs as there is room for, and fewer by the count.
pub fn page_copy(rig: &Rig) -> Values {
    let mut random = Random::fixed(20);
    let mut values = Values::default();
    for count in [None, Some(2u32)] {
        let kv = PagedKv::new(rig, &mut random, 4, 2, 72, 1, 12);
        let entry = |page: u64| (page * kv.layer_page_bytes / 256) as u32;
        let pairs = [entry(3), entry(8), entry(0), entry(5), entry(11), entry(1)];
        let params = PageCopyParams {
            pairs: rig.upload(&pairs).pointer,
            base: kv.view(0).base,
            layer_stride: kv.layer_stride,
            num_pairs: 3,
            num_layers: kv.num_layers,
            layer_page_bytes: kv.layer_page_bytes as u32,
            count: count.map_or(DevicePtr::NULL, |count| rig.upload(&[count]).pointer),
            ..PageCopyParams::default()
        };
        // SAFETY: all entries are pages of this arena, each named once.
        unsafe { rig.kernels.page_copy(&rig.stream, &params) }.expect("launch");
        values.extend(Values::exact(&kv.contents(rig)));
    }
    values
}
