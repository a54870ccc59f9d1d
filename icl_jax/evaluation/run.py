"""Evaluates one model on the tasks that are asked for.

Run: python -m icl_jax.evaluation.run --model=FOLDER --tasks=sts,nq_open,glue --data=DATA
         [--output=FILE.json] [--tokenizer=FOLDER] [--evaluation.FIELD=value ...]

FOLDER is a run's workdir, WORKDIR/checkpoints/STEP, a Hugging Face folder or one of
sentence-transformers; it, the folder DATA and FILE.json may be URLs (gs://...). FILE.json gets the
results, FILE.md the same for people, and FILE/TASK/outputs.jsonl one line for each question, pair
or document, from which every number is computed. If it is killed, the same command continues.
"""

from collections.abc import Sequence
import sys

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from icl_jax.cli import explain_overrides, parse_flags, stop
from icl_jax.config import ConfigError, EvaluationConfig, MeshConfig, StageError
from icl_jax.config.tree import validate
from icl_jax.evaluation.tasks import TASKS


def define_flags() -> None:
    """The flags of this command; a wrong --evaluation.FIELD stops here already."""
    flags.DEFINE_string("model", None, "What is evaluated.")
    flags.DEFINE_list("tasks", None, f"Of {', '.join(TASKS)}.")
    flags.DEFINE_string("data", None, "The folder with the data of the tasks.")
    flags.DEFINE_string("tokenizer", None, "A folder, where it is not the model's own.")
    flags.DEFINE_string(
        "output",
        None,
        "The file that gets the results; by default WORKDIR/evaluation/STEP.json of a run, "
        "evaluation/NAME.json of other models.",
    )
    if problem := explain_overrides(sys.argv, "evaluation", EvaluationConfig()):
        stop(problem)
    config_flags.DEFINE_config_dataclass(
        "evaluation",
        EvaluationConfig(),
        "Every field of EvaluationConfig in icl_jax/config/evaluation.py.",
    )


def main(argv: Sequence[str]) -> None:
    """Opens the model and the data, then evaluates."""
    absl_logging.set_verbosity(absl_logging.ERROR)
    if len(argv) > 1:
        stop(f"unexpected argument '{argv[1]}'; flags begin with --")
    given = flags.FLAGS
    if given.model is None:
        stop("expected --model=FOLDER, a run's workdir or a model folder")
    config: EvaluationConfig = given.evaluation
    config.tasks = tuple(given.tasks or config.tasks)
    config.data = given.data or config.data
    config.tokenizer = given.tokenizer or config.tokenizer
    try:
        validate(config)
        from icl_jax.evaluation.evaluate import default_output, evaluate
        from icl_jax.sharding import make_mesh
        from icl_jax.training.model_at import model_at

        model = model_at(given.model, config.tokenizer, config.ema)
        output = given.output or default_output(model)
        evaluate(model, config, output, make_mesh(MeshConfig()))
    except (ConfigError, StageError) as error:
        stop(str(error))
    except KeyboardInterrupt:
        print("\nstopped; the same command continues from what was finished", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=lambda argv: parse_flags(argv, "evaluation", EvaluationConfig()))
