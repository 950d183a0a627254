use super::*;

fn spec(kind: AttentionKind, num_kv_heads: u32, k_head_dim: u32, v_head_dim: u32) -> LayerSpec {
    LayerSpec {
        kind,
        num_kv_heads,
        k_head_dim,
        v_head_dim,
    }
}

fn page(tokens: u64) -> PageSize {
    PageSize::new(tokens).unwrap()
}

#[test]
fn page_bytes_of_unequal_k_and_v() {
    let layers = [spec(AttentionKind::Full, 4, 192, 128); 9];
    let geometry = Geometry::new(&layers, page(16), KvDtype::Bf16, None).unwrap();
    let group = &geometry.groups[0];
    assert_eq!(group.page_bytes(), 9 * 2_560 * 16);
    let s = group.strides();
    assert_eq!((s.k_token_bytes, s.k_head_bytes), (384, 6_144));
    assert_eq!(
        (s.v_offset_bytes, s.v_token_bytes, s.v_head_bytes),
        (24_576, 256, 4_096)
    );
    assert_eq!(
        (u64::from(s.layer_page_bytes), s.padding_bytes),
        (group.layer_page_bytes(), 0)
    );
}

#[test]
fn c07_no_group_is_padded_to_the_layers_of_another() {
    let full = spec(AttentionKind::Full, 8, 64, 64);
    let swa = spec(AttentionKind::Sliding { window: 128 }, 8, 64, 64);
    for (num_full, num_swa) in [(19, 18), (10, 52), (9, 39)] {
        let layers = [vec![full; num_full], vec![swa; num_swa]].concat();
        let geometry = Geometry::new(&layers, page(16), KvDtype::Bf16, None).unwrap();
        let bytes = geometry
            .groups
            .iter()
            .map(LayerGroup::page_bytes)
            .collect::<Vec<_>>();
        assert_eq!(bytes, [num_full as u64 * 32_768, num_swa as u64 * 32_768]);
    }
}

#[test]
fn c08_pages_are_rounded_to_256_bytes_and_say_so() {
    // 1 KV head of 97 fp8 elements for K and V, 64 tokens: 12,416 bytes.
    let layers = [spec(AttentionKind::Full, 1, 97, 97)];
    let geometry = Geometry::new(&layers, page(64), KvDtype::Fp8E4m3, None).unwrap();
    let group = &geometry.groups[0];
    assert_eq!(
        (group.page_bytes(), group.strides().padding_bytes),
        (12_544, 128)
    );
}

#[test]
fn c09_a_dtype_for_each_group_pays_off_at_once() {
    let mut layers = Vec::new();
    for _ in 0..12 {
        layers.push(spec(AttentionKind::Sliding { window: 128 }, 8, 64, 64));
        layers.push(spec(AttentionKind::Full, 8, 64, 64));
    }
    let bf16 = Geometry::new(&layers, page(16), KvDtype::Bf16, None).unwrap();
    let mixed = bf16
        .clone()
        .with_group_dtype("full", KvDtype::Fp8E4m3)
        .unwrap();
    for (tokens, before, after) in [
        (1_024, 28_704_768, 16_121_856),
        (8_192, 204_865_536, 104_202_240),
        (131_072, 3_224_764_416, 1_614_151_680),
    ] {
        assert_eq!(
            (bf16.request_bytes(tokens), mixed.request_bytes(tokens)),
            (before, after)
        );
    }
    let error = bf16.with_group_dtype("latent", KvDtype::Fp16).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no layer group `latent`; this model has full, swa"
    );
}

#[test]
fn groups_are_named_ordered_and_located() {
    let layers = [
        spec(AttentionKind::Sliding { window: 512 }, 2, 64, 64),
        spec(AttentionKind::Sliding { window: 128 }, 2, 64, 64),
        spec(AttentionKind::Full, 2, 64, 64),
        spec(AttentionKind::Sliding { window: 512 }, 2, 64, 64),
    ];
    let geometry = Geometry::new(&layers, page(1), KvDtype::Bf16, Some(2_048)).unwrap();
    let names = geometry
        .groups
        .iter()
        .map(|g| (g.name.as_str(), g.layers.as_slice()))
        .collect::<Vec<_>>();
    assert_eq!(
        names,
        [("full", &[2][..]), ("swa", &[1]), ("swa2", &[0, 3])]
    );
    assert_eq!(geometry.locate(3), Some((GroupId(2), 1)));
    assert_eq!(geometry.locate(4), None);
}

#[test]
fn a_window_of_the_whole_length_is_full() {
    let layers = [
        spec(AttentionKind::Sliding { window: 4_096 }, 2, 64, 64),
        spec(AttentionKind::Full, 2, 64, 64),
    ];
    let whole = Geometry::new(&layers, page(16), KvDtype::Bf16, Some(4_096)).unwrap();
    assert_eq!((whole.groups.len(), whole.groups[0].layers.len()), (1, 2));
    let longer = Geometry::new(&layers, page(16), KvDtype::Bf16, Some(4_097)).unwrap();
    assert_eq!(longer.groups.len(), 2);
}

#[test]
fn absurd_sizes_are_refused_with_a_sentence() {
    let huge = [spec(AttentionKind::Full, u32::MAX, u32::MAX, u32::MAX)];
    let error = Geometry::new(&huge, page(256), KvDtype::Bf16, None).unwrap_err();
    assert!(
        matches!(error, GeometryError::PageTooLarge { .. }),
        "{error}"
    );
    assert!(matches!(
        Geometry::new(&[], page(1), KvDtype::Bf16, None),
        Err(GeometryError::Layers { .. })
    ));
    for tokens in [0, 3, 24, 512, 1 << 63] {
        assert!(PageSize::new(tokens).is_err());
    }
    assert!("int4".parse::<KvDtype>().is_err());
    assert_eq!("fp8".parse(), Ok(KvDtype::Fp8E4m3));
}

#[test]
fn scales_are_part_of_page_bytes() {
    let layers = [spec(AttentionKind::Full, 4, 192, 128)];
    let bytes = |dtype| {
        let geometry = Geometry::new(&layers, page(16), dtype, None).unwrap();
        (
            geometry.groups[0].layer_page_bytes(),
            geometry.groups[0].strides(),
        )
    };
    let rows = 4 * 16_u64;
    for (dtype, row) in [
        (KvDtype::Int8, 192 + 128 + 8),
        (KvDtype::Fp4E2m1, 96 + 64 + 12 + 8),
        (KvDtype::Mxfp8, 192 + 128 + 6 + 4),
    ] {
        let (total, strides) = bytes(dtype);
        assert_eq!(total, (rows * row).next_multiple_of(256), "{dtype}");
        assert_eq!(u64::from(strides.padding_bytes), total - rows * row);
    }
    let (_, s) = bytes(KvDtype::Fp4E2m1);
    assert_eq!((s.k_token_bytes, s.v_offset_bytes), (96, 6_144));
    assert_eq!((s.k_scale_offset_bytes, s.k_scale_bytes), (10_240, 12));
    assert_eq!((s.v_scale_offset_bytes, s.v_scale_bytes), (11_008, 8));
    assert_eq!(s.index_offset_bytes, 11_520);
}

#[test]
fn the_sections_of_a_share_do_not_overlap_whatever_the_kind() {
    for kind in [
        AttentionKind::Latent { index_dim: 128 },
        AttentionKind::BlockSparse { index_dim: 64 },
        AttentionKind::Compressed {
            ratio: 4,
            index_dim: 128,
        },
        AttentionKind::Chunked { chunk: 8_192 },
    ] {
        for dtype in [
            KvDtype::Bf16,
            KvDtype::Fp8E4m3,
            KvDtype::Int8,
            KvDtype::Fp4E2m1,
            KvDtype::Mxfp8,
        ] {
            let geometry = Geometry::new(&[spec(kind, 2, 96, 32)], page(32), dtype, None).unwrap();
            let s = geometry.groups[0].strides();
            let ends = [
                (0, 2 * s.k_head_bytes),
                (s.v_offset_bytes, 2 * s.v_head_bytes),
                (s.k_scale_offset_bytes, 64 * s.k_scale_bytes),
                (s.v_scale_offset_bytes, 64 * s.v_scale_bytes),
                (s.index_offset_bytes, 32 * s.index_token_bytes),
                (s.index_scale_offset_bytes, 32 * s.index_scale_bytes),
            ];
            for pair in ends.windows(2) {
                assert_eq!(pair[0].0 + pair[0].1, pair[1].0, "{kind:?} {dtype}");
            }
            let last = ends[5].0 + ends[5].1;
            assert_eq!(
                last + s.padding_bytes,
                s.layer_page_bytes,
                "{kind:?} {dtype}"
            );
        }
    }
}

#[test]
fn draft_layers_are_further_groups_charged_once() {
    let target = [spec(AttentionKind::Full, 8, 64, 64); 4];
    let draft = [spec(AttentionKind::Full, 2, 64, 64); 2];
    let target = Geometry::new(&target, page(16), KvDtype::Bf16, Some(4_096)).unwrap();
    let draft = Geometry::new(&draft, page(16), KvDtype::Fp8E4m3, None).unwrap();
    let both = target.clone().with_draft(&draft).unwrap();
    assert_eq!(both.groups[1].name, "draft-full");
    assert_eq!(
        (both.groups[1].layers.as_slice(), both.num_layers),
        (&[4, 5][..], 6)
    );
    assert_eq!(both.locate(5), Some((GroupId(1), 1)));
    assert_eq!(
        both.request_bytes(1_000),
        target.request_bytes(1_000) + draft.request_bytes(1_000)
    );
}

#[test]
fn groups_may_have_page_sizes_of_their_own() {
    let layers = [
        spec(AttentionKind::Full, 2, 64, 64),
        spec(AttentionKind::Sliding { window: 1_024 }, 2, 64, 64),
    ];
    let geometry = Geometry::new(&layers, page(16), KvDtype::Bf16, None).unwrap();
    let geometry = geometry.with_group_page_size("full", page(32)).unwrap();
    assert_eq!(geometry.pages_for(4_090), [128, 65]);
    assert_eq!(geometry.groups[0].page_bytes(), 32 * 512);
}
