"""PyTorch's causal attention at the sizes of attention_bench: cuDNN's kernels and
FlashAttention-2's. Run both on the same GPU.

Usage: python3 tests/peers/torch_attention.py
16,384 tokens of bf16 and 2,048 / D heads. Prints milliseconds (the median over batches of
back-to-back launches) and TFLOP/s, counted as in attention_bench: 4 B H T^2 D forward, half of it
causal, and 2.5 times that backward. Last come 32 heads on a GPU that has rested.
"""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_timing import milliseconds, rested_milliseconds

torch.manual_seed(1)
torch.set_default_device("cuda")
backends = (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash 2", SDPBackend.FLASH_ATTENTION))


def measure(name, backend, B, T, H, D, timed):
    """Prints one line; `timed` measures a call in milliseconds."""
    q, k, v = (torch.randn(B, T, H, D, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
               for _ in range(3))
    dout = torch.randn(B, T, H, D, dtype=torch.bfloat16).transpose(1, 2)
    flops = 2 * B * H * T * T * D
    with sdpa_kernel(backend):
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with torch.no_grad():
            forward = timed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        backward = timed(lambda: torch.autograd.grad(o, (q, k, v), dout, retain_graph=True))
    print(f"{name:<8} {D:>4} {T:>6}   {forward:>12.3f} {flops / forward / 1e9:>8.1f}   "
          f"{backward:>12.3f} {2.5 * flops / backward / 1e9:>8.1f}", flush=True)


print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
print(f"{'':<8} {'D':>4} {'T':>6}   {'forward ms':>12} {'TFLOP/s':>8}   "
      f"{'backward ms':>12} {'TFLOP/s':>8}")
for name, backend in backends:
    for D in (64, 128):
        for T in (2048, 4096, 8192, 16384):
            measure(name, backend, 16384 // T, T, 2048 // D, D, milliseconds)
print("After a rest, seven calls each, the median of the last five; 32 heads:")
for name, backend in backends:
    for D in (64, 128):
        measure(name, backend, 1, 16384, 32, D, rested_milliseconds)
