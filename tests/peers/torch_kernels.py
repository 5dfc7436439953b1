"""PyTorch on the problems of 07_kernels at the same sizes, eager and compiled, and ours beside it.
Run both on the same GPU.

Usage: build/cuda/07_kernels --family 1 2 4 --json ours.jsonl
       python3 tests/peers/torch_kernels.py ours.jsonl
Prints for each problem the milliseconds, measured as in 07_kernels (the median over batches of
back-to-back launches, on arrays larger than L2, four of each in turn), and the bandwidth: the bytes
that must at least move, per second. Without the file our kernels are left out.
"""
import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_timing import milliseconds

print(f"PyTorch {torch.__version__}; attention: cuDNN {torch.backends.cudnn.version()}")
torch.manual_seed(1)
torch.set_default_device("cuda")
bf16 = torch.bfloat16
ours = []  # rows of our kernels, which have a problem, a name and seconds
for file in sys.argv[1:]:
    with open(file) as lines:
        rows = [json.loads(text).get("row") for text in lines]
        ours += [row for row in rows if row and row.get("seconds", 0) > 0]


# `kernel`: the one of ours to compare with. By default, the fastest for the problem of this name.
def line(name, size, least_bytes, eager, *inputs, kernel=None):
    copies = [inputs] + [tuple(x.clone() for x in inputs) for _ in range(3)]
    cells = []
    for way, work in (("eager", eager), ("compiled", torch.compile(eager, dynamic=False))):
        cells.append((way, milliseconds(work, copies)))
    if rows := [r for r in ours if (r["kernel"] == kernel if kernel else r["problem"] == name)]:
        best = min(rows, key=lambda r: r["seconds"])
        cells.append((best["kernel"], 1e3 * best["seconds"]))
    cells = (f"{way} {ms:.4f} ms {least_bytes / ms / 1e6:7.1f} GB/s" for way, ms in cells)
    print(f"{name:<22} {size:<18} " + "   ".join(cells), flush=True)


n = 1 << 26
a, b = torch.randn(n), torch.randn(n)
line("vector add", n, 12 * n, lambda a, b: a + b, a, b)
line("elu", n, 8 * n, lambda a: F.elu(a), a)
# The playbook's, operation by operation: five kernels, which move 42 n bytes, unless compiled.
line("elu, as written", n, 8 * n,
     lambda x, alpha=1.0: torch.where(x < 0, alpha * (torch.exp(x) - 1), x), a,
     kernel="elu_unfused")
line("sum", n, 4 * n, lambda a: a.sum(), a)
x = torch.randn(16384, 8192, dtype=bf16)
line("swiglu", "16384 x 4096", 3 * x.numel(), lambda x: F.silu(x[:, :4096]) * x[:, 4096:], x)
line("transpose", "8192 x 8192", 8 * n, lambda a: a.t().contiguous(), a.view(8192, 8192))
line("softmax", "16384 x 8192", 4 * x.numel(), lambda x: F.softmax(x, -1), x)
weight, residual = torch.ones(8192, dtype=bf16), torch.randn_like(x)
line("rms norm", "16384 x 8192", 4 * x.numel(),
     lambda x, weight: F.rms_norm(x, (8192,), weight, 1e-5), x, weight)


def add_and_norm(x, residual, weight):
    s = x + residual
    return s, F.rms_norm(s, (8192,), weight, 1e-5)


line("rms norm + residual", "16384 x 8192", 8 * x.numel(), add_and_norm, x, residual, weight)
logits, targets = torch.randn(8192, 49152, dtype=bf16), torch.randint(0, 49152, (8192,))


# The gradient of the mean cross-entropy, which autograd computes, written out.
def gradient_of_loss(logits, targets):
    p = torch.softmax(logits.float(), -1)
    p[torch.arange(len(targets)), targets] -= 1
    return (p / len(targets)).to(bf16)


line("cross-entropy", "8192 x 49152", 4 * logits.numel(), gradient_of_loss, logits, targets)
del logits

for dtype, name in ((torch.float32, "product"), (bf16, "product bf16")):
    inputs = [(torch.randn(4096, 4096, dtype=dtype), torch.randn(4096, 4096, dtype=dtype))
              for _ in range(4)]
    ms = milliseconds((lambda m, k: m @ k.t()) if dtype == bf16 else (lambda m, k: m @ k), inputs)
    print(f"{name:<22} {'4096^3':<18} eager {ms:.4f} ms {2 * 4096**3 / ms / 1e9:7.1f} TFLOP/s",
          flush=True)
for B, T, H, D in ((4, 4096, 16, 128), (4, 4096, 16, 64)):
    inputs = [tuple(torch.randn(B, H, T, D, dtype=bf16) for _ in range(3)) for _ in range(4)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        ms = milliseconds(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                          inputs)
    print(f"{'attention':<22} {f'{B} x {T} x {H} x {D}':<18} eager {ms:.4f} ms "
          f"{2 * B * H * T * T * D / ms / 1e9:7.1f} TFLOP/s", flush=True)
