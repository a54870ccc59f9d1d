"""A TPU generation is one entry of the table: everything that lists chips then knows it."""

from types import SimpleNamespace

import jax
import pytest

from icl_jax.config import ConfigError
from icl_jax.studies.pods import cells, pods, tables
from icl_jax.tpu import chips
from icl_jax.tpu.chips import Chip
from icl_jax.tpu.compile import topology_devices
from icl_jax.training.hardware import peak_flops
from tests.studies.test_pods import numbers_of

MADE_UP = Chip(
    "TPU v9", 1e15, 2**36, 3e12, 6e11, 2e9,
    dimensions=2, ring=16, slices={8: "2x4", 16: "4x4"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def v9(monkeypatch):
    monkeypatch.setitem(chips.CHIPS, "v9", MADE_UP)


def test_its_peak_is_known():
    device = SimpleNamespace(platform="tpu", device_kind="TPU v9")
    assert peak_flops([device] * 4, "bfloat16") == 4e15


def test_it_can_be_compiled_for(monkeypatch):
    asked = {}

    def describe(topology, *, platform, **options):
        asked.update(topology=topology, **options)
        return SimpleNamespace(devices=["a chip"])

    monkeypatch.setattr("icl_jax.tpu.compile.topologies.get_topology_desc", describe)
    monkeypatch.setattr("icl_jax.tpu.compile.importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr("icl_jax.tpu.compile.os.environ", {})
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    assert topology_devices("v9:2x4") == ["a chip"]
    assert asked == {"topology": "v9:2x4", "chips_per_host_bounds": [2, 2, 1]}
    with pytest.raises(ConfigError, match="a NAME among v4, v5e, v5p, v6e, v9, got 'v8:2x4'"):
        topology_devices("v8:2x4")
    with pytest.raises(ConfigError, match="a slice of v9 has 2 dimensions"):
        topology_devices("v9:2x2x4")


def test_its_slices_are_cells_of_the_study(monkeypatch):
    monkeypatch.setattr(cells, "version", lambda name: f"{name} 1")
    names = [cell.name for cell in pods.all_cells()]
    assert "training/gpt_base_knn/v9-8" in names and "encode/MiniLM-L6/v9" in names
    held = cells.inputs_of(cells.Cell("search", "MiniLM-L6-exact", "v9"))
    assert held["topologies"] == ["v9:2x4", "v9:4x4"] and held["chip"]["flops"] == 1e15


def test_it_has_its_lines_in_every_table_of_the_page():
    def read(cell):
        return numbers_of("v9:4x4", sentences=9000, queries=1024, passes=6) if is_v9(cell) else None

    def is_v9(cell):
        return cell.place.partition("-")[0] == "v9"

    config = cells.read_config("gpt_base_knn")
    assert "\n| v9-16 | 16 | 32 |" in tables.training_table("gpt_base_knn", config, read)
    assert "\n| MiniLM-L6 | v9 |" in tables.sentences_table(read)
    assert "| exact | v9-16 |" in tables.join_table(read)
