"""PyTorch's context parallelism at the sizes of context_bench: causal attention, 32 heads of 128,
bf16, forward and backward.

First one GPU alone with the whole sequence (cuDNN's kernels), then torch.distributed's
context_parallel on all GPUs, which gives each rank a head and a tail chunk (a zig-zag) and moves
keys by all-gather or by all-to-all. Efficiency is t(1) / (N t(N)).
Usage: torchrun --nproc_per_node N tests/peers/torch_context_parallel.py [T ...]
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_timing import waited_for_milliseconds

H, D = 32, 128
rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("cp",))
lengths = [int(T) for T in sys.argv[1:]] or [16384, 65536, 131072]


def slowest(work):
    """The slowest rank's median, in milliseconds."""
    median = torch.tensor(waited_for_milliseconds(work, dist.barrier), device="cuda")
    dist.all_reduce(median, op=dist.ReduceOp.MAX)
    return median.item()


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def measure(q, k, v):
    for x in (q, k, v):
        x.requires_grad_()
    dout = torch.randn_like(q)

    def both():
        q.grad = k.grad = v.grad = None
        attention(q, k, v).backward(dout)

    with torch.no_grad():
        forward = slowest(lambda: attention(q, k, v))
    return forward, slowest(both)


def drawn(T):
    return [torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def row(T, name, forward, both, alone=None):
    rate = 3.5 * 4 * H * D * T * T / 2 / both / 1e9
    end = "" if alone is None else f" {100 * alone / (ranks * both):10.1f} %"
    if rank == 0:
        print(f"{T:>7}  {name:<26} {forward:9.3f} {both:10.3f} {rate:9.0f}{end}", flush=True)


if rank == 0:
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"{'tokens':>7}  {'':<26} {'fwd ms':>9} {'fwd+bwd ms':>10} {'TFLOP/s':>9} "
          f"{'efficiency':>12}")
for T in lengths:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        forward, alone = measure(*drawn(T))
        row(T, "one device", forward, alone)
        if ranks == 1:
            continue
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        for method in ("allgather", "alltoall"):
            set_rotate_method(method)
            q, k, v = drawn(T)
            with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
                forward, both = measure(q, k, v)
                for x in (q, k, v):  # so that the buffers can be restored
                    x.requires_grad_(False)
            row(T, f"context_parallel, {method}", forward, both, alone)
dist.destroy_process_group()
