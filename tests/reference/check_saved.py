#!/usr/bin/env python3
"""Shows that transformers loads what `--save` writes, and gets the original's logits.

    python3 tests/reference/check_saved.py [--write] DIR

DIR holds gqa_untied/, tied_head_dim/, llama3_bf16/, mistral/, gpt2/, latent/ and latent_no_q/ as
saved by our program after loading the references of those names (any of them may be absent). Two
ways to make them:

    ULTRASCALE_SAVED_DIR=DIR build/cpu/unit_test \\
        --gtest_filter=SaveCheckpoint.WritesWhatTransformersLoaded
    build/cpu/00_single_gpu --load tests/reference/gqa_untied --seq 64 --steps 0 \\
        --data tests/reference/gqa_untied/tokens.bin --save DIR/gqa_untied

Logits are compared in float64 with those that make_reference.py committed: the weights must be the
same, so they must agree to the expectation's nine digits. With --write, the hashes of the files
that passed are written to saved.json. A C++ test then checks on machines without transformers that
the program writes exactly these bytes.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from make_reference import HERE, LOGIT_TOKENS, fnv1a, keep_float64

NAMES = ["gqa_untied", "tied_head_dim", "llama3_bf16", "mistral", "gpt2", "latent", "latent_no_q"]


def largest_difference(saved, name):
    model, report = AutoModelForCausalLM.from_pretrained(saved, attn_implementation="eager",
                                                         dtype=torch.float64,
                                                         output_loading_info=True)
    problems = {key: value for key, value in report.items() if value}
    assert not problems, f"{saved}: {problems}"
    tokens = torch.from_numpy(np.fromfile(HERE / name / "tokens.bin",
                                          dtype=np.uint16).astype(np.int64))
    expected = torch.tensor(json.loads((HERE / name / "expected.json").read_text())["logits"],
                            dtype=torch.float64)
    with torch.no_grad():
        logits = model(tokens[None, :LOGIT_TOKENS], use_cache=False).logits[0]
    return float((logits - expected).abs().max())


def main():
    write, root = "--write" in sys.argv, pathlib.Path(sys.argv[-1])
    keep_float64()
    hashes, failed = {}, False
    for name in NAMES:
        if not (root / name).exists():
            print(f"{name}: not in {root}")
            continue
        difference = largest_difference(root / name, name)
        failed |= difference > 1e-6
        print(f"{name}: largest difference of a logit {difference:.1e}"
              f"{'  FAILED' if difference > 1e-6 else ''}")
        hashes[name] = {f.name: f"{fnv1a(f.read_bytes()):016x}"
                        for f in sorted((root / name).iterdir())
                        if f.name == "config.json" or f.name.startswith("model")}
    if write and not failed and len(hashes) == len(NAMES):
        (HERE / "saved.json").write_text(json.dumps(hashes, indent=2) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
