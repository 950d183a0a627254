#!/usr/bin/env python3
"""Dumps what Hugging Face's configuration classes make of an empty config.json, for tests/hf_configs.rs.

    python3 -m venv VENV && VENV/bin/pip install transformers
    VENV/bin/python scripts/dump-hf-configs.py > tests/data/hf-config-defaults.json

Only configuration classes are used: neither torch nor a network is needed. Each entry has the fields that decide what a
layer caches (`fields`, as the class itself would write them), and what the class resolves them to (`resolved`):
the kind of every layer, and the heads and dims of layers that differ. A model type that this version of transformers does not know is left out and named in
`missing`.
"""
import json
import sys

import transformers
from transformers import CONFIG_MAPPING

MODEL_TYPES = """
    cohere2 cohere2_moe deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 exaone4 exaone_moe gemma gemma2 gemma3_text
    gemma3n_text gemma4_text gpt_oss granite llama llama4_text mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text
    ministral ministral3 mistral mistral4 mixtral olmo2 olmo3 phi3 qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe
    qwen3_next starcoder2 step3p5
""".split()

FIELDS = """
    num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim v_head_dim max_position_embeddings
    sliding_window sliding_window_pattern use_sliding_window max_window_layers layer_types attention_chunk_size
    no_rope_layers no_rope_layer_interval num_kv_shared_layers attention_k_eq_v kv_lora_rank qk_rope_head_dim
    index_head_dim index_topk index_n_heads index_block_size index_topk_blocks compress_rates
    linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim
    full_attention_interval per_layer_config swa_head_dim swa_v_head_dim swa_num_key_value_heads
""".split()


def sharing(config):
    """For each layer the earlier layer whose KV it reads, or None: the newest storing layer of its own kind."""
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is None:
        return None
    kinds = config.layer_types
    stores = {kinds[i]: i for i, mode in enumerate(modes) if mode == "store"}
    return [stores[kinds[i]] if mode == "reuse" else None for i, mode in enumerate(modes)]


def per_layer(config, name):
    """A field's value on every layer, if some layer overrides it."""
    view = getattr(config, "per_layer_config", None)
    if view is None:
        return None
    values = [getattr(view[layer], name, None) for layer in range(config.num_hidden_layers)]
    return values if len(set(values)) > 1 else None


def dump(model_type):
    config = CONFIG_MAPPING[model_type]()
    written = config.to_dict()
    fields = {name: written[name] for name in FIELDS if name in written}
    resolved = {"layer_types": getattr(config, "layer_types", None), "kv_source": sharing(config)}
    for name in ("num_key_value_heads", "head_dim"):
        resolved[name] = per_layer(config, name)
    resolved = {name: value for name, value in resolved.items() if value is not None}
    return {"fields": fields, "resolved": resolved}


def main():
    known = [name for name in MODEL_TYPES if name in CONFIG_MAPPING]
    out = {
        "transformers": transformers.__version__,
        "missing": [name for name in MODEL_TYPES if name not in CONFIG_MAPPING],
        "classes": {name: dump(name) for name in known},
    }
    text = json.dumps(out, indent=1, sort_keys=True)
    # Lists of layers on one line each.
    json.dump(json.loads(text), sys.stdout, sort_keys=True, separators=(",", ":")) if "--compact" in sys.argv else print(text)


if __name__ == "__main__":
    main()
