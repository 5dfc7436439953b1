"""Times a call on a GPU for the PyTorch peers, as common/lab/report/median_seconds.h does."""
import statistics
import time

import torch


def milliseconds(work, inputs=((),)):
    """The median over batches of back-to-back calls, after a quarter of a second of warm-up, in
    which the GPU settles on the clock for this work's power. Calls take the inputs in turn, so that
    none finds its inputs in L2."""
    def batch(launches):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(launches):
            work(*inputs[i % len(inputs)])
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / launches * 1e3

    batch(4)  # compiles, warms up
    first = batch(4)
    batch(min(max(int(250 / first), 4), 5000))
    launches = min(max(int(30 / first), 4), 500)
    return statistics.median(batch(launches) for _ in range(5))


def waited_for_milliseconds(work, meet=lambda: None):
    """The median of five calls, each waited for, after two that do not count: as short scripts time
    it. `meet` comes before each call, for several ranks."""
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        meet()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[2:])


def rested_milliseconds(work):
    """The same after a rest: the GPU has not yet come to its power limit then."""
    torch.cuda.synchronize()
    time.sleep(1.5)
    return waited_for_milliseconds(work)
