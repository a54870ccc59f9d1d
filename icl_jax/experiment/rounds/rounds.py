"""Self-improving rounds: each trains, then its model finds the neighbours for the next.

Round 1 is the experiment itself, in WORKDIR; every later one is in WORKDIR/rounds/NUMBER. There
the model of the previous round's reference arm searches the same sentences again, and every arm
continues from that same model. One more arm, `unchanged`, continues with the examples of the
previous round: it is trained as long, so the reference's lead over it is due to the new search.
"""

from collections.abc import Sequence
import json

from etils import epath

from icl_jax.config import ConfigError, ExperimentConfig
from icl_jax.config.tree import to_dict, validate
from icl_jax.corpus.files import describe_files
from icl_jax.design.arms import ARMS, strategies_of
from icl_jax.design.folders import DesignFolders
from icl_jax.design.strategies.strategy import need_neighbours
from icl_jax.evaluation.compare.compare import compare
from icl_jax.evaluation.evaluate import evaluate_run
from icl_jax.experiment.branches import Branch, one_by_one
from icl_jax.experiment.comparison import evaluate_each
from icl_jax.experiment.report.report import write_report
from icl_jax.experiment.rounds.config import (
    UNCHANGED,
    Round,
    encoder_folder,
    first_round,
    later_round,
    round_folder,
    unchanged_branches,
)
from icl_jax.experiment.rounds.report import report_rounds, show_rounds
from icl_jax.experiment.rounds.search import (
    compare_neighbours,
    export_encoder,
    find_threshold,
    share_steps,
    threshold_folder,
)
from icl_jax.experiment.stages import run_stages
from icl_jax.files import mirror
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.remote import read_text
from icl_jax.files.step_folder import read_results, write_json
from icl_jax.models import huggingface
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.training.train import train
from icl_jax.workers.job import agree, on_first

NEEDED = ("design", "train", "evaluate")


def run_rounds(config: ExperimentConfig, workdir: epath.Path, stages: Sequence[str]) -> None:
    """Runs what is not complete yet, round after round, and reports after each.

    Writes WORKDIR/rounds.json, .md and .png. WORKDIR/rounds/NUMBER/round.json ends a round.
    """
    on_first("check the rounds", _check, config, stages)
    first = first_round(config, workdir)
    if "check" in stages:
        run_stages(first.config, workdir, ["check"])
    before, rerun = None, False
    for number in range(1, config.rounds + 1):
        own = None if rerun else _find(first, before, number)
        if not agree(f"round {number}", own is not None):
            rerun = True  # later rounds were made from another model
            print(f"\nround {number} of {config.rounds}")
            own = first if before is None else _prepare(first, before)
            _run(own, before)
            on_first(f"complete round {number}", _complete, own, before, workdir)
            on_first(f"report round {number}", report_rounds, workdir, number)
        before = own
    if not rerun:
        print(f"all {config.rounds} rounds are complete")
        on_first("report the rounds", show_rounds, workdir, config.rounds)


def _check(config: ExperimentConfig, stages: Sequence[str]) -> None:
    """Stops on what would stop a later round; the stages of round 1 check everything else."""
    validate(config)
    branches, found = config.branches, []
    if len(branches.arms) < 2:
        found.append(
            f"rounds is {config.rounds}, and each compares arms that branch off the one before; "
            f"expected at least two branches.arms, got {branches.arms}. Set them, such as "
            "('regular', 'neighbours_in_context'), and branches.steps or branches.epochs"
        )
    elif not _has_neighbours(branches.reference):
        able = ", ".join(filter(_has_neighbours, ARMS))
        found.append(
            f"branches.reference is '{branches.reference}', whose examples no search changes: all "
            f"rounds would be the same; expected one of {able}"
        )
    if len(branches.learning_rates) > 1:
        found.append(
            "a round continues from one model, but the reference has as many as there are "
            f"branches.learning_rates, {len(branches.learning_rates)}; choose one of them"
        )
    if missing := [stage for stage in NEEDED if stage not in stages]:
        found.append(
            f"rounds run the stages {', '.join(NEEDED)} in turn, but {' and '.join(missing)} "
            "would not run; leave out --stages, and name a corpus (design.corpus.files) and "
            "evaluation.tasks, or set rounds to 1"
        )
    try:
        huggingface.write_config(config.model)
    except ValueError as error:
        found.append(
            f"the model of a round is the encoder of the next, as a model folder, but {error}; "
            "change those fields of model (--config.model.position=learned)"
        )
    if found:
        raise ConfigError("; ".join(found))


def _has_neighbours(arm: str) -> bool:
    return need_neighbours(strategies_of((arm,)))


def _find(first: Round, before: Round | None, number: int) -> Round | None:
    """A round that is complete for the same config and files; None if it is not."""
    own, folder = first, round_folder(first.workdir, number)
    if before is not None:
        chosen = read_results(threshold_folder(folder))
        if chosen is None:
            return None
        own = later_round(first, before, chosen["min_similarity"])
    file, compared = folder / "round.json", own.workdir / "comparison" / "comparison.json"
    if not file.exists() or not compared.exists():
        return None
    held, seeds = json.loads(read_text(file)), json.loads(read_text(compared))["evaluations"]
    evaluations = [f"{place}.json" for places in seeds.values() for place in places]
    needed = [own.workdir / "comparison.json", *map(epath.Path, evaluations)]
    same = all(held[name] == value for name, value in _made_from(own).items())
    return own if same and all(path.exists() for path in needed) else None


def _made_from(own: Round) -> dict:
    """What identifies a complete round."""
    design = own.config.design
    files = [
        describe_files(part, field)
        for field, part in (("design.corpus", design.corpus), ("design.queries", design.queries))
        if part.files
    ]
    return {"config": json.loads(json.dumps(to_dict(own.config))), "files": files}


def _prepare(first: Round, before: Round) -> Round:
    """The next round, with what its design needs: the encoder, the sentences, the threshold."""
    unknown = later_round(first, before, threshold=-1.0)
    workdir = unknown.workdir
    wanted = read_results(DesignFolders(first.workdir).neighbours)["mean_neighbours"]
    with alone_in(mirror.local_folder(workdir)):
        run = str(before.references[0].workdir)
        export_encoder(run, encoder_folder(workdir), first.config)
        share_steps(first.workdir, workdir)
        threshold = find_threshold(unknown.config, workdir, wanted)
    return later_round(first, before, threshold)


def _run(own: Round, before: Round | None) -> None:
    """The stages of a round; later ones have the arm `unchanged` too."""
    if before is None:
        run_stages(own.config, own.workdir, NEEDED)
        return
    run_stages(own.config, own.workdir, ["design", "train"])
    unchanged = unchanged_branches(own, before)
    for branch in one_by_one(unchanged, "training branch"):
        train(branch.config, branch.workdir, brief=True)
    on_first("compare the arms", _compare, own, unchanged)


def _compare(own: Round, unchanged: Sequence[Branch]) -> None:
    """Evaluates the arms of a later round, `unchanged` among them."""
    evaluations = evaluate_each(own.config, own.workdir)
    evaluations[UNCHANGED] = [
        evaluate_run(branch.config, branch.workdir, brief=True)
        for branch in one_by_one(unchanged, "evaluating")
    ]
    reference = next(a for a in evaluations if a.startswith(own.config.branches.reference))
    resamples = own.config.evaluation.resamples
    compared = compare(evaluations, reference, own.workdir / "comparison", resamples)
    write_report(compared, own.workdir)


def _complete(own: Round, before: Round | None, workdir: epath.Path) -> None:
    """Writes the record of a round, its last file."""
    folders = DesignFolders(own.workdir)
    neighbours = Neighbours.open(folders.neighbours)
    overlap = None
    if before is not None:
        held = Neighbours.open(DesignFolders(before.workdir).neighbours)
        overlap = compare_neighbours(held, neighbours)
    folder = round_folder(workdir, own.number)
    folder.mkdir(parents=True, exist_ok=True)
    found = neighbours.results
    write_json(
        folder / "round.json",
        {
            "round": own.number,
            "workdir": str(own.workdir),
            "encoder": own.config.design.encoder.folder or "TF-IDF",
            "min_similarity": own.config.design.search.min_similarity,
            "queries": found["queries"],
            "queries_with_neighbours": found["queries_with_neighbours"],
            "mean_neighbours": found["mean_neighbours"],
            "overlap": overlap,
            **_made_from(own),
        },
    )
