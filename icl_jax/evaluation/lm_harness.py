"""Runs lm-evaluation-harness (extra `harness`) on our models, with its own flags.

python -m icl_jax.evaluation.lm_harness run --model icl_jax --model_args pretrained=FOLDER
    --tasks nq_open,wikitext [the harness's own flags]

FOLDER is what `icl_jax.evaluation.run --model` takes. Besides `pretrained`, --model_args takes
tokenizer=FOLDER, ema=True and max_length=N (at most the model's positions). --batch_size is how
many prompts are answered at once.
"""

from collections.abc import Sequence
import json
import sys

try:
    from lm_eval import utils
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise ImportError(
        f"lm-evaluation-harness is not installed: pip install 'icl_jax[harness]' ({error})"
    ) from error
import numpy as np

from icl_jax.cli import ends_in_one_line
from icl_jax.config import ConfigError, MeshConfig, StageError
from icl_jax.evaluation.generation.generate import Generator
from icl_jax.evaluation.generation.sampling import Sampling
from icl_jax.models.inputs import position_limit
from icl_jax.models.passage_losses import Passage, PassageLosses, row_length
from icl_jax.sharding import make_mesh
from icl_jax.training.model_at import model_at
from icl_jax.workers.local import progress_bar

MAX_NEW_TOKENS = 256  # where a task does not say, as in the harness
BATCH_SIZE = 32  # prompts that are answered at once
MODEL_ARGS = ("pretrained", "tokenizer", "ema", "max_length")
_NAMES_OF_MAX = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


@register_model("icl_jax")
class IclJaxLM(TemplateLM):
    """One of our GPTs as a model of the harness."""

    def __init__(
        self,
        pretrained: str = "",
        tokenizer: str = "",
        ema: bool = False,
        max_length: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,  # the harness gives these two to every model
        device: str | None = None,
        **others,
    ):
        super().__init__()
        _check_model_args(pretrained, max_length, others)
        trained = model_at(str(pretrained), tokenizer, ema)
        if trained.masked:
            raise ConfigError(
                f"{pretrained} predicts masked tokens and cannot generate; choose a GPT"
            )
        positions = position_limit(trained.config)
        self.max_length = int(max_length or positions or trained.config.context_length)
        if positions is not None and self.max_length > positions:
            raise ConfigError(
                f"max_length must be at most the {positions} positions of {pretrained}, got "
                f"{self.max_length}"
            )
        self.trained, self.batch_size = trained, _batch_size(batch_size)
        self._mesh = make_mesh(MeshConfig())
        self._opened: dict[int, PassageLosses] = {}  # by the length of a row
        self._generator: Generator | None = None

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return self.trained.tokenizer.end_of_text_id

    @property
    def prefix_token_id(self) -> int:
        """What comes before a text that has no context."""
        begin = self.trained.tokenizer.begin_of_text_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        """Identifies the tokenizer."""
        return self.trained.tokenizer.fingerprint

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs
    ) -> list[int]:
        """Tokens of a text, after the begin token if the tokenizer has one."""
        begin = [] if add_special_tokens is False else self.trained.begin
        return begin + self.trained.tokenizer.encode(string).tolist()

    def tok_decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, without special ones."""
        return self.trained.tokenizer.library.decode(list(tokens), skip_special_tokens=True)

    def _loglikelihood_tokens(
        self, requests: list[tuple], disable_tqdm: bool = False, **kwargs
    ) -> list[tuple[float, bool]]:
        """For each (texts, context, continuation): log-likelihood, and whether it is greedy."""
        if not requests:
            return []
        passages = [
            self._passage(context, continuation, owner)
            for owner, (_, context, continuation) in enumerate(requests)
        ]
        model = self._open(max(len(passage.inputs) for passage in passages))
        with progress_bar(total=len(passages), desc="loglikelihood", disable=disable_tqdm) as bar:
            found = model.losses(passages, len(requests), bar.update)
        answers = []
        for (texts, _, _), loss, greedy in zip(requests, found.sums, found.greedy, strict=True):
            answers.append((-float(loss), bool(greedy)))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answers[-1])
        longest = self.max_length + 1  # the last token is asked for, not read
        self._report_cut([len(a) + len(b) > longest for _, a, b in requests])
        return answers

    def _report_cut(self, cut: list[bool]) -> None:
        """Reports how many contexts were cut."""
        if any(cut):
            print(
                f"{sum(cut):,} of {len(cut):,} contexts were cut on the left to {self.max_length} "
                "tokens, what comes after them included",
                file=sys.stderr,
            )

    def _passage(self, context: list[int], continuation: list[int], owner: int) -> Passage:
        """Asks for the continuation; a context that is too long is cut on the left."""
        if len(continuation) > self.max_length:
            raise StageError(
                f"a continuation has {len(continuation)} tokens, more than the {self.max_length} "
                "that the model reads at once; choose another task or model"
            )
        tokens = np.array([*context, *continuation], np.int32)[-(self.max_length + 1) :]
        asked = np.arange(1, len(tokens)) >= len(tokens) - len(continuation)
        return Passage(tokens[:-1], tokens[1:], asked, owner)

    def _open(self, longest: int) -> PassageLosses:
        row = row_length(longest, self.max_length)
        if row not in self._opened:
            self._opened[row] = PassageLosses(self.trained.load(self._mesh), row, self._mesh)
        return self._opened[row]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of whole texts, in windows as the harness makes them."""
        windows, owners = [], []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            own = utils.get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
            found = [(None, *utils.make_disjoint_window(window)) for window in own]
            windows += found
            owners += [owner] * len(found)
        sums = [0.0] * len(requests)
        answers = self._loglikelihood_tokens(windows, disable_tqdm)
        for owner, (score, _) in zip(owners, answers, strict=True):
            sums[owner] += score
        for request, score in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, score)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """How the model continues each prompt, up to the first of a task's stop texts."""
        alike: dict[str, list[int]] = {}  # requests with the same settings
        for n, request in enumerate(requests):
            alike.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(n)
        answers, cut = [""] * len(requests), []
        with progress_bar(total=len(requests), desc="generate", disable=disable_tqdm) as bar:
            for settings, members in alike.items():
                contexts = [requests[n].args[0] for n in members]
                found = self._generate(contexts, json.loads(settings), members[0], bar.update)
                for n, (answer, is_cut) in zip(members, found, strict=True):
                    answers[n] = answer
                    cut.append(is_cut)
                    self.cache_hook.add_partial("generate_until", requests[n].args, answer)
        self._report_cut(cut)
        return answers

    def _generate(
        self, contexts: list[str], settings: dict, first: int, progress
    ) -> list[tuple[str, bool]]:
        """What comes after each context, and whether the context was cut."""
        until, count, sampling = read_settings(settings)
        if count >= self.max_length:
            raise ConfigError(
                f"the task asks for {count} new tokens, but the model reads only "
                f"{self.max_length}; give --gen_kwargs max_gen_toks=N with a smaller N"
            )
        if self._generator is None:
            model = self.trained.load(self._mesh)
            options = {"end_ids": self.trained.end_ids, "batch_size": self.batch_size}
            self._generator = Generator(model, self._mesh, **options)

        def has_stopped(tokens: np.ndarray) -> bool:
            said, ended = self.trained.said(tokens)
            text = self.tok_decode(said)
            return ended or any(stop in text for stop in until)

        whole = [self.tok_encode(context) or [self.prefix_token_id] for context in contexts]
        room = self.max_length - count
        generated = self._generator.generate(
            [np.array(tokens[-room:], np.int32) for tokens in whole],
            count,
            sampling=sampling,
            stop_when=has_stopped,
            first=first,
            progress=progress,
        )
        said = [self.trained.said(new.tokens)[0] for new in generated]
        texts = [_cut(self.tok_decode(tokens), until) for tokens in said]
        return [(text, len(tokens) > room) for text, tokens in zip(texts, whole, strict=True)]


def read_settings(settings: dict) -> tuple[list[str], int, Sampling | None]:
    """Stop texts, most new tokens, and how they are drawn, of a task's generation settings."""
    settings = dict(settings)
    until = settings.pop("until", None) or []
    until = [until] if isinstance(until, str) else [stop for stop in until if stop]
    given = [settings.pop(name) for name in _NAMES_OF_MAX if settings.get(name) is not None]
    temperature = float(settings.get("temperature") or 0)
    drawn = settings.pop("do_sample", temperature > 0)
    drawing = {name: settings.pop(name) for name in _SAMPLING if name in settings}
    others = {name: value for name, value in settings.items() if value not in (None, 1, False)}
    if others:
        raise ConfigError(
            f"generation knows until, max_gen_toks, do_sample, {', '.join(_SAMPLING)}, got also "
            f"{', '.join(f'{name}={value}' for name, value in others.items())}"
        )
    sampling = None
    if drawn:
        drawing["temperature"] = temperature or 1.0
        sampling = Sampling(**{name: v for name, v in drawing.items() if v is not None})
    return until, int(given[0]) if given else MAX_NEW_TOKENS, sampling


def _check_model_args(pretrained: str, max_length: object, others: dict) -> None:
    """Stops on what is wrong with --model_args."""
    found = []
    if not pretrained:
        found.append("expected pretrained=FOLDER, a run's workdir or a model folder")
    if others:
        given = ", ".join(f"{name}={value}" for name, value in others.items())
        found.append(f"expected only {', '.join(MODEL_ARGS)}, got also {given}")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        found.append(f"max_length must be a whole number of at least 1, got {max_length}")
    if found:
        raise ConfigError(f"--model_args: {'; '.join(found)}")


def _cut(text: str, until: list[str]) -> str:
    for stop in until:
        text = text.split(stop)[0]
    return text


def _batch_size(given: int | str | None) -> int:
    """Of generation; "auto" is ours."""
    return int(given) if given and str(given).isdigit() else BATCH_SIZE


def main() -> None:
    """The harness's own command line; our errors end it as they end our other commands."""
    with ends_in_one_line():
        cli_evaluate()


if __name__ == "__main__":
    main()
