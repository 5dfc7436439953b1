"""PyTorch's tensor parallelism on the same work as 03_tensor_parallel: forward, backward, clipping
by the global norm, AdamW.

torch.distributed.tensor.parallel with compiled layers, as torchtitan arranges it: column and row
linears, the embedding split over the vocabulary, the loss over split logits (loss_parallel), and
with --sequence-parallel norms and residuals on 1/tp of the tokens. bf16 autocast with fp32 weights,
gradients and optimizer states. --async-tp lets inductor pipeline all-gathers and reduce-scatters
with the products.
Usage: torchrun --nproc_per_node TP tests/peers/torch_tensor_parallel.py [--model llama-3-8b]
       [--layers 16] [--batch 1] [--seq 4096] [--steps 12] [--sequence-parallel] [--async-tp]
       [--no-compile] [--device cpu|cuda] [--peak-tflops 989.5]
Prints one line: the median step, tokens/s, MFU of all devices (6 N + 12 L h s FLOP per token), the
first and the last loss, peak memory.
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                               SequenceParallel, loss_parallel,
                                               parallelize_module)

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="llama-3-8b")
parser.add_argument("--layers", type=int, default=0)
parser.add_argument("--device", default="cuda")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--seq", type=int, default=4096)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--peak-tflops", type=float, default=989.5)
parser.add_argument("--sequence-parallel", action="store_true")
parser.add_argument("--async-tp", action="store_true")
parser.add_argument("--no-compile", action="store_true")
args = parser.parse_args()
on_gpu = args.device == "cuda"
rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
if on_gpu:
    torch.cuda.set_device(rank)
mesh = init_device_mesh(args.device, (ranks,), mesh_dim_names=("tp",))
MODELS = {  # L, h, H, K, D, F, V, tied, theta: as in common/model/config.cpp
    "nano": (8, 128, 8, 4, 16, 384, 256, False, 10000.0),
    "smollm-1.7b": (24, 2048, 32, 32, 64, 8192, 49152, True, 10000.0),
    "llama-3-8b": (32, 4096, 32, 8, 128, 14336, 128256, False, 500000.0),
}
L, h, H, K, D, FF, V, tied, theta = MODELS[args.model]
L = args.layers or L
split = Shard(1) if args.sequence_parallel else Replicate()  # the residual stream, (B, T, h)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(h, n * D, bias=False) for n in (H, K, K))
        self.o = nn.Linear(H * D, h, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q, k, v = (p(x).view(B, T, -1, D).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                           is_causal=True, enable_gqa=H != K)
        return self.o(y.transpose(1, 2).reshape(B, T, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(h, FF, bias=False), nn.Linear(h, FF, bias=False)
        self.down = nn.Linear(FF, h, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-5), nn.RMSNorm(h, eps=1e-5)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, h)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm, self.head = nn.RMSNorm(h, eps=1e-5), nn.Linear(h, V, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        angle = torch.outer(torch.arange(args.seq).float(),
                            theta ** (-torch.arange(0, D, 2).float() / D))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens):
        x = self.embedding(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


torch.manual_seed(1)
with torch.device(args.device):
    model = Llama()
    tokens = torch.randint(0, V, (args.batch, args.seq + 1))
for weight in model.parameters():
    if weight.dim() > 1:
        nn.init.normal_(weight, std=0.02)
parameters = sum(p.numel() for p in model.parameters())

sequence_norm = {"norm": SequenceParallel()} if args.sequence_parallel else {}
parallelize_module(model, mesh, {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=split),
    "head": ColwiseParallel(input_layouts=split, output_layouts=Shard(-1), use_local_output=False),
    **sequence_norm,
})
for layer in model.layers:
    plan = {
        # q, k and v share the gathered input, and so do gate and up.
        "attention": PrepareModuleInput(input_layouts=(split, None, None),
                                        desired_input_layouts=(Replicate(), None, None)),
        "feed_forward": PrepareModuleInput(input_layouts=(split,),
                                           desired_input_layouts=(Replicate(),)),
        **{f"attention.{p}": ColwiseParallel() for p in "qkv"},
        **{f"feed_forward.{p}": ColwiseParallel() for p in ("gate", "up")},
        **{p: RowwiseParallel(output_layouts=split) for p in ("attention.o", "feed_forward.down")},
    }
    if args.sequence_parallel:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    parallelize_module(layer, mesh, plan)
if args.async_tp:
    torch._inductor.config._micro_pipeline_tp = True
if not args.no_compile:
    for layer in model.layers:
        layer.compile(fullgraph=True)

# DTensors and tensors (norms without sequence parallelism) may not share a group.
groups = [[p for p in model.parameters() if isinstance(p, DTensor) == sharded]
          for sharded in (True, False)]
groups = [group for group in groups if group]
optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-4, betas=(0.9, 0.95),
                              weight_decay=0.1, fused=True)


def clip(limit=1.0):
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    norm = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, limit, norm)


def step():
    with torch.autocast(args.device, torch.bfloat16), loss_parallel():
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].reshape(-1))
        loss.backward()
    clip()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
    return whole.item()  # waits for the device


losses = [step() for _ in range(4)]
if on_gpu:
    torch.cuda.reset_peak_memory_stats()
times = []
for _ in range(args.steps):
    begin = time.perf_counter()
    losses.append(step())
    times.append(time.perf_counter() - begin)
median = sorted(times)[len(times) // 2]
per_second = args.batch * args.seq / median
flops = (6 * parameters + 12 * L * H * D * args.seq) * per_second
memory = f", peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else ""
if rank == 0:
    how = (" + sequence parallel" * args.sequence_parallel + ", async-tp" * args.async_tp
           + ", not compiled" * args.no_compile)
    print(f"PyTorch {torch.__version__}, tp {ranks}{how}: median step {median * 1e3:.1f} ms, "
          f"{per_second:.0f} tokens/s, "
          f"{flops / (args.peak_tflops * 1e12 * ranks) * 100:.1f} % of {ranks} devices' peak, "
          f"loss {losses[0]:.4f} to {losses[-1]:.4f}{memory}", flush=True)
dist.destroy_process_group()
