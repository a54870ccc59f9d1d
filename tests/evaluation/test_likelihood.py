"""How a model is asked for tokens."""

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.evaluation.likelihood import Likelihood
from tests.evaluation import small

TOKENS = np.arange(10, 20)


def with_special(folder, **ids):
    """The same folder with a tokenizer that names other special tokens."""
    tokenizer = small.subject_of(folder).tokenizer
    Tokenizer(tokenizer.library, **tokenizer.special_ids | ids).save(folder)
    return small.subject_of(folder)


def test_an_encoder_reads_between_its_marks_and_is_asked_for_each_token_once(tmp_path):
    folder = small.roberta_folder(tmp_path / "roberta")
    likelihood = Likelihood(with_special(folder, begin_of_text_id=2, padding_id=None))
    assert (likelihood.positions, likelihood.room) == (64, 62)
    asked = np.arange(10) != 4
    passages = list(likelihood.passages(TOKENS, asked, 3))
    counts = np.zeros(12, int)
    for passage in passages:
        assert passage.targets.tolist() == [2, *TOKENS, 0] and passage.owner == 3
        hidden = np.where(passage.chosen, likelihood.mask_id, passage.targets)
        np.testing.assert_array_equal(passage.inputs, hidden)
        counts += passage.chosen
    assert len(passages) == 7 and counts.tolist() == [0, *asked, 0]
    assert list(likelihood.passages(TOKENS, np.zeros(10, bool), 0)) == []


def test_a_gpt_reads_the_tokens_alone_and_says_what_comes_next(tmp_path):
    likelihood = Likelihood(small.subject_of(small.gpt_folder(tmp_path / "gpt")))
    (passage,) = likelihood.passages(TOKENS, np.ones(10, bool), 0)
    assert passage.inputs.tolist() == TOKENS.tolist() and likelihood.room == 64
    assert passage.targets[passage.chosen].tolist() == TOKENS[1:].tolist()
    assert not passage.chosen[-1]


def test_an_encoder_that_cannot_be_asked_is_refused(tmp_path):
    folder = small.roberta_folder(tmp_path / "roberta")
    with pytest.raises(ConfigError, match=r"has no mask token.*evaluation.tokenizer \(--tok"):
        Likelihood(with_special(folder, mask_id=None))
