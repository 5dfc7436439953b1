#!/usr/bin/env python3
"""Makes tests/reference/formats.json: how narrow floating-point formats round, for
common/core/float_formats.h.

    python3 tests/reference/make_formats_reference.py   # numpy 2.4, ml_dtypes 0.5; seconds

Of each format all codes are decoded, and these are rounded: for each finite number c >= 0 the
number itself, the point halfway to the next number, and the fp32 numbers on either side of that
point; each with both signs. (After the largest number the next one is what it would be if the
exponent went on.) NumPy's fp16 and ml_dtypes' types do it. e5m6, which they lack, and all others
once more, are rounded by a search in the table of the format's numbers: both must agree. Of e8m0,
which has only powers of two, all codes are decoded.

formats.json holds checksums of the results, sum of result[i] * (2654435761 i + 1) modulo 2^64, and
a few rows to look at. A NaN has many codes: all of them become 2^(bits - 1) - 1.
"""

import json
import pathlib

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).parent
# name: exponent bits, mantissa bits, which of the last exponent's codes hold numbers, type
FORMATS = {
    "bf16": (8, 7, "none", ml_dtypes.bfloat16),
    "fp16": (5, 10, "none", np.float16),
    "e5m6": (5, 6, "none", None),
    "e5m2": (5, 2, "none", ml_dtypes.float8_e5m2),
    "e4m3": (4, 3, "all but one", ml_dtypes.float8_e4m3fn),
    "e2m1": (2, 1, "all", ml_dtypes.float4_e2m1fn),
}
SHOWN = [0.1, 1 / 3, 3.14159274, 1e-3, 6e-8, 240.0, 464.0, 465.0, 65504.0, 65520.0, 1e30]


def checksum(values):
    values = np.asarray(values).astype(np.uint64)
    with np.errstate(over="ignore"):
        weights = np.arange(len(values), dtype=np.uint64) * np.uint64(2654435761) + np.uint64(1)
        return int(np.sum(values * weights, dtype=np.uint64))


def table(exponent, mantissa, last):
    """All numbers >= 0 in the order of their codes, in float64, and the one after the largest."""
    bias = 2 ** (exponent - 1) - 1
    codes = np.arange(2 ** (exponent + mantissa) + 1)
    field, m = codes >> mantissa, codes & (2**mantissa - 1)
    normal = np.ldexp(1 + m / 2**mantissa, field - bias)
    numbers = np.where(field == 0, np.ldexp(m / 2**mantissa, 1 - bias), normal)
    missing = {"none": 2**mantissa, "all but one": 1, "all": 0}[last]
    count = 2 ** (exponent + mantissa) - missing
    return numbers[: count + 1]


def by_search(x, numbers, bits, last):
    """Codes of x (float32): nearest, of two the even; too large: infinity, NaN, or the largest."""
    nan, infinity = 2 ** (bits - 1) - 1, len(numbers) - 1
    magnitude = np.abs(x.astype(np.float64))
    above = np.clip(np.searchsorted(numbers, magnitude), 1, infinity)
    low, high = numbers[above - 1], numbers[above]
    up = (magnitude - low > high - magnitude) | (
        (magnitude - low == high - magnitude) & (above % 2 == 0)
    )
    code = np.where(up, above, above - 1)
    code = np.where(magnitude >= high, above, code)
    code = np.where(magnitude == low, above - 1, code)
    if last == "all but one":
        return np.where(code == infinity, nan, code | (np.signbit(x) << (bits - 1)))
    if last == "all":
        code = np.minimum(code, nan)
    return code | (np.signbit(x) << (bits - 1))


def by_type(x, dtype, bits):
    with np.errstate(over="ignore"):
        rounded = x.astype(dtype)
    code = rounded.view(f"uint{max(bits, 8)}").astype(np.int64)
    return np.where(np.isnan(rounded.astype(np.float32)), 2 ** (bits - 1) - 1, code)


def halfway_cases(numbers):
    low, high = numbers[:-1], numbers[1:]
    middle = ((low + high) / 2).astype(np.float32)
    assert np.all(middle.astype(np.float64) == (low + high) / 2)
    below, above = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
    x = np.stack([low.astype(np.float32), below, middle, above], axis=1).ravel()
    return np.stack([x, -x], axis=1).ravel()


def decoded(exponent, mantissa, last, numbers):
    """fp32 bits of all codes."""
    half = 2 ** (exponent + mantissa)
    positive = np.full(half, np.nan)
    positive[: len(numbers) - 1] = numbers[:-1]
    if last == "none":
        positive[len(numbers) - 1] = np.inf
    values = np.concatenate([positive, -positive]).astype(np.float32)
    return np.where(np.isnan(values), 0x7FFFFFFF, values.view(np.uint32).astype(np.int64))


result = {}
for name, (exponent, mantissa, last, dtype) in FORMATS.items():
    bits = 1 + exponent + mantissa
    numbers = table(exponent, mantissa, last)
    x, shown = halfway_cases(numbers), np.array(SHOWN, dtype=np.float32)
    codes = by_search(x, numbers, bits, last)
    values = decoded(exponent, mantissa, last, numbers)
    if dtype:
        assert np.array_equal(codes, by_type(x, dtype, bits)), name
        theirs = np.arange(2**bits, dtype=f"uint{max(bits, 8)}").view(dtype).astype(np.float32)
        theirs = np.where(np.isnan(theirs), 0x7FFFFFFF, theirs.view(np.uint32).astype(np.int64))
        assert np.array_equal(values, theirs), name
    result[name] = {
        "decoded": checksum(values),
        "cases": len(x),
        "encoded": checksum(codes),
        "codes": by_search(shown, numbers, bits, last).tolist(),
    }
powers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
powers = np.where(np.isnan(powers), 0x7FFFFFFF, powers.view(np.uint32).astype(np.int64))
result["e8m0"] = {"decoded": checksum(powers)}
result["shown"] = [float(v) for v in np.array(SHOWN, dtype=np.float32)]
(HERE / "formats.json").write_text(json.dumps(result, indent=1) + "\n")
