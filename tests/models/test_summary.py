"""The parameter table says what is where, without taking the memory."""

from pathlib import Path
import subprocess
import sys

from jax.sharding import AbstractMesh

from icl_jax.config import GPTConfig
from icl_jax.models.summary import parameter_table
from icl_jax.sharding import MESH_AXES

CONFIG = GPTConfig(vocab_size=50, context_length=8, num_layers=3, embed_dim=12, num_heads=4)
MESH = AbstractMesh((1, 2, 4), MESH_AXES)


def lines(config):
    table = parameter_table(config, MESH).splitlines()
    return {line.split()[0]: " ".join(line.split()) for line in table}


def test_each_line_has_shape_sharding_count_and_bytes():
    table = lines(CONFIG)
    assert table["blocks.*.mlp.up.kernel"] == (
        "blocks.*.mlp.up.kernel 3 of 12 x 48 fsdp, tensor 1,728 6,912 864"
    )
    assert table["token_embedding.rows"] == "token_embedding.rows 50 x 12 -, fsdp 600 2,400 1,200"


def test_stacked_layers_show_their_axis():
    config = GPTConfig(
        vocab_size=50, context_length=8, num_layers=3, embed_dim=12, num_heads=4, scan_layers=True
    )
    assert "3 x 12 x 48 -, fsdp, tensor 1,728 6,912 864" in lines(config)["blocks.mlp.up.kernel"]
    assert lines(config)["total"] == lines(CONFIG)["total"]


def summary(*args):
    command = [sys.executable, "-m", "icl_jax.models.summary", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])


def test_the_command_prints_a_published_model():
    shown = summary("--preset=gpt2-medium", "--fsdp=8", "--tensor=2").stdout
    assert "data 1 x fsdp 8 x tensor 2" in shown
    assert "354,823,168" in shown.splitlines()[-1]


def test_an_unknown_preset_is_answered_with_the_known_ones():
    stopped = summary("--preset=gpt5")
    assert stopped.returncode != 0
    assert "unknown preset 'gpt5'; expected one of gpt2-base, gpt2-medium" in stopped.stderr
