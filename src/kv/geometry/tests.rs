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
    assert!("nvfp4".parse::<KvDtype>().is_err());
    assert_eq!("fp8".parse(), Ok(KvDtype::Fp8E4m3));
}
