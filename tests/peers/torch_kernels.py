"""PyTorch on the problems of 07_kernels at the same sizes: eager, and compiled if that gives
another kernel. Run both on the same GPU.

Usage: python3 tests/peers/torch_kernels.py
Prints for each problem the milliseconds, measured as in 07_kernels (the median over batches of
back-to-back launches, on arrays larger than L2, four of each in turn), and the bandwidth: the bytes
that must at least move, per second.
"""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_timing import milliseconds

print(f"PyTorch {torch.__version__}; attention: cuDNN {torch.backends.cudnn.version()}")
torch.manual_seed(1)
torch.set_default_device("cuda")
bf16 = torch.bfloat16


def line(name, size, least_bytes, eager, *inputs):
    copies = [inputs] + [tuple(x.clone() for x in inputs) for _ in range(3)]
    cells = []
    for way, work in (("eager", eager), ("compiled", torch.compile(eager, dynamic=False))):
        ms = milliseconds(work, copies)
        cells.append(f"{way} {ms:.4f} ms {least_bytes / ms / 1e6:7.1f} GB/s")
    print(f"{name:<22} {size:<18} " + "   ".join(cells), flush=True)


n = 1 << 26
a, b = torch.randn(n), torch.randn(n)
line("vector add", n, 12 * n, lambda a, b: a + b, a, b)
line("elu", n, 8 * n, lambda a: F.elu(a), a)
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
