#!/usr/bin/env python3
"""Calls a kernel of this chapter from Python, and compares it with Python's own arithmetic.

Usage: make python, or python3 07_kernels/python/elu.py build/cpu/libelu.so
A C function needs no binding code: ctypes loads the library and passes addresses. They are those of
an array of floats, or with the library for GPUs of a torch tensor.
"""
import array
import ctypes
import math
import sys


def load(path):
    """Returns the library. Its ultrascale_elu(y, x, n, stream) takes addresses of fp32 numbers."""
    library = ctypes.CDLL(path)
    library.ultrascale_elu.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                       ctypes.c_void_p]
    return library


def elu_of_array(library, x):
    """x: array("f"). Returns an array of the same length."""
    y = array.array("f", bytes(4 * len(x)))
    library.ultrascale_elu(y.buffer_info()[0], x.buffer_info()[0], len(x), None)
    return y


def elu_of_tensor(library, x):
    """x: a torch tensor on a GPU. The kernel runs on PyTorch's stream, so in its order."""
    import torch
    if not x.is_cuda or x.dtype != torch.float32 or not x.is_contiguous():
        raise ValueError("elu: a contiguous tensor in float32 on a GPU")
    y = torch.empty_like(x)
    with torch.cuda.device(x.device):
        error = library.ultrascale_elu(y.data_ptr(), x.data_ptr(), x.numel(),
                                       torch.cuda.current_stream().cuda_stream)
    if error:
        raise RuntimeError(f"elu: CUDA's error {error}")
    return y


def main(path):
    library = load(path)
    numbers = array.array("f", [i / 64 for i in range(-1000, 1001)] + [1e-6, -1e-6, 1e30, -1e30])
    if library.ultrascale_on_gpu():
        import torch
        results = elu_of_tensor(library, torch.tensor(numbers, device="cuda")).tolist()
    else:
        results = elu_of_array(library, numbers)
    errors = [abs(y - right) / (abs(right) or 1)
              for x, y in zip(numbers, results)
              for right in [x if x > 0 else math.expm1(x)]]
    print(f"elu of {len(numbers)} numbers: the largest relative error is {max(errors):.1e}")
    return 0 if len(results) == len(numbers) and max(errors) < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
