"""TFRecord files of `tf.train.Example`, without TensorFlow, which takes 9 s to import.

A shard is one file of records, each framed as length, CRC of the length, payload, CRC of the
payload. Every read verifies both CRCs.
"""

from collections.abc import Iterable, Iterator, Mapping
import struct

from etils import epath
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
import google_crc32c
import numpy as np

from icl_jax.config import StageError
from icl_jax.files.remote import open_to_read
from icl_jax.files.step_folder import beside

HEADER_BYTES, FOOTER_BYTES = 12, 4  # uint64 length and its CRC; CRC of the payload
_DTYPES = {"int64_list": np.int64, "float_list": np.float32, "bytes_list": np.object_}
REPAIR = "copy this file again from its origin, or build it again"


class RecordError(StageError, ValueError):
    """Unusable records; the message names file, byte offset, expected, got and fix."""


def damage(
    path: epath.Path, offset: int, expected: str, got: str, fix: str = REPAIR
) -> RecordError:
    """The error for damage at byte `offset` of `path`."""
    return RecordError(f"{path} at byte {offset}: expected {expected}, got {got}; {fix}")


def write_records(path: epath.PathLike, records: Iterable[bytes]) -> None:
    """Writes a shard under a temporary name and renames it, so that no partial shard is ever read.

    Several hosts may make the same synthetic records at once: each writes its own file.
    """
    with beside(path) as partial, partial.open("wb") as file:
        for record in records:
            file.write(frame(record))


def frame(payload: bytes) -> bytes:
    """A payload as it is stored in a shard."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _masked_crc(length), payload, _masked_crc(payload)))


def unframe(path: epath.Path, offset: int, length: int, framed: bytes) -> bytes:
    """The payload of `length` bytes from the frame that was read at `offset`."""
    found = read_length(path, offset, framed[:HEADER_BYTES])
    if found != length:
        raise damage(
            path, offset, f"a record of {length} bytes as in the index", f"{found} bytes",
            f"the file has changed while in use; start again, without {path.name}.index.npz",
        )  # fmt: skip
    return read_payload(path, offset, length, framed[HEADER_BYTES:])


def scan_records(path: epath.Path) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of all records of a shard in order."""
    size, offset = path.stat().length, 0
    with open_to_read(path) as file:
        while offset < size:
            length = read_length(path, offset, file.read(HEADER_BYTES))
            left = size - offset - HEADER_BYTES  # a wrong length must not allocate gigabytes
            yield offset, read_payload(path, offset, length, file.read(min(length + 4, left)))
            offset += HEADER_BYTES + length + FOOTER_BYTES


def read_length(path: epath.Path, offset: int, header: bytes) -> int:
    """The payload length in a record's header."""
    if len(header) < HEADER_BYTES:
        got = f"the end of the file after {len(header)}"
        raise damage(path, offset, f"a record header of {HEADER_BYTES} bytes", got)
    if header[8:] != _masked_crc(header[:8]):
        if offset == 0 and header.startswith(b"\x1f\x8b"):
            raise damage(path, 0, "a TFRecord file", "a gzip file", "decompress it with gunzip")
        got = f"{header[8:].hex()} (length {int.from_bytes(header[:8], 'little')})"
        raise damage(path, offset, f"length CRC {_masked_crc(header[:8]).hex()}", got)
    return int.from_bytes(header[:8], "little")


def read_payload(path: epath.Path, offset: int, length: int, body: bytes) -> bytes:
    """The payload from the bytes that follow a header."""
    if len(body) < length + FOOTER_BYTES:
        expected = f"{length} bytes of payload and {FOOTER_BYTES} of CRC after the header"
        raise damage(path, offset, expected, f"the end of the file after {len(body)}")
    payload, footer = body[:length], body[length:]
    if footer != _masked_crc(payload):
        expected = f"payload CRC {_masked_crc(payload).hex()}"
        raise damage(path, offset, expected, footer.hex())
    return payload


def _masked_crc(data: bytes) -> bytes:
    # TFRecord rotates and shifts the CRC, because CRCs of data that contains CRCs are weak.
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def encode_example(features: Mapping[str, np.ndarray | list]) -> bytes:
    """The same features always give the same bytes; arrays are flattened, text becomes UTF-8."""
    example = _Example()
    for name, values in features.items():
        kind, values = _typed(name, values)
        getattr(example.features.feature[name], kind).value.extend(values)
        getattr(example.features.feature[name], kind).SetInParent()  # an empty list has a type too
    return example.SerializeToString(deterministic=True)


def decode_example(record: bytes) -> dict[str, np.ndarray]:
    """int64, float32 or object (bytes) arrays; raises ValueError if it is not an Example."""
    try:
        features = _Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(str(error)) from None
    decoded = {}
    for name, feature in features.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            decoded[name] = np.array(getattr(feature, kind).value, _DTYPES[kind])
    return decoded


def _typed(name: str, values: np.ndarray | list) -> tuple[str, list]:
    if isinstance(values, list | tuple) and any(isinstance(value, bytes | str) for value in values):
        array = np.empty(len(values), np.object_)  # numpy's own bytes type drops trailing zeros
        array[:] = values
    else:
        array = np.asarray(values).ravel()
    if array.dtype.kind in "iub":
        return "int64_list", array.tolist()
    if array.dtype.kind == "f" and (array.size or isinstance(values, np.ndarray)):
        return "float_list", array.tolist()
    if array.dtype.kind in "OSU" and all(isinstance(value, bytes | str) for value in array):
        return "bytes_list", [v.encode() if isinstance(v, str) else bytes(v) for v in array]
    raise ValueError(
        f"feature '{name}' must hold integers, floats, bytes or text (an empty one: an array with "
        f"a dtype), got {values!r}"
    )


def _example_class() -> type:
    """The message class, from descriptors in a separate pool, as TensorFlow may be loaded too."""
    file = descriptor_pb2.FileDescriptorProto(
        name="icl_jax/example.proto", package="tensorflow", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED

    def add(message, name, number, kind, label=one, of=None, **options):
        message.field.add(name=name, number=number, type=kind, label=label, type_name=of, **options)

    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        add(file.message_type.add(name=name), "value", 1, kind, many)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        of = ".tensorflow." + name.title().replace("_", "")
        add(feature, name, number, field.TYPE_MESSAGE, of=of, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, field.TYPE_MESSAGE, of=".tensorflow.Feature")
    of = ".tensorflow.Features.FeatureEntry"
    add(features, "feature", 1, field.TYPE_MESSAGE, many, of=of)
    example = file.message_type.add(name="Example")
    add(example, "features", 1, field.TYPE_MESSAGE, of=".tensorflow.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _example_class()
