#!/usr/bin/env python3
"""Makes tests/reference/muon.json with PyTorch (2.15) and transformers (5.24); 10 seconds.

It trains the model of tests/reference/gqa_untied in float64 as make_reference.py does, but with
Muon for the matrices of layers and AdamW for the rest, and writes the losses and gradient norms.
PyTorch has the same optimizer, torch.optim.Muon, whose products are always in bfloat16: its losses
are written as well, and must be close.
"""

import json
import pathlib

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from make_reference import HERE, keep_float64, run_steps

STEPS, LR, DECAY, MOMENTUM = 8, 1e-3, 0.1, 0.95


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon with adjust_lr_fn="match_rms_adamw", in the parameters' dtype."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.lerp_(p.grad, 1 - MOMENTUM)
            x = p.grad.lerp(momentum, MOMENTUM)
            x = x / x.norm().clamp(min=1e-7)
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            p.mul_(1 - LR * DECAY)
            p.add_(x, alpha=-LR * 0.2 * max(p.shape) ** 0.5)


def train(matrices_optimizer):
    folder = HERE / "gqa_untied"
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                 dtype=torch.float64)
    tokens = torch.from_numpy(np.fromfile(folder / "tokens.bin", dtype=np.uint16).astype(np.int64))
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.dim() == 2 and ".layers." in name]
    others = [p for name, p in named if not (p.dim() == 2 and ".layers." in name)]
    optimizers = [matrices_optimizer(matrices), torch.optim.AdamW(
        [{"params": [p for p in others if p.dim() == 2], "weight_decay": DECAY},
         {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0}],
        lr=LR, betas=(0.9, 0.95), eps=1e-8)]
    return run_steps(model, tokens, optimizers, STEPS)


def main():
    torch.set_num_threads(2)
    keep_float64()
    own = train(Muon)
    torchs = train(lambda matrices: torch.optim.Muon(
        matrices, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=True,
        adjust_lr_fn="match_rms_adamw"))
    distance = max(abs(a - b) for a, b in zip(own["loss"], torchs["loss"]))
    print(f"losses {own['loss'][0]:.4f} .. {own['loss'][-1]:.4f}; torch.optim.Muon's differ by at "
          f"most {distance:.1e}")
    assert 0 < distance < 1e-4
    pathlib.Path(HERE / "muon.json").write_text(
        json.dumps({"steps": STEPS, **own, "torch_loss": torchs["loss"]}) + "\n")


if __name__ == "__main__":
    main()
