"""Runs the stages of an experiment.

python -m icl_jax.main --config=configs/NAME.py [--config.FIELD=value ...] --workdir=DIR
"""

from collections.abc import Callable, Sequence
import logging
from pathlib import Path
import runpy
import sys

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from icl_jax.config import ConfigError, ExperimentConfig, StageError
from icl_jax.flag_errors import explain_overrides, stop


def _check(config: ExperimentConfig, workdir) -> None:
    from icl_jax.models.check import check

    check(config, workdir)


def _design(config: ExperimentConfig, workdir) -> None:
    from icl_jax.example_design.build import design

    design(config, workdir)


def _check_before_design(config: ExperimentConfig, workdir) -> None:
    from icl_jax.training.checks import check_before_design

    check_before_design(config, workdir)


def _train(config: ExperimentConfig, workdir) -> None:
    from icl_jax.training.train import train

    train(config, workdir)


def _check_evaluation(config: ExperimentConfig) -> None:
    from icl_jax.evaluation.evaluate import check_before_design

    check_before_design(config)


def _check_before_training(config: ExperimentConfig, workdir) -> None:
    from icl_jax.evaluation.evaluate import check_before_training

    check_before_training(config, workdir)


def _evaluate(config: ExperimentConfig, workdir) -> None:
    from icl_jax.evaluation.evaluate import evaluate_run

    evaluate_run(config, workdir)


# In the order in which they run.
STAGES: dict[str, Callable] = {
    "check": _check, "design": _design, "train": _train, "evaluate": _evaluate
}  # fmt: skip

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A file of configs/; --config.FIELD=value overrides any of its fields."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder that the stages write to.")
_STAGES = flags.DEFINE_list(
    "stages",
    None,
    f"Which to run of {', '.join(STAGES)}; by default train, before it design where the config "
    "names a corpus (design.corpus.files), after it evaluate where it names tasks "
    "(evaluation.tasks).",
)


def main(argv: Sequence[str]) -> None:
    """Checks everything that can be checked, then runs the stages."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # not each backend that is not there
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)  # not each file of a checkpoint
    if len(argv) > 1:
        stop(f"unexpected argument '{argv[1]}'; flags begin with --")
    config, stages = _CONFIG.value, _STAGES.value
    if config is None:
        available = ", ".join(sorted(str(path) for path in Path("configs").glob("*.py")))
        stop(f"expected --config=FILE; there are: {available or 'no files in configs/'}")
    if not isinstance(config, ExperimentConfig):
        stop(f"get_config() must return an ExperimentConfig, got {type(config).__name__}")
    if stages is None:
        before = ["design"] if config.design.corpus.files else []
        stages = [*before, "train", *(["evaluate"] if config.evaluation.tasks else [])]
    if _WORKDIR.value is None:
        stop("expected --workdir=DIR, the folder to write to")
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown or not stages:
        stop(f"unknown stage '{', '.join(unknown)}' in --stages; there are: {', '.join(STAGES)}")
    try:
        from etils import epath

        workdir = epath.Path(_WORKDIR.value)
        if "design" in stages and "train" in stages:
            _check_before_design(config, workdir)  # not after hours of designing
        if "evaluate" in stages:
            _check_evaluation(config)
        for name in STAGES:
            if name == "train" and {"train", "evaluate"} <= set(stages):
                _check_before_training(config, workdir)
            if name in stages:
                STAGES[name](config, workdir)
    except (ConfigError, StageError) as error:
        stop(str(error))
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from what was finished", file=sys.stderr)
        sys.exit(130)


def _parse(argv: Sequence[str]) -> list[str]:
    """Flags from the command line; a wrong one stops the run in one line."""
    pairs = zip(argv, [*argv[1:], ""])
    files = [
        following if arg == "--config" else arg.partition("=")[2]
        for arg, following in pairs
        if arg == "--config" or arg.startswith("--config=")
    ]
    file, _, argument = files[-1].partition(":") if files else (None, "", "")
    if file is not None and not Path(file).is_file():
        stop(f"config file '{file}' does not exist")
    try:
        return flags.FLAGS(argv)
    except (flags.Error, KeyError, TypeError, ValueError) as error:
        if file is not None and any(arg.startswith("--config.") for arg in argv):
            config = runpy.run_path(file)["get_config"](*filter(None, [argument]))
            stop(explain_overrides(argv, "config", config) or str(error))
        if isinstance(error, flags.Error):
            stop(str(error))
        raise  # from inside the config file: its author needs the place


if __name__ == "__main__":
    app.run(main, flags_parser=_parse)
