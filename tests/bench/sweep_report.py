#!/usr/bin/env python3
"""The table at the end of a sweep that had --predict (sweep.py), once more for what it has written:

    tests/bench/sweep_report.py RESULTS
"""
import json
import statistics
import sys


def labels(layouts):
    """What tells each from the others: its options without those that all have."""
    def pairs(layout):
        found = []
        for word in layout.split()[1:]:
            if word.startswith("--") or not found:
                found.append(word)
            else:
                found[-1] += " " + word
        return found

    shared = set.intersection(*(set(pairs(layout)) for layout in layouts))
    return {layout: " ".join(pair for pair in pairs(layout) if pair not in shared) or layout
            for layout in layouts}


def report(path):
    """Predicted beside measured, in medians over the quieter rounds, the fastest by prediction
    first; and what the choice of this one would cost: the regret."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for record in map(json.loads, file):
            if record["status"] == "ok" and "predicted_ms" in record and "step_ms" in record:
                found.setdefault(record["layout"], []).append(record)
    if not found:
        return
    for layout, records in found.items():
        records.sort(key=lambda record: max(record["elsewhere"], record["calibrated_elsewhere"]))
        found[layout] = records[:(len(records) + 1) // 2]
    kinds = (("step_ms", "predicted_ms", 1), ("tensor_bytes", "predicted_tensor_bytes", 2**20),
             ("process_bytes", "predicted_process_bytes", 2**20))
    medians = {layout: [[statistics.median(record[name] for record in records) / unit
                         for name in (predicted, measured_)]
                        for measured_, predicted, unit in kinds]
               for layout, records in found.items()}
    order = sorted(medians, key=lambda layout: medians[layout][0][1])
    names = labels(list(found))
    print(f"\n{'':44}{'step, ms':>15}{'':>7}{'tensors, MiB':>17}{'process, MiB':>17}")
    print(f"{'fastest by prediction first':44}{'pred.':>8}{'meas.':>8}{'order':>6}"
          + f"{'pred.':>8}{'meas.':>9}" * 2)
    for layout in sorted(medians, key=lambda layout: medians[layout][0][0]):
        (ms, ms_), *bytes_ = medians[layout]
        print(f"{names[layout][:43]:44}{ms:8.1f}{ms_:8.1f}{order.index(layout) + 1:6}"
              + "".join(f"{a:8.1f}{b:9.1f}" for a, b in bytes_))
    for kind, (name, _, _) in enumerate(kinds):
        errors = [abs(of[kind][0] / of[kind][1] - 1) for of in medians.values() if of[kind][1]]
        if errors:
            print(f"{name}: off by {100 * statistics.mean(errors):.1f} % on average, "
                  f"{100 * max(errors):.1f} % at worst")
    busy = [max(record["elsewhere"], record["calibrated_elsewhere"])
            for records in found.values() for record in records]
    print(f"meanwhile other programs took {100 * statistics.mean(busy):.0f} % of the cores")
    times = [of[0] for of in medians.values()]
    regret = min(times)[1] / min(measured_ for _, measured_ in times) - 1
    print(f"regret: the fastest of {len(times)} by prediction takes {100 * regret:.1f} % longer "
          "than the fastest")


if __name__ == "__main__":
    report(sys.argv[1])
