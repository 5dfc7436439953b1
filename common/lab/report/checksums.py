#!/usr/bin/env python3
"""Compares the checksums of two runs: names the first step and tensor in which they differ.

    common/lab/report/checksums.py ONE.json OTHER.json

Both files are those of --checksums --json, of the same program on the same number of ranks. In each
step it compares what a rank read, then what it computed, then what it holds, as checksums.h lists
them, so the first difference is the earliest cause that the checksums show. Ends with 1 if the runs
differ, and with 2 if they cannot be compared.
"""
import json
import sys

KINDS = ["data", "own_gradients", "gradients", "weights"]


def read(path):
    """{(step, rank): line}"""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    found = {(c["step"], c["rank"]): c for c in (line.get("checksums") for line in lines) if c}
    if not found:
        raise ValueError(f"{path} has no checksums: run with --checksums --json")
    return found


def differences(one, other):
    """Yields (step, kind, name, rank, one's value, the other's), the earliest first."""
    for step in sorted({step for step, _ in one} & {step for step, _ in other}):
        ranks = [rank for at, rank in sorted(one) if at == step and (step, rank) in other]
        for kind in KINDS:
            for rank in ranks:
                mine, theirs = (run[step, rank].get(kind, {}) for run in (one, other))
                for name in [*mine, *(name for name in theirs if name not in mine)]:
                    if mine.get(name) != theirs.get(name):
                        yield step, kind, name, rank, mine.get(name), theirs.get(name)


def described(value):
    if value is None:
        return "nothing"
    return f"norm {value['norm']!r}" if "norm" in value else "a batch"


def main(paths):
    one, other = map(read, paths)
    if {rank for _, rank in one} != {rank for _, rank in other}:
        raise ValueError("the runs have different numbers of ranks")
    found = list(differences(one, other))
    if not found:
        print(f"equal: {len(one)} ranks' steps")
        return 0
    step, kind = found[0][:2]
    print(f"first difference: step {step}, {kind}")
    first = [d for d in found if d[:2] == (step, kind)]
    for _, _, name, rank, mine, theirs in first[:12]:
        words = f"{name}: {described(mine)}, and {described(theirs)}"
        if kind == "data" and mine and theirs:
            words = f"micro-batch {name}: other " + ", ".join(
                key for key in mine if mine[key] != theirs[key])
        print(f"  rank {rank}  {words}")
    if len(first) > 12:
        print(f"  ... and {len(first) - 12} more in this step")
    return 1


if __name__ == "__main__":
    try:
        if len(sys.argv) != 3:
            raise ValueError(__doc__)
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
