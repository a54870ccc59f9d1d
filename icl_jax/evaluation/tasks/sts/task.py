"""Sentence similarity: how well cosines of sentence vectors correlate with human scores."""

from collections.abc import Callable, Sequence

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, EvaluationConfig, ModelConfig, StageError
from icl_jax.evaluation.bootstrap import Statistic, spearman_of
from icl_jax.evaluation.metric import Metric, Metrics, Unit, split
from icl_jax.evaluation.task import Task
from icl_jax.evaluation.tasks.sts.files import SUBSETS, Pair, read_sets
from icl_jax.evaluation.tasks.sts.scores import make_table, score_sets
from icl_jax.evaluation.tasks.sts.vectors import describe_recipe, make_recipe
from icl_jax.retrieval.encoders.transformer import TransformerEncoder
from icl_jax.training.model_at import ModelAt

SPEARMAN = Unit("Spearman x 100, all", 2)
_OF_THE_WEIGHTS = ("checksum", "tokenizer", "max_tokens")  # of a recipe of sentence vectors


class Sts(Task):
    """The task `sts`: STS12-16, STS-B and SICK-R, and whatever else `config.sts` names."""

    unit, part_size, folders = "pairs", 2048, ("sts", "sick")
    item, units = ("task", "subset", "sentence1", "sentence2", "gold"), (SPEARMAN,)
    rank = 2

    @classmethod
    def check(cls, config: EvaluationConfig, model: ModelConfig) -> None:
        """Stops on files that cannot be read."""
        read_sets(config)

    def __init__(self, model: ModelAt, config: EvaluationConfig):
        found = []
        try:
            self._recipe = make_recipe(model, config)
        except (ConfigError, StageError) as error:
            found.append(str(error))
        try:
            self._sets = read_sets(config)
        except (ConfigError, StageError) as error:
            found.append(str(error))
        if found:
            raise ConfigError("; ".join(found))
        self._model, self._encoder = model, None
        self._seed, self._resamples = config.seed, config.resamples
        self.items: Sequence[Pair] = [pair for held in self._sets for pair in held.pairs]
        data = {held.name: {"files": held.files, "missing": held.missing} for held in self._sets}
        self.inputs = {"sets": data, "vectors": self._recipe.identity()}

    def run(
        self, items: Sequence[Pair], first: int, mesh: Mesh, progress: Callable[[int], None]
    ) -> list[dict]:
        """Pairs with their cosine; `cut` says how many tokens of each sentence did not fit."""
        texts = list(dict.fromkeys(t for pair in items for t in (pair.sentence1, pair.sentence2)))
        vectors = self._encode(texts, mesh, _in_pairs(progress, len(texts), len(items)))
        cut = self._recipe.count_cut(texts)
        index = {text: n for n, text in enumerate(texts)}
        ends = [(index[pair.sentence1], index[pair.sentence2]) for pair in items]
        rows = []
        for pair, (a, b), cosine in zip(items, ends, _cosines(vectors, ends), strict=True):
            rows.append({**pair._asdict(), "cosine": float(cosine)})
            if cut[a] or cut[b]:
                rows[-1]["cut"] = [cut[a], cut[b]]
        return rows

    def results(self, rows: list[dict]) -> dict:
        """Correlations x 100 of each set; the average only if all seven are whole."""
        return {
            **score_sets(self._sets, rows, self._resamples, self._seed),
            "pooling": describe_recipe(self._recipe),
            "cut": sum(1 for row in rows for count in row.get("cut", ()) if count),  # sentences
        }

    def table(self, results: dict) -> str:
        """Per set, then per subset."""
        return make_table(results)

    @staticmethod
    def metrics(rows: list[dict], results: dict) -> Metrics:
        """`all` of each set that is whole, and the average of the seven if all are."""
        metrics: Metrics = {}
        for name, own in split(rows, "task").items():
            cosine, gold = (np.array([row[key] for row in own]) for key in ("cosine", "gold"))
            withheld = results[name]["all"]["spearman"] is None
            whole = Metric(SPEARMAN, _times_100(spearman_of(cosine, gold)), cosine)
            metrics[name] = None if withheld else whole
        withheld = results["average"] is None
        metrics["average"] = None if withheld else Metric(SPEARMAN, mean_of=tuple(SUBSETS))
        return metrics

    @staticmethod
    def shared_inputs(inputs: dict) -> dict:
        """The data, and how vectors are made from the model's output."""
        recipe = inputs.get("vectors", {}).items()
        return inputs | {"vectors": {k: v for k, v in recipe if k not in _OF_THE_WEIGHTS}}

    @staticmethod
    def headline(metrics: list[str]) -> list[str]:
        """The average, then the sets."""
        return sorted(metrics, key=lambda name: name != "average")

    @classmethod
    def title(cls, metric: str, items: int) -> str:
        """Of its panel in the figure of a report."""
        return f"Sentence similarity, {metric}"

    def _encode(self, texts: list[str], mesh: Mesh, progress: Callable[[int], None]) -> np.ndarray:
        if self._encoder is None:
            model = self._model.load(mesh)
            self._encoder = TransformerEncoder(model, self._recipe, mesh, self._model.path, {})
        vectors = self._encoder.encode(texts, progress).astype(np.float64)
        wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(wrong):
            raise StageError(
                f"{self._model.path} gives a vector that is not finite for {texts[wrong[0]]!r}; "
                "did its training diverge?"
            )
        return vectors


def _times_100(statistic: Statistic) -> Statistic:
    return lambda counts_RN: 100 * statistic(counts_RN)


def _cosines(vectors: np.ndarray, ends: list[tuple[int, int]]) -> np.ndarray:
    """The cosine of each pair; exactly 1 for equal texts, 0 for one without tokens."""
    squares = np.einsum("nd,nd->n", vectors, vectors)
    first, second = np.array(ends).T
    products = np.einsum("nd,nd->n", vectors[first], vectors[second])
    scale = np.sqrt(squares[first] * squares[second])
    return np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)


def _in_pairs(progress: Callable[[int], None], texts: int, pairs: int) -> Callable[[int], None]:
    """Reports the progress over sentences as progress over pairs."""
    done = 0

    def report(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        progress(pairs * done // texts - pairs * before // texts)

    return report
