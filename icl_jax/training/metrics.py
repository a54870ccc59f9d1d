"""How a run is doing: a live line, `metrics.jsonl`, and TensorBoard event files.

The numbers of a step are fetched after the next step has started, so reading them takes no time.
"""

import importlib
import json
import math
from pathlib import Path
import sys
import time
import types

from etils import epath
import jax
from tqdm import tqdm

from icl_jax.config import ExperimentConfig, StageError, head_dim, mlp_dim
from icl_jax.files.growing import LiveFolder
from icl_jax.training.goodput import Goodput
from icl_jax.training.hardware import peak_flops

# tensorboardX imports these if they are installed, which takes seconds; scalars need none of them.
_NOT_NEEDED = ("torch", "google.cloud.storage", "boto3")


def flops_per_token(config: ExperimentConfig) -> float:
    """Forward and backward, per token: 6 per weight of a matrix product, and the attention.

    Attention counts all pairs of a row, 12 L T H K, as is usual (Chowdhery et al. 2022, appendix
    B); the head counts only for tokens that are predicted.
    """
    model = config.model
    attention_dim = model.num_heads * head_dim(model)
    block = 4 * model.embed_dim * attention_dim + 2 * model.embed_dim * mlp_dim(model)
    block += (getattr(model, "mlp_layers", 1) - 1) * mlp_dim(model) ** 2
    block += getattr(model, "gated", False) * model.embed_dim * mlp_dim(model)
    masked = config.training.objective == "masked_token"
    head = model.vocab_size * model.embed_dim * (config.training.mask_share if masked else 1.0)
    pairs = 2 * config.sequence_length * attention_dim
    return 6 * (model.num_layers * (block + pairs) + head)


class MetricsLog:
    """Receives the metrics of each step and writes those of every `log_every`-th."""

    def __init__(
        self,
        config: ExperimentConfig,
        workdir: epath.Path,
        first: int,
        steps: int,
        goodput: Goodput,
    ):
        self._every, self._steps = config.training.log_every, steps
        self.last_loss, self._goodput = math.nan, goodput
        self._pending: tuple[int, dict] | None = None
        self._flops = flops_per_token(config)
        self._peak = peak_flops(jax.devices(), config.model.dtype)
        self._writer = jax.process_index() == 0
        if self._writer:
            self._place = LiveFolder(workdir)
            self._file = _reopen(self._place.fetch("metrics.jsonl"), first)
            board = str(self._place.path / "tensorboard")
            self._board = open_board(board, first + 1)
        self._terminal = sys.stderr.isatty()
        self._line = tqdm(
            total=steps, initial=first, unit="step", desc="train", disable=not self._writer,
            mininterval=0.1 if self._terminal else 10, dynamic_ncols=True,
        )  # fmt: skip
        self._restart_clock()

    def push(self, step: int, metrics: dict[str, jax.Array], waited: float) -> None:
        """Notes a step that just started, after `waited` seconds for input; writes the previous."""
        if self._pending is None or self._pending[1]["loss"].is_ready():  # else it hid the wait
            self._waited += waited  # before the previous step is written: it belongs to its time
            self._goodput.add("input_wait", waited)
        self.flush()
        self._pending = (step, metrics)

    def flush(self) -> None:
        """Waits for the last step; stops the run if its loss or gradient is not finite."""
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        order = ("loss", "learning_rate", "grad_norm", "tokens")
        values = {name: metrics[name].item() for name in order}
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):
                raise StageError(
                    f"{name} is {values[name]} at step {step}; earlier checkpoints are kept. Lower "
                    "optimizer.learning_rate or look at the batch of that step"
                )
        self.last_loss = values["loss"]
        self._tokens += values.pop("tokens")
        self._line.update(step - self._line.n)
        if step % self._every == 0 or step == self._steps:
            self._write(step, values)

    def keep(self) -> None:
        """Makes sure that no line older than a checkpoint can be lost."""
        if self._writer:
            self._board.flush()
            self._place.keep()

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._line.close()
        if self._writer:
            self._file.close()
            self._board.close()
            self._place.close()

    def _write(self, step: int, values: dict[str, float]) -> None:
        seconds = time.perf_counter() - self._start
        values["tokens_per_second"] = self._tokens / seconds
        if self._peak:
            values["flop_utilisation"] = values["tokens_per_second"] * self._flops / self._peak
        values["input_wait_share"] = self._waited / seconds
        values |= self._goodput.numbers()
        self._restart_clock()
        if not self._writer:
            return
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(f"train/{name}", value, step)
        self._line.set_postfix_str(
            f"loss {values['loss']:.4f}, {values['tokens_per_second']:,.0f} tokens/s",
            refresh=self._terminal,
        )

    def _restart_clock(self) -> None:
        self._start, self._tokens, self._waited = time.perf_counter(), 0, 0.0


def _reopen(path: Path, last_step: int):
    """The file without the lines of steps that will be repeated and without a broken line."""
    kept = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            if json.loads(line)["step"] <= last_step:
                kept.append(line + "\n")
        except ValueError:  # the run was killed while writing this
            break
    partial = path.parent / f"{path.name}.partial"
    partial.write_text("".join(kept))
    partial.replace(path)
    return path.open("a")


def open_board(folder: str, first_step: int):
    """A writer of TensorBoard scalars; hides what an earlier run wrote from `first_step` on."""
    return _tensorboard().SummaryWriter(folder, purge_step=first_step)


def _tensorboard() -> types.ModuleType:
    hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None makes an import fail
    try:
        return importlib.import_module("tensorboardX")
    finally:
        for name in hidden:
            del sys.modules[name]
