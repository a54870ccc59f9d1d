"""Trains a byte-level BPE tokenizer on a sample of the corpus.

Its ids: 4 special tokens, the 243 bytes that UTF-8 text can hold (never 0xC0, 0xC1, 0xF5-0xFF),
then merges, up to exactly the requested size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from icl_jax.config import ConfigError, CorpusConfig, StageError
from icl_jax.corpus.documents import BadDocument, Document, read_documents
from icl_jax.corpus.sentences import split_document
from icl_jax.corpus.shards import Shard, plan_shards
from icl_jax.corpus.table_results import no_sentences
from icl_jax.corpus.tokenizers import Tokenizer

MIN_VOCAB_SIZE = 257  # with the first 10 merges
SAMPLE_BYTES = 50_000_000
SPECIAL_TOKENS = ("<|endoftext|>", "<|separator|>", "<|padding|>", "<|mask|>")
NOT_IN_UTF8 = (0xC0, 0xC1, *range(0xF5, 0x100))


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer with exactly `vocab_size` ids; the same texts give the same tokenizer."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=_alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    reached = library.get_vocab_size()
    if reached != vocab_size:
        lower = f", or set it to at most {reached}" if reached >= MIN_VOCAB_SIZE else ""
        raise ConfigError(
            f"design.tokenizer.vocab_size is {vocab_size}, but the text is so short that it gives "
            f"only {reached} tokens (the minimum is {MIN_VOCAB_SIZE}); add text{lower}"
        )
    end_of_text, separator, padding, mask = map(library.token_to_id, SPECIAL_TOKENS)
    return Tokenizer(library, separator, end_of_text, padding_id=padding, mask_id=mask)


def sample_sentences(
    config: CorpusConfig, shard_bytes: int, sample_bytes: int = SAMPLE_BYTES
) -> Iterator[str]:
    """Sentences from shards spread evenly over the corpus, about as many bytes from each."""
    shards = plan_shards(config, shard_bytes)
    wanted = max(1, min(len(shards), sample_bytes // shard_bytes))
    chosen = [shards[i * len(shards) // wanted] for i in range(wanted)]
    empty = True
    for shard in chosen:
        left = sample_bytes // wanted
        for sentence in _sentences(shard, config):
            yield sentence
            empty = False
            left -= len(sentence.encode())
            if left <= 0:
                break
    if empty:
        found = _explain_empty(chosen, config)
        raise StageError(f"there are no sentences to train the tokenizer on: {found}")


def _sentences(shard: Shard, config: CorpusConfig) -> Iterator[str]:
    for document in read_documents(shard, config):
        if isinstance(document, Document):
            yield from split_document(document, config)[0]


def _explain_empty(shards: Sequence[Shard], config: CorpusConfig) -> str:
    """Reads again the shards that gave no sentence, to say why."""
    documents, bad, dropped = 0, [], Counter()
    for shard in shards:
        for document in read_documents(shard, config):
            if isinstance(document, BadDocument):
                bad.append(document)
            else:
                documents += 1
                dropped += split_document(document, config)[1]
    return no_sentences(documents, bad, dropped)


def _alphabet() -> list[str]:
    """The characters that stand for bytes in the library."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    written = {byte: chr(byte) for byte in printable}
    written |= {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    return [character for byte, character in written.items() if byte not in NOT_IN_UTF8]
