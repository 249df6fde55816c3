"""Serializers of a gradient of COUNT f32 in Python. usage: serial.py COUNT REPS [SLOWREPS]
The rows of a list go through a Python list, as `msgpack.packb(grads.tolist())` does; tolist() is part of the time."""
import io, json, pickle, sys, time
import fastavro, google.protobuf, msgpack
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from common import emit, stats

n, reps = int(sys.argv[1]), int(sys.argv[2])
slow = int(sys.argv[3]) if len(sys.argv) > 3 else 1
x = (np.random.default_rng(1).standard_normal(n) * 1e-2).astype(np.float32)


def bench(name, enc, dec, reps):
    """Medians of REPS; one before them is not measured, if there are several."""
    te, td, tt, used, size, ok = [], [], [], 0.0, 0, True
    for k in range(reps + (reps > 1)):
        c0 = time.process_time(); t0 = time.perf_counter(); b = enc(); t1 = time.perf_counter(); y = dec(b); t2 = time.perf_counter()
        if k or reps == 1:
            te.append(t1 - t0); td.append(t2 - t1); tt.append(t2 - t0); used += time.process_time() - c0
        size = memoryview(b).nbytes if not isinstance(b, str) else len(b); del b
        ok = ok and len(y) == n and bool(np.array_equal(np.asarray(y, np.float32), x)); del y
    emit(group="serial", peer=name, n=1, bytes=n * 4, size=size, encode_s=stats(te)["median_s"], decode_s=stats(td)["median_s"], **stats(tt),
         cpu_s_per_op=used / reps, ops=reps, ok=ok)


def messages():
    """message Blob { bytes v = 1; } and message Floats { repeated float v = 1; }, made here so that no compiler is needed."""
    F = descriptor_pb2.FieldDescriptorProto
    f = descriptor_pb2.FileDescriptorProto(name="peer.proto", package="peer", syntax="proto3")
    f.message_type.add(name="Blob").field.add(name="v", number=1, type=F.TYPE_BYTES, label=F.LABEL_OPTIONAL)
    f.message_type.add(name="Floats").field.add(name="v", number=1, type=F.TYPE_FLOAT, label=F.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(f)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName("peer." + m)) for m in ("Blob", "Floats")]


def avro(schema, value):
    f = io.BytesIO()
    fastavro.schemaless_writer(f, schema, value)
    return f.getvalue()


arr = lambda b: np.frombuffer(b, np.float32)
unavro = lambda schema, b: fastavro.schemaless_reader(io.BytesIO(b), schema)
Blob, Floats = messages()
floats, raw = fastavro.parse_schema({"type": "array", "items": "float"}), fastavro.parse_schema("bytes")
js, pk, mp, pb, av = "json", "pickle-5", "msgpack-" + ".".join(map(str, msgpack.version)), "protobuf-" + google.protobuf.__version__, "avro-" + fastavro.__version__
bench("limit-numpy-copy-twice", lambda: x.copy(), lambda b: b.copy(), reps)
bench(pk + " of an array", lambda: pickle.dumps(x, 5), pickle.loads, reps)
bench(mp + " of bytes", lambda: msgpack.packb(x.tobytes()), lambda b: arr(msgpack.unpackb(b, max_bin_len=len(b))), reps)
bench(pb + " of bytes", lambda: Blob(v=x.tobytes()).SerializeToString(), lambda b: arr(Blob.FromString(b).v), reps)
bench(av + " of bytes", lambda: avro(raw, x.tobytes()), lambda b: arr(unavro(raw, b)), reps)
bench(pk + " of a list", lambda: pickle.dumps(x.tolist(), 5), pickle.loads, slow)
bench(mp + " of a list", lambda: msgpack.packb(x.tolist()), lambda b: msgpack.unpackb(b, max_array_len=n), slow)
bench(pb + " of floats", lambda: Floats(v=x).SerializeToString(), lambda b: np.array(Floats.FromString(b).v, np.float32), slow)
bench(av + " of a list", lambda: avro(floats, x.tolist()), lambda b: unavro(floats, b), slow)
bench(js + " of a list", lambda: json.dumps(x.tolist()), json.loads, slow)
