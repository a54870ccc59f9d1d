"""Evaluates one model on the requested tasks.

python -m icl_jax.evaluation.run --model=FOLDER --tasks=sts,nq_open,glue --data=DATA
    [--output=FILE.json] [--tokenizer=FOLDER] [--evaluation.FIELD=value ...]

FOLDER is a run's workdir, WORKDIR/checkpoints/STEP, a Hugging Face folder or one of
sentence-transformers; it, the folder DATA and FILE.json may be URLs (gs://...). FILE.json gets the
results, FILE.md the same for people, and FILE/TASK/outputs.jsonl one line for each question, pair
or document, from which every number is computed. If it is killed, rerun the command
to continue.
"""

from absl import flags
from absl import logging as absl_logging

from icl_jax.cli import ConfigFields, Flag, command, several
from icl_jax.config import EvaluationConfig, MeshConfig
from icl_jax.config.tree import validate
from icl_jax.evaluation.tasks import TASKS


@command(
    Flag("model=FOLDER", "a run's workdir or a model folder", required=True),
    Flag("tasks=TASK,...", f"of {', '.join(TASKS)}", several()),
    Flag("data=FOLDER", "the folder with the data of the tasks"),
    Flag("tokenizer=FOLDER", "a tokenizer, if not the model's own"),
    Flag(
        "output=FILE.json",
        "the file that gets the results; by default WORKDIR/evaluation/STEP.json of a run, "
        "evaluation/NAME.json of other models",
    ),
    ConfigFields(
        "evaluation",
        EvaluationConfig,
        "any field of EvaluationConfig in icl_jax/config/evaluation.py",
    ),
)
def main(given: flags.FlagValues) -> None:
    """Opens the model and the data, then evaluates."""
    absl_logging.set_verbosity(absl_logging.ERROR)
    config: EvaluationConfig = given.evaluation
    config.tasks = given.tasks or config.tasks
    config.data = given.data or config.data
    config.tokenizer = given.tokenizer or config.tokenizer
    validate(config)
    from icl_jax.evaluation.evaluate import default_output, evaluate
    from icl_jax.sharding import make_mesh
    from icl_jax.training.model_at import model_at

    model = model_at(given.model, config.tokenizer, config.ema)
    output = given.output or default_output(model)
    evaluate(model, config, output, make_mesh(MeshConfig()))


if __name__ == "__main__":
    main()
