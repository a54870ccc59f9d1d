"""The tokens of examples, in context and in batch, with and without a token for the beginning."""

import numpy as np

from icl_jax.design.groups import GroupShard
from icl_jax.design.records.layout import Marks, in_batch, in_context

GPT, ROBERTA = Marks(None, 90, 91), Marks(89, 90, 91)


class Sentences:
    def tokens(self, sentence):
        return np.arange(sentence, dtype=np.int32) + 10 * sentence


GROUPS = GroupShard(np.array([0, 1, 3]), np.array([4, 3, 2]), np.ones(3, np.float32))


def listed(example):
    return example.tokens.tolist(), example.starts.tolist()


def test_sentences_of_a_group_stand_between_separators():
    assert listed(in_context(Sentences(), GROUPS, 1, GPT)) == ([30, 31, 32, 90, 20, 21, 91], [0, 4])
    framed = [89, 30, 31, 32, 90, 20, 21, 91]
    assert listed(in_context(Sentences(), GROUPS, 1, ROBERTA)) == (framed, [1, 5])
    for marks in (GPT, ROBERTA):
        example = in_context(Sentences(), GROUPS, 1, marks)
        assert len(example.tokens) == 3 + 1 + 2 + marks.ends


def test_in_batch_every_sentence_is_an_example_of_its_own():
    apart = [listed(example) for example in in_batch(Sentences(), GROUPS, 1, ROBERTA)]
    assert apart == [([89, 30, 31, 32, 91], [1]), ([89, 20, 21, 91], [1])]
    apart = [listed(example) for example in in_batch(Sentences(), GROUPS, 0, GPT)]
    assert apart == [([40, 41, 42, 43, 91], [0])]


def test_running_text_is_framed_only_where_there_is_a_beginning():
    text = GroupShard(
        np.array([0, 2, 3]), np.arange(3), np.ones(3, np.float32),
        np.array([5, 6, 7, 8, 91], np.int32), np.array([0, 3, 5]), np.array([0, 2, 0]),
    )  # fmt: skip
    assert listed(in_context(Sentences(), text, 0, GPT)) == ([5, 6, 7], [0, 2])
    assert listed(in_context(Sentences(), text, 1, GPT)) == ([8, 91], [0])
    assert listed(in_context(Sentences(), text, 0, ROBERTA)) == ([89, 5, 6, 7, 91], [1, 3])
    assert listed(in_context(Sentences(), text, 1, ROBERTA)) == ([89, 8, 91], [1])
