//! Block-table updates and the two hand-written PTX kernels: append and page copy.

mod support;

use half::bf16;
use neap::driver::DevicePtr;
use neap::kernels::{KvAppendParams, PageCopyParams, StepHeader, TableUpdate, TableUpdateParams};
use support::paged::PagedKv;
use support::random::Random;
use support::{Rig, bits};

#[test]
fn table_updates_land_in_their_group() {
    let (rig, mut random) = (Rig::new(), Random::new("table_updates_land_in_their_group"));
    for (groups, count) in [(1u32, 1u32), (2, 5), (8, 300)] {
        let seq_slots = 6;
        let strides: Vec<u32> = (0..groups).map(|_| 50 + random.below(100)).collect();
        let mut expected: Vec<Vec<u32>> = strides
            .iter()
            .map(|stride| vec![7; (seq_slots * stride) as usize])
            .collect();
        let tables: Vec<_> = expected.iter().map(|table| rig.upload(table)).collect();
        let mut places: Vec<(u32, u32, u32)> = Vec::new();
        for group in 0..groups {
            let stride = strides[group as usize];
            places.extend((0..seq_slots * stride).map(|at| (group, at / stride, at % stride)));
        }
        random.shuffle(&mut places);
        let updates: Vec<_> = places
            .iter()
            .take(count as usize)
            .map(|&(group, seq_slot, column)| {
                let entry = random.next() as u32;
                expected[group as usize][(seq_slot * strides[group as usize] + column) as usize] =
                    entry;
                TableUpdate {
                    group,
                    seq_slot,
                    column,
                    entry,
                }
            })
            .collect();
        // One more behind the count, which must not be applied.
        let (group, seq_slot, column) = places[count as usize];
        let beyond = TableUpdate {
            group,
            seq_slot,
            column,
            entry: 0xdead,
        };
        let mut params = TableUpdateParams {
            header: rig.header(StepHeader {
                num_table_updates: count,
                ..StepHeader::default()
            }),
            updates: rig.upload(&[&updates[..], &[beyond]].concat()).pointer,
            ..TableUpdateParams::default()
        };
        for (group, table) in tables.iter().enumerate() {
            params.tables[group] = table.pointer;
            params.strides[group] = strides[group];
        }
        // SAFETY: every array has the shape of its field; no place is named twice.
        unsafe { rig.kernels.table_update(&rig.stream, count + 1, &params) }.expect("launch");
        for (group, (table, expected)) in tables.iter().zip(&expected).enumerate() {
            assert_eq!(&table.read(&rig), expected, "group {group} of {groups}");
        }
    }
}

#[test]
fn append_writes_its_slots_and_nothing_else() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("append_writes_its_slots_and_nothing_else"),
    );
    for (head_dim, num_kv_heads, page_size) in [
        (64, 2, 16),
        (64, 1, 1),
        (128, 4, 64),
        (256, 2, 8),
        (96, 3, 32),
        (64, 9, 256),
    ] {
        let (rows, bucket, skipped) = (45u32, 64u32, 10);
        let mut kv = PagedKv::new(
            &rig,
            &mut random,
            page_size,
            num_kv_heads,
            head_dim,
            1,
            64 / page_size + 4,
        );
        kv.assign(0, 0, rows);
        let len = (bucket * num_kv_heads * head_dim) as usize;
        let (k, v) = (random.normals_bf16(len, 1.0), random.normals_bf16(len, 1.0));
        // The first tokens have left the window already; padding rows point at a live slot.
        let slots: Vec<u64> = (0..bucket)
            .map(|token| match token {
                token if token < skipped => u64::MAX,
                token => kv.slot(0, token.min(rows - 1)),
            })
            .collect();
        let (layer, mut expected) = (2, kv.contents(&rig));
        for token in skipped..rows {
            for (is_value, tensor) in [(false, &k), (true, &v)] {
                for head in 0..num_kv_heads {
                    let at = kv.row_index(layer, slots[token as usize], head, is_value);
                    let row = ((token * num_kv_heads + head) * head_dim) as usize;
                    expected[at..at + head_dim as usize]
                        .copy_from_slice(&tensor[row..row + head_dim as usize]);
                }
            }
        }
        let params = KvAppendParams {
            header: rig.header_of_rows(rows),
            k: rig.upload(&k).pointer,
            v: rig.upload(&v).pointer,
            slots: rig.upload(&slots).pointer,
            kv: kv.view(layer),
            num_kv_heads,
            head_dim,
            ..KvAppendParams::default()
        };
        // SAFETY: every array has the shape of its field; slots name tokens of assigned pages.
        unsafe { rig.kernels.kv_append(&rig.stream, bucket, &params) }.expect("launch");
        assert!(
            bits(&kv.contents(&rig)) == bits(&expected),
            "D {head_dim}, {num_kv_heads} heads, page size {page_size}"
        );
    }
}

#[test]
fn page_copy_copies_all_layers_of_its_pages() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("page_copy_copies_all_layers_of_its_pages"),
    );
    // Captured launches have room for more pairs than the device says there are.
    for (page_size, num_pairs, room) in [
        (16u32, 5usize, None),
        (1, 20, None),
        (64, 1, None),
        (16, 0, None),
        (16, 5, Some(12)),
        (16, 0, Some(3)),
        (1, 3, Some(3)),
    ] {
        let pages = 48;
        let kv = PagedKv::new(&rig, &mut random, page_size, 2, 64, 1, pages);
        let mut entries: Vec<u32> = (0..pages)
            .map(|page| (u64::from(page) * kv.layer_page_bytes / 256) as u32)
            .collect();
        random.shuffle(&mut entries);
        let pairs: Vec<[u32; 2]> = entries
            .chunks_exact(2)
            .take(room.unwrap_or(num_pairs))
            .map(|pair| [pair[0], pair[1]])
            .collect();
        let mut expected = kv.contents(&rig);
        let elements = (kv.layer_page_bytes / 2) as usize;
        for [source, destination] in &pairs[..num_pairs] {
            for layer in 0..kv.num_layers as usize {
                let at = |entry: u32| entry as usize * 128 + layer * (kv.layer_stride / 2) as usize;
                expected.copy_within(at(*source)..at(*source) + elements, at(*destination));
            }
        }
        let params = PageCopyParams {
            pairs: if pairs.is_empty() {
                DevicePtr::NULL
            } else {
                rig.upload(&pairs.concat()).pointer
            },
            base: kv.view(0).base,
            layer_stride: kv.layer_stride,
            num_pairs: pairs.len() as u32,
            count: match room {
                Some(_) => rig.upload(&[num_pairs as u32]).pointer,
                None => DevicePtr::NULL,
            },
            num_layers: kv.num_layers,
            layer_page_bytes: kv.layer_page_bytes as u32,
            ..PageCopyParams::default()
        };
        // SAFETY: all entries are pages of this arena, each named once.
        unsafe { rig.kernels.page_copy(&rig.stream, &params) }.expect("launch");
        let found: Vec<bf16> = kv.contents(&rig);
        assert!(
            bits(&found) == bits(&expected),
            "page size {page_size}, {num_pairs} pairs"
        );
    }
}
