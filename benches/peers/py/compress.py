"""Compression kernels on COUNT f32, normal-distributed (a gradient). usage: compress.py torch|numpy|codecs COUNT REPS [THREADS]"""
import sys, time
import numpy as np
from common import emit, stats, cpu

what, n, reps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
th = int(sys.argv[4]) if len(sys.argv) > 4 else 1
x = (np.random.default_rng(1).standard_normal(n, dtype=np.float32) * np.float32(1e-2))


def bench(name, f, reps=reps, ratio=None, src=None):
    src = src or n * 4
    f()
    t, c0 = [], cpu()
    for _ in range(reps):
        t0 = time.perf_counter(); f(); t.append(time.perf_counter() - t0)
    s = stats(t)
    k = dict(group="compress", peer=name, threads=th, bytes=src, **s, GBps=src / s["median_s"] / 1e9, cpu_s_per_op=(cpu() - c0) / reps, ops=reps)
    if ratio is not None:
        k["ratio"] = ratio
    emit(**k)


if what == "torch":
    import torch
    torch.set_num_threads(th)
    v = "torch-" + torch.__version__ + ":"
    t = torch.from_numpy(x)
    h, q = torch.empty(n, dtype=torch.float16), torch.empty(n, dtype=torch.bfloat16)
    bench(v + "f32-to-f16", lambda: h.copy_(t), ratio=2.0)
    bench(v + "f16-to-f32", lambda: t.copy_(h), ratio=0.5, src=n * 2)
    t = torch.from_numpy(x)
    bench(v + "f32-to-bf16", lambda: q.copy_(t), ratio=2.0)
    bench(v + "int8-quantize_per_tensor", lambda: torch.quantize_per_tensor(t, 0.0004, 0, torch.qint8), ratio=4.0)
    def q8():
        s = t.abs().max() / 127
        return (t / s).round_().clamp_(-127, 127).to(torch.int8), s
    bench(v + "int8-eager-absmax", q8, ratio=4.0)
    bench(v + "absmax", lambda: t.abs().max())
    for p in (0.001, 0.01, 0.1):
        k = int(n * p)
        bench(v + f"topk-{p:g}(abs,topk,gather)", lambda: t[torch.topk(t.abs(), k, sorted=False)[1]], reps=max(3, reps // 2), ratio=1 / (2 * p))
    def dense():  # top-k, then a dense tensor again
        k = n // 10; v_, i = torch.topk(t.abs(), k); o = torch.zeros_like(t); o[i] = t[i]; return o
    bench(v + "topk-0.1-dense", dense, reps=max(3, reps // 3))
elif what == "numpy":
    v = "numpy-" + np.__version__ + ":"
    h = np.empty(n, np.float16)
    bench("limit-" + v + "copy", lambda b=np.empty_like(x): np.copyto(b, x))
    bench(v + "f32-to-f16", lambda: np.copyto(h, x, casting="same_kind"), ratio=2.0)
    bench(v + "f16-to-f32", lambda: np.copyto(x, h), ratio=0.5, src=n * 2)
    bench(v + "int8-absmax", lambda: np.rint(x * (127 / np.abs(x).max())).astype(np.int8), ratio=4.0)
    for p in (0.01, 0.1):
        k = int(n * p)
        bench(v + f"argpartition-{p:g}", lambda: x[np.argpartition(np.abs(x), n - k)[n - k:]], reps=max(3, reps // 3), ratio=1 / (2 * p))
        bench(v + f"partition-threshold-{p:g}", lambda: np.flatnonzero(np.abs(x) >= np.partition(np.abs(x), n - k)[n - k]), reps=max(3, reps // 3), ratio=1 / (2 * p))
else:
    k = n // 100
    i = np.sort(np.argpartition(np.abs(x), n - k)[n - k:]).astype(np.uint32)
    d = np.zeros_like(x); d[i] = x[i]
    sets = dict(f32=x.tobytes(), f16=x.astype(np.float16).tobytes(), bf16=(x.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
                int8=np.rint(x * (127 / np.abs(x).max())).astype(np.int8).tobytes(),
                **{"top1%-dense-f32": d.tobytes(), "top1%-idx32+f32": i.tobytes() + x[i].tobytes(),
                   "top1%-delta16+f16": np.diff(i, prepend=0).astype(np.uint16).tobytes() + x[i].astype(np.float16).tobytes()})
    C = {}
    try:
        import snappy; C["snappy"] = (snappy.compress, snappy.decompress)
    except ImportError:
        pass
    try:
        import lz4.frame, lz4.block; C["lz4-block-" + lz4.__version__] = (lambda b: lz4.block.compress(b), lz4.block.decompress)
    except ImportError:
        pass
    try:
        import zstandard
        for l in (-5, 1, 3):
            C[f"zstd-{zstandard.__version__}-l{l}"] = (zstandard.ZstdCompressor(level=l).compress, zstandard.ZstdDecompressor().decompress)
    except ImportError:
        pass
    import zlib
    C["zlib-l1"] = (lambda b: zlib.compress(b, 1), zlib.decompress)
    for c, (enc, dec) in C.items():
        for name, b in sets.items():
            if c.startswith("zlib") and name not in ("f32",):
                continue
            te, td = [], []
            r = 1 if c.startswith("zlib") else max(3, reps // 3)
            for _ in range(r):
                t0 = time.perf_counter(); z = enc(b); t1 = time.perf_counter(); y = dec(z); t2 = time.perf_counter()
                te.append(t1 - t0); td.append(t2 - t1)
            assert bytes(y) == b
            s = stats(te)
            emit(group="compress", peer=c, data=name, bytes=len(b), size=len(z), ratio=len(b) / len(z), **s,
                 GBps=len(b) / s["median_s"] / 1e9, dec_s=stats(td)["median_s"], dec_GBps=len(b) / stats(td)["median_s"] / 1e9, ops=r)
