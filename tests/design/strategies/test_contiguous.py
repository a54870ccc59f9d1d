"""Regular examples: the running text of documents, cut between sentences."""

import numpy as np

from icl_jax.design.records.layout import in_context
from icl_jax.design.stage import make_groups
from icl_jax.design.strategies.contiguous import cut
from tests.design.small_build import open_build, small_config


def test_chunks_are_the_text_of_documents_token_for_token(tmp_path):
    config = small_config(tmp_path)
    config.sequence_length = 130
    build = open_build(config, tmp_path / "run")
    groups = make_groups(build, "contiguous")
    corpus, tokenizer = build.sentences.corpus, build.tokenizer
    texts = {}
    for shard in groups.shards:
        for row in range(len(shard)):
            example = in_context(build.sentences, shard, row, build.marks)
            ids = shard.ids[shard.offsets[row] : shard.offsets[row + 1]]
            assert len(example.tokens) <= 130
            assert (np.diff(ids) == 1).all() and len({*corpus.documents[ids]}) == 1
            for id, start in zip(ids, example.starts):  # each sentence stands where it is said to
                text = tokenizer.decode(example.tokens[start:])
                assert text.removeprefix(" ").startswith(corpus.text(id))
            texts.setdefault(int(corpus.documents[ids[0]]), []).append(example.tokens)
    assert len(texts) == corpus.num_documents
    for document, chunks in texts.items():
        ids = np.flatnonzero(corpus.documents == document)
        text = " ".join(corpus.text(id) for id in ids)
        *tokens, end = np.concatenate(chunks).tolist()
        assert end == tokenizer.end_of_text_id
        assert tokens == tokenizer.encode(text).tolist()


def test_cut_takes_as_many_sentences_of_a_document_as_fit():
    lengths = np.array([4, 4, 3, 9, 1, 2, 2])
    ends = np.array([0, 0, 1, 0, 1, 0, 1], bool)
    assert cut(lengths, ends, 10).tolist() == [0, 2, 3, 5, 7]
    assert cut(lengths[:0], ends[:0], 10).tolist() == [0]
