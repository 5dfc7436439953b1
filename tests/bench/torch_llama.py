"""The same work as 00_single_gpu in PyTorch: forward, backward, clipping by the global norm, AdamW;
with the real loss, and nothing skipped.

On the CPU in fp32; on a GPU with bf16 autocast with fp32 weights, gradients and optimizer states.
Usage: python3 tests/bench/torch_llama.py [--model small] [--layers 0] [--batch 8] [--seq 256]
       [--steps 12] [--compile [reduce-overhead]] [--device cpu|cuda] [--threads 2]
       [--peak-tflops 989.5]
Prints one line: the median step, tokens/s, and MFU (6 N + 12 L h s FLOP per token) relative to the
given peak, or on the CPU to torch's own sgemm rate; on a GPU also the peak of the tensors' memory.
"""
import argparse
import contextlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="small")
parser.add_argument("--layers", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--peak-tflops", type=float, default=989.5)
parser.add_argument("--compile", nargs="?", const="default", metavar="MODE",
                    help="torch.compile's mode; reduce-overhead uses CUDA graphs")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.set_default_device(args.device)
torch.manual_seed(1)
on_gpu = args.device == "cuda"
MODELS = {  # L, h, H, K, D, F, V, tied, theta: as in common/model/config.cpp
    "small": (8, 512, 8, 4, 64, 1536, 256, False, 10000.0),
    "smollm-135m": (30, 576, 9, 3, 64, 1536, 49152, True, 10000.0),
    "smollm-1.7b": (24, 2048, 32, 32, 64, 8192, 49152, True, 10000.0),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, True, 500000.0),
    "llama-3-8b": (32, 4096, 32, 8, 128, 14336, 128256, False, 500000.0),
    "gpt2-124m": (12, 768, 12, 12, 64, 3072, 50257, True, None),  # None: learned positions
}
L, h, H, K, D, FF, V, tied, theta = MODELS[args.model]
L = args.layers or L


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

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, V), targets.view(-1))


class GptLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.o = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, FF), nn.Linear(FF, h)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, H, D).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, h))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(V, h), nn.Embedding(1024, h)
        self.layers = nn.ModuleList(GptLayer() for _ in range(L))
        self.norm, self.head = nn.LayerNorm(h), nn.Linear(h, V, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        x = self.embedding(tokens) + self.positions.weight[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, V), targets.view(-1))


model = Llama() if theta else Gpt()
for weight in model.parameters():
    if weight.dim() > 1:
        nn.init.normal_(weight, std=0.02)
parameters = sum(p.numel() for p in model.parameters())
step_model = torch.compile(model, mode=args.compile) if args.compile else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                              fused=True)
tokens = torch.randint(0, V, (args.batch, args.seq + 1))


def step():
    with torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext():
        loss = step_model(tokens[:, :-1], tokens[:, 1:].contiguous())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()  # waits for the device


def seconds(work, runs):
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


for _ in range(4):
    step()
if on_gpu:
    torch.cuda.reset_peak_memory_stats()
    rate = args.peak_tflops * 1e12
    where = f"{torch.cuda.get_device_name()}, peak memory {{:.1f}} GiB"
else:
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    rate, where = 2 * 1024**3 / seconds(lambda: a @ b, 15), f"{args.threads} threads"
median = seconds(step, args.steps)
per_second = args.batch * args.seq / median
flops = (6 * parameters + 12 * L * H * D * args.seq) * per_second
if on_gpu:
    where = where.format(torch.cuda.max_memory_allocated() / 2**30)
how = f" compiled ({args.compile})" if args.compile else ""
print(f"PyTorch {torch.__version__}{how}, {where}: "
      f"median step {median * 1e3:.1f} ms, {per_second:.0f} tokens/s, "
      f"{flops / rate * 100:.1f} % of {'its sgemm' if not on_gpu else 'peak'} "
      f"({rate / 1e12:.3f} TFLOP/s)")
