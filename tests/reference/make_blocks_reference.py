#!/usr/bin/env python3
"""Makes tests/reference/blocks.json: how matrices are rounded to mxfp8 and nvfp4, for
08_mixed_precision/kernels/ops_blocks.h.

    python3 tests/reference/make_blocks_reference.py   # torch 2.11 or later; seconds

Numbers of 8 bits and scales in e4m3 are rounded by PyTorch's types. A power of two as a scale is
found in the table of all that float8_e8m0fnu can hold, and a number of 4 bits in the table of its 8
magnitudes, in float64. The Hadamard matrix is multiplied as it is. Every block is cut out of the
matrix and rounded by itself.

blocks.json holds, for each case, a checksum of the bits of the results in bf16 (-0 as 0), sum of
result[i] * (2654435761 i + 1) modulo 2^64; row 5 of it; and the bits of the tensor's scale.
"""

import json
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
R, C = 48, 80
SIGNS = 0xB4D1
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def matrix():
    """Integers of 7 bits times powers of two; a block of zeros, and an outlier."""
    r, c = np.meshgrid(np.arange(R), np.arange(C), indexing="ij")
    power = (r // 16 * 5 + c // 16 * 3) % 23 - 17 + (r * 3 + c) % 4
    x = np.ldexp(((r * 7919 + c * 10473) % 255 - 127).astype(np.float64), power)
    x[16:32, 32:48] = 0
    x[5, 7] = 4096
    return x.astype(np.float32)


def through(x, dtype, largest):
    """Rounds fp32 to an 8-bit type, saturated, and back."""
    return torch.from_numpy(np.clip(x, -largest, largest)).to(dtype).float().numpy()


def power_of_two(amax, largest, up):
    table = torch.arange(255, dtype=torch.uint8).view(torch.float8_e8m0fnu).double().numpy()
    if amax == 0:
        return table[0]
    if up:  # the least one with which amax is not too large
        return table[np.argmax(table * largest >= amax)]
    end = 2.0 ** np.floor(np.log2(largest))  # OCP: amax is from `end` up to twice as large
    return table[np.nonzero(table * end <= amax)[0][-1]]


def mx_block(dtype, largest, up):
    def rounded(x, _):
        scale = np.float32(power_of_two(float(np.abs(x).max()), largest, up))
        return through(x / scale, dtype, largest) * scale

    return rounded


def nvfp4_block(x, tensor):
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    wanted = np.abs(x).max() / (np.float32(6) * tensor)
    scale = through(np.float32([wanted]), E4M3, 448)[0]
    if scale == 0:
        return np.zeros_like(x)
    units = x * (np.float32(1) / (scale * tensor))
    distance = np.abs(np.abs(units.astype(np.float64))[..., None] - magnitudes)
    distance[..., 1::2] += 1e-12  # a tie goes to the even code
    return (np.copysign(magnitudes[distance.argmin(-1)], units) * scale).astype(np.float32)


def hadamard(x):
    """Blocks of 16 rows: changes signs, and multiplies by the matrix (-1)^(bits of i and j) / 4."""
    signs = np.array([-1 if SIGNS >> i & 1 else 1 for i in range(16)])
    h = np.array([[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)]) / 4
    blocks = x.astype(np.float64).reshape(R // 16, 16, C)
    return np.einsum("ij,bjc->bic", h * signs, blocks).reshape(R, C).astype(np.float32)


def blocks(x, rows, cols, rounded, tensor=None):
    y = np.zeros_like(x)
    for r in range(0, R, rows):
        for c in range(0, C, cols):
            y[r : r + rows, c : c + cols] = rounded(x[r : r + rows, c : c + cols], tensor)
    return y


def bits(y):
    """The bits of y in bf16, which must hold it exactly."""
    b = torch.from_numpy(np.where(y == 0, np.float32(0), y)).to(torch.bfloat16)
    assert np.array_equal(b.float().numpy(), y)
    return b.view(torch.uint16).numpy().astype(np.uint64)


def entry(y, tensor=None):
    b = bits(y)
    weights = np.arange(b.size, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(1)
    with np.errstate(over="ignore"):
        total = int(np.sum(b.ravel() * weights, dtype=np.uint64))
    scale = 0 if tensor is None else int(np.float32(tensor).view(np.uint32))
    return {"sum": total, "row5": b[5].tolist(), "tensor_scale": scale}


x = matrix()
result = {}
for name, dtype, largest in (("mx_e4m3", E4M3, 448), ("mx_e5m2", E5M2, 57344)):
    result[f"{name} row"] = entry(blocks(x, 1, 32, mx_block(dtype, largest, True)))
    result[f"{name} column"] = entry(blocks(x, 32, 1, mx_block(dtype, largest, True)))
    result[f"{name} row, OCP"] = entry(blocks(x, 1, 32, mx_block(dtype, largest, False)))
for name, rows, cols, source in (
    ("row", 1, 16, x),
    ("column", 16, 1, x),
    ("square", 16, 16, x),
    ("column, Hadamard", 16, 1, hadamard(x)),
):
    scale = np.float32(np.abs(source).max()) / np.float32(6 * 448)
    result[f"nvfp4 {name}"] = entry(blocks(source, rows, cols, nvfp4_block, scale), scale)
(HERE / "blocks.json").write_text(json.dumps(result) + "\n")
