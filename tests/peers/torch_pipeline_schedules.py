"""PyTorch's pipeline schedules on the same work as 05_pipeline: forward, backward, AdamW, without
clipping.

torch.distributed.pipelining with compiled layers. bf16 autocast with fp32 weights, gradients and
optimizer states; activations travel between stages in bf16. Schedules that take backward apart
(InterleavedZeroBubble, ZBVZeroBubble, DualPipeV) fail with compiled layers: --no-compile.
Usage: torchrun --nproc_per_node P tests/peers/torch_pipeline_schedules.py [--schedule 1F1B]
       [--model llama-3-8b] [--layers 16] [--split 9,7] [--micro 8] [--batch 1] [--seq 4096]
       [--steps 10] [--no-compile] [--device cpu|cuda] [--peak-tflops 989.5]
--schedule: GPipe, 1F1B, Interleaved1F1B or one of the three above; all but the first two have two
stages a rank. --split: the layers of each stage; by default all have the same.
Prints one line: the median step, tokens/s, MFU of all devices (6 N + 12 L h s FLOP per token), the
first and the last loss, the peak memory of each rank.
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", default="1F1B")
parser.add_argument("--model", default="llama-3-8b")
parser.add_argument("--layers", type=int, default=0)
parser.add_argument("--split", default="")
parser.add_argument("--micro", type=int, default=8)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--seq", type=int, default=4096)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--no-compile", action="store_true")
parser.add_argument("--device", default="cuda")
parser.add_argument("--peak-tflops", type=float, default=989.5)
args = parser.parse_args()
on_gpu = args.device == "cuda"
rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device(args.device, rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=device)
else:
    torch.set_num_threads(max(1, os.cpu_count() // ranks))
    dist.init_process_group("gloo")
MODELS = {  # L, h, H, K, D, F, V, theta: as in common/model/config.cpp, with a head of its own
    "nano": (8, 128, 8, 4, 16, 384, 256, 10000.0),
    "llama-3-8b": (32, 4096, 32, 8, 128, 14336, 128256, 500000.0),
}
L, h, H, K, D, FF, V, theta = MODELS[args.model]
L = args.layers or L

# This rank's stages. Stages go round the ranks, or down and up again (a V).
a_rank = 1 if args.schedule in ("GPipe", "1F1B") else 2
stages = a_rank * ranks
in_v = args.schedule in ("ZBVZeroBubble", "DualPipeV")
own = [rank, 2 * ranks - 1 - rank if in_v else ranks + rank][:a_rank]
if args.split:
    split = [int(layers) for layers in args.split.split(",")]
else:
    split = [L // stages] * stages
if len(split) != stages or sum(split) != L:
    raise SystemExit(f"Error: {L} layers cannot be cut into {stages} stages of {split}")


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-5), nn.RMSNorm(h, eps=1e-5)
        self.qkv = nn.Linear(h, (H + 2 * K) * D, bias=False)
        self.o = nn.Linear(H * D, h, bias=False)
        self.gate_up = nn.Linear(h, 2 * FF, bias=False)
        self.down = nn.Linear(FF, h, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([H * D, K * D, K * D], -1)
        q = rotate(q.view(B, T, H, D).transpose(1, 2), cos, sin)
        k = rotate(k.view(B, T, K, D).transpose(1, 2), cos, sin)
        v = v.view(B, T, K, D).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != K)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, H * D))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Stage(nn.Module):
    """A stage's layers; the first one has the embedding, too, the last one the norm and head."""

    def __init__(self, number):
        super().__init__()
        self.embedding = nn.Embedding(V, h) if number == 0 else None
        self.layers = nn.ModuleList(Layer() for _ in range(split[number]))
        last = number == stages - 1
        self.norm = nn.RMSNorm(h, eps=1e-5) if last else None
        self.head = nn.Linear(h, V, bias=False) if last else None
        angle = torch.outer(torch.arange(args.seq).float(),
                            theta ** (-torch.arange(0, D, 2).float() / D))
        self.cos, self.sin = (x.to(device, torch.bfloat16) for x in (angle.cos(), angle.sin()))

    def forward(self, x):
        with torch.autocast(args.device, torch.bfloat16):
            if self.embedding is not None:
                x = self.embedding(x).bfloat16()
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            return x if self.head is None else self.head(self.norm(x))


torch.manual_seed(1)
modules = [Stage(number).to(device) for number in own]
for module in modules:
    for weight in module.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.02)
    if not args.no_compile:
        for layer in module.layers:
            layer.compile()
made = [PipelineStage(m, number, stages, device) for m, number in zip(modules, own)]


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


schedule = get_schedule_class(args.schedule)(made if a_rank > 1 else made[0], args.micro,
                                             loss_fn=loss_of)
optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()], lr=1e-4,
                              betas=(0.9, 0.95), weight_decay=0.1, fused=True)
tokens = torch.randint(0, V, (args.micro * args.batch, args.seq + 1), device=device)


def step():
    losses = []
    inputs = (tokens[:, :-1].contiguous(),) if 0 in own else ()
    last = {"target": tokens[:, 1:].contiguous(), "losses": losses} if stages - 1 in own else {}
    schedule.step(*inputs, **last)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()
    return torch.stack([loss.detach().float() for loss in losses]).mean().item() if losses else 0.0


losses = [step() for _ in range(4)]
if on_gpu:
    torch.cuda.reset_peak_memory_stats()
times = []
for _ in range(args.steps):
    begin = time.perf_counter()
    losses.append(step())
    times.append(time.perf_counter() - begin)
median = sorted(times)[len(times) // 2]
peak = torch.tensor(torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0, device=device)
first_and_last = torch.tensor([losses[0], losses[-1]], device=device)
dist.all_reduce(first_and_last)  # zeros except on one rank
peaks = [torch.zeros_like(peak) for _ in range(ranks)]
dist.all_gather(peaks, peak)
if rank == 0:
    parameters = L * (h * (H + 2 * K) * D + H * D * h + 3 * h * FF + 2 * h) + 2 * V * h + h
    per_second = args.micro * args.batch * args.seq / median
    flops = (6 * parameters + 12 * L * H * D * args.seq) * per_second
    memory = ", peak memory " + ", ".join(f"{p.item():.1f}" for p in peaks) + " GiB"
    print(f"PyTorch {torch.__version__}, {args.schedule}{', not compiled' * args.no_compile}, "
          f"{ranks} ranks, stages of {','.join(map(str, split))} layers: "
          f"median step {median * 1e3:.1f} ms, {per_second:.0f} tokens/s, "
          f"{flops / (args.peak_tflops * 1e12 * ranks) * 100:.1f} % of {ranks} devices' peak, "
          f"loss {first_and_last[0]:.4f} to {first_and_last[1]:.4f}{memory * on_gpu}", flush=True)
dist.destroy_process_group()
