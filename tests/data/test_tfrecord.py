"""Records survive the disk exactly, and damage is named by file and byte."""

from etils import epath
import numpy as np
import pytest

from icl_jax.data.shards import Shards
from icl_jax.data.tfrecord import (
    RecordError,
    decode_example,
    encode_example,
    frame,
    scan_records,
    write_records,
)
from tests.data.records import flip_bit, record

# Written by hand from example.proto: field number << 3 | 2, length, content.
TOKENS_1_2_300 = (
    bytes.fromhex("0a14 0a12 0a06") + b"tokens" + bytes.fromhex("1208 1a06 0a04 0102ac02")
)


def crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32).to_bytes(4, "little")


@pytest.fixture
def shard(tmp_path):
    """A shard of three records and the byte offsets of the records."""
    path = tmp_path / "a.tfrecord"
    records = [record(number, length) for number, length in ((2, 3), (3, 5), (5, 7))]
    write_records(path, records)
    offsets = np.cumsum([0] + [len(frame(r)) for r in records])
    return path, [int(offset) for offset in offsets]


def test_an_example_has_the_bytes_of_the_protobuf_specification():
    assert encode_example({"tokens": [1, 2, 300]}) == TOKENS_1_2_300
    np.testing.assert_array_equal(decode_example(TOKENS_1_2_300)["tokens"], [1, 2, 300])


def test_the_order_of_features_does_not_change_the_bytes():
    features = {name: [i] for i, name in enumerate("abcdefghijk")}
    assert encode_example(features) == encode_example(dict(reversed(features.items())))


def test_features_come_back_with_their_types():
    features = {
        "ints": np.array([-(2**63), 0, 2**63 - 1]),
        "floats": [0.5, -2.25],
        "text": ["é", b"\x00zero\x00"],
        "nothing": np.array([], np.int64),
    }
    decoded = decode_example(encode_example(features))
    assert decoded["ints"].dtype == np.int64 and decoded["floats"].dtype == np.float32
    assert decoded["ints"].tolist() == features["ints"].tolist()
    assert decoded["floats"].tolist() == features["floats"]
    assert decoded["text"].tolist() == ["é".encode(), b"\x00zero\x00"]
    assert decoded["nothing"].dtype == np.int64 and decoded["nothing"].size == 0


@pytest.mark.parametrize("values", [[], [None], [1j]])
def test_a_feature_of_no_known_type_is_refused(values):
    with pytest.raises(ValueError, match="feature 'x' must hold integers, floats, bytes or text"):
        encode_example({"x": values})


def test_frames_follow_the_tfrecord_format(tmp_path):
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720's check value
    write_records(tmp_path / "a", [b"abc", b""])
    expected = b""
    for payload in (b"abc", b""):
        length = len(payload).to_bytes(8, "little")
        expected += length + masked(length) + payload + masked(payload)
    assert (tmp_path / "a").read_bytes() == expected


def test_files_of_another_writer_are_read(tmp_path):
    import tensorboardX

    with tensorboardX.SummaryWriter(str(tmp_path)) as writer:
        writer.add_text("tag", "a text from tensorboardX")
    (path,) = epath.Path(tmp_path).glob("events*")
    payloads = [payload for _, payload in scan_records(path)]
    assert b"brain.Event:2" in payloads[0]
    assert any(b"a text from tensorboardX" in payload for payload in payloads)


def test_tensorflow_reads_our_records_and_we_read_its(shard):
    tf = pytest.importorskip("tensorflow")
    path, _ = shard
    payloads = [payload.numpy() for payload in tf.data.TFRecordDataset(str(path))]
    wanted = {"tokens": tf.io.VarLenFeature(tf.int64)}
    tokens = [tf.io.parse_single_example(p, wanted)["tokens"].values.numpy() for p in payloads]
    assert [t.tolist() for t in tokens] == [[2] * 3, [3] * 5, [5] * 7]
    theirs = path.parent / "theirs.tfrecord"
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for payload in payloads:
            writer.write(tf.train.Example.FromString(payload).SerializeToString())
    assert Shards([theirs])[2]["tokens"].tolist() == [5] * 7


def test_a_shard_appears_only_when_it_is_complete(tmp_path):
    def records():
        yield record(1, 3)
        assert not (tmp_path / "a.tfrecord").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(tmp_path / "a.tfrecord", records())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "position, expected",
    [
        (0, "length CRC"),
        (7, "length CRC"),
        (8, "length CRC"),
        (13, "payload CRC"),
        (-5, "payload CRC"),
        (-1, "payload CRC"),
    ],
)
@pytest.mark.parametrize("opened", [False, True])
def test_a_flipped_bit_is_named_by_file_and_byte(shard, position, expected, opened):
    path, offsets = shard
    shards = Shards([path]) if opened else None
    flip_bit(path, offsets[1] + position if position >= 0 else offsets[2] + position)
    with pytest.raises(RecordError, match=f"a.tfrecord at byte {offsets[1]}: expected {expected}"):
        (shards or Shards([path]))[1]
    if opened:
        assert shards[2]["tokens"].tolist() == [5] * 7


@pytest.mark.parametrize("opened", [False, True])
def test_a_truncated_file_is_noticed_wherever_it_ends(shard, opened):
    path, offsets = shard
    data = path.read_bytes()
    shards = Shards([path]) if opened else None
    for end in range(offsets[1] + 1, offsets[2]):
        path.write_bytes(data[:end])
        message = rf"a.tfrecord at byte {offsets[1]}: .* the end of the file after \d+; copy this"
        with pytest.raises(RecordError, match=message):
            (shards or Shards([path]))[1]


def test_a_length_that_no_file_can_have_allocates_nothing(tmp_path):
    length = (2**62).to_bytes(8, "little")
    (tmp_path / "a.tfrecord").write_bytes(length + masked(length) + b"abc")
    with pytest.raises(RecordError, match="the end of the file after 3"):
        Shards([tmp_path / "a.tfrecord"])


def test_a_gzip_file_is_called_so(tmp_path):
    import gzip

    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(frame(record(1, 3))))
    with pytest.raises(RecordError, match="byte 0: expected a TFRecord file, got a gzip file"):
        Shards([tmp_path / "a.tfrecord"])
