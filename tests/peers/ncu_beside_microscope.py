"""Compares Nsight Compute's counters with the microscope's, for kernels of 07_kernels at the
microscope's sizes.

On any machine:  build/cpu/07_kernels --json seen.json
On a GPU:        python3 tests/peers/ncu_beside_microscope.py build/cuda/07_kernels seen.json \\
                     [KERNEL...]
Prints for each kernel the requests and sectors of global loads and stores and the wavefronts of
shared memory: one number if both count the same, else "ncu / microscope". The machine code shows
the reason for a difference: cuobjdump -sass -fun NAME build/cuda/07_kernels.
"""
import csv
import json
import subprocess
import sys

# Our names (--json) and ncu's; --query-metrics explains them.
METRICS = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}
KERNELS = ["vector_add", "vector_add_float4", "swiglu", "copy_strided", "transpose_naive",
           "transpose_shared", "transpose_padded", "transpose_float4", "sum_shuffle",
           "product_naive", "product_coalesced", "product_shared"]


def counters(program, kernel, size):
    """Sums over the launches of one run; the operations that prepare it are not counted."""
    command = ["ncu", "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS.values()),
               "--kernel-name-base", "demangled", "--kernel-name", "regex:ultrascale::kernels",
               program, "--check", "--kernel", kernel, "--size", ",".join(map(str, size))]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    begin = text.index('"ID"')
    sums = dict.fromkeys(METRICS.values(), 0.0)
    for row in csv.DictReader(text[begin:].splitlines()):
        if row["Metric Name"] in sums:
            sums[row["Metric Name"]] += float(row["Metric Value"].replace(",", ""))
    return {ours: sums[theirs] for ours, theirs in METRICS.items()}


def table_row(name, cells):
    widths = (10, 10, 10, 10, 16, 16)
    return f"{name:<28}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))


def main():
    program, seen, *kernels = sys.argv[1:]
    print(f"{'':<28}{'global loads:':>20}{'global stores:':>20}"
          f"{'shared loads:':>16}{'shared stores:':>16}")
    print(table_row("", ["requests", "sectors", "requests", "sectors", "wavefronts", "wavefronts"]))
    lines = [json.loads(line) for line in open(seen)]
    for row in (line["row"] for line in lines if "row" in line):
        if row["kernel"] not in (kernels or KERNELS):
            continue
        real = counters(program, row["kernel"], row["size"])
        cells = [f"{real[name]:.0f}" if real[name] == row[name]
                 else f"{real[name]:.0f} / {row[name]:.0f}" for name in METRICS]
        print(table_row(f"{row['kernel']} {','.join(map(str, row['size']))}", cells), flush=True)


if __name__ == "__main__":
    main()
