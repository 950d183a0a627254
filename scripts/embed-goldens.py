#!/usr/bin/env python3
"""Writes src/bin/neap/goldens.json, the few goldens that `neap selftest` carries, from tests/data/goldens.

tests/cli.rs fails when the file is not what this script would write from the full goldens.
"""
import json
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "gemma3-tiny-kjv"
STEPS = 16
TOP = 5


def tensors(path):
    data = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    letter = {"F32": "f", "I32": "i"}
    out = {}
    for name, entry in header.items():
        if entry["dtype"] in letter:
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            out[name] = struct.unpack(f"<{(end - begin) // 4}{letter[entry['dtype']]}", data[begin:end])
    return out


def fnv1a64(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return state


def main():
    folder = ROOT / "tests/data/goldens"
    about = json.loads((folder / f"{MODEL}.json").read_text())
    values = tensors(folder / f"{MODEL}.safetensors")
    lines = []
    for prompt in about["prompts"]:
        name = prompt["name"]
        ids, logits = values[f"{name}.step_topk_ids"], values[f"{name}.step_topk_logits"]
        width = len(ids) // len(values[f"{name}.decoded_ids"])
        top = [
            [[ids[step * width + rank], round(logits[step * width + rank], 6)] for rank in range(TOP)]
            for step in range(STEPS)
        ]
        entry = {
            "name": name,
            "bf16_error": round(about["hf_bf16_run"][name]["max_abs_logit_diff_vs_fp32"], 6),
            "prompt": list(values[f"{name}.input_ids"]),
            "decoded": list(values[f"{name}.decoded_ids"][:STEPS]),
            "top": top,
        }
        lines.append(json.dumps(entry, separators=(",", ":")))
    weights = fnv1a64((ROOT / "models" / MODEL / "model.safetensors").read_bytes())
    head = f'{{"model":"{MODEL}","weights_fnv1a64":"{weights:016x}","prompts":[\n'
    (ROOT / "src/bin/neap/goldens.json").write_text(head + ",\n".join(lines) + "\n]}\n")


main()
