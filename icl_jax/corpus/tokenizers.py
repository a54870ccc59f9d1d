"""From text to tokens: a published tokenizer or one trained here, with a separator for sentences.

Text never becomes a special token: `<|endoftext|>` in a document is encoded letter by letter.
"""

from collections.abc import Sequence
import functools
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from icl_jax.config import ConfigError
from icl_jax.corpus.word_cache import WordCache
from icl_jax.files.remote import check_files_in
from icl_jax.files.step_folder import write_json

# There is one process per core already; the library's own threads would only get in the way.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

NEW_SEPARATOR = "<|separator|>"
UNUSED_TOKENS = ("madeupword0000", "[unused0]")  # RoBERTa, BERT: in the vocabulary, in no text
# Role -> its names in Hugging Face's files, and the tokens that are known to have it.
_ROLES = {
    "begin_of_text": (("cls_token", "bos_token"), ("<s>", "[CLS]")),
    "end_of_text": (("eos_token", "sep_token"), ("</s>", "[SEP]", "<|endoftext|>")),
    "padding": (("pad_token",), ("<|padding|>", "<pad>", "[PAD]")),
    "mask": (("mask_token",), ("<|mask|>", "<mask>", "[MASK]")),
}
_IDS_FILE = "special_ids.json"


class Tokenizer:
    """A `tokenizers.Tokenizer` and the ids of its special tokens."""

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        separator_id: int,
        end_of_text_id: int,
        begin_of_text_id: int | None = None,
        padding_id: int | None = None,
        mask_id: int | None = None,
    ):
        library.no_padding()
        library.no_truncation()
        library.encode_special_tokens = True  # that is, as ordinary text
        self.library = library
        self.separator_id = separator_id
        self.begin_of_text_id = begin_of_text_id  # None: an example begins with its first sentence
        self.end_of_text_id = end_of_text_id
        self.padding_id = padding_id
        self.mask_id = mask_id
        self.vocab_size = 1 + max(library.get_vocab(with_added_tokens=True).values())
        self._words = WordCache.of(library)
        _check_separator(self)
        _check_special_tokens(self)

    @classmethod
    def open(cls, folder: Path) -> "Tokenizer":
        """The tokenizer that `save` wrote."""
        ids = json.loads((Path(folder) / _IDS_FILE).read_text())
        return cls(tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json")), **ids)

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json`, which `transformers` opens too, and the special ids."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "tokenizer.json", json.loads(self.library.to_str()))
        write_json(folder / _IDS_FILE, self.special_ids)

    def save_with_model(self, folder: Path) -> None:
        """The same beside a model, where `transformers.AutoTokenizer` opens it by itself."""
        self.save(folder)
        write_json(Path(folder) / "tokenizer_config.json", self.settings)

    @property
    def settings(self) -> dict:
        """What `transformers` reads in `tokenizer_config.json`."""
        ids = {
            "bos_token": self.begin_of_text_id,
            "eos_token": self.end_of_text_id,
            "pad_token": self.padding_id,
            "mask_token": self.mask_id,
        }
        names = {k: self.library.id_to_token(id) for k, id in ids.items() if id is not None}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **names}

    @property
    def special_ids(self) -> dict[str, int | None]:
        """The ids of tokens that no text contains, by our names for them."""
        names = ("separator_id", *(f"{role}_id" for role in _ROLES))
        return {name: getattr(self, name) for name in names}

    @property
    def fingerprint(self) -> str:
        """Changes whenever some text could get different tokens."""
        content = self.library.to_str() + json.dumps(self.special_ids)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of all texts (int32), and where each text begins (int64, one more than texts)."""
        if self._words is not None:
            found = self._words.encode(texts)
            if found is not None:
                return found
        rows = self.library.encode_batch_fast(texts, add_special_tokens=False)
        rows = [np.asarray(row.ids, np.int32) for row in rows]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return np.concatenate([np.empty(0, np.int32), *rows]), offsets

    def encode(self, text: str) -> np.ndarray:
        """Tokens of one text (int32)."""
        return np.asarray(self.library.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, including special ones, for people to read."""
        return self.library.decode(np.asarray(tokens).tolist(), skip_special_tokens=False)


@functools.lru_cache(maxsize=1)
def open_tokenizer(folder: str, fingerprint: str) -> Tokenizer:
    """`Tokenizer.open`, kept from shard to shard with the words that it has seen.

    The fingerprint detects that the folder holds another tokenizer by now.
    """
    return Tokenizer.open(Path(folder))


def load(folder: str | Path, separator: str = "") -> Tokenizer:
    """A published tokenizer: `tokenizer.json`, or `vocab.json` and `merges.txt`."""
    folder = Path(folder)
    check_files_in(folder)
    library = _read_library(folder)
    vocabulary = library.get_vocab(with_added_tokens=True)
    named = _named_tokens(folder)
    ids = {f"{role}_id": _find(role, named, vocabulary) for role in _ROLES}
    if ids["end_of_text_id"] is None:
        raise ConfigError(
            f"design.tokenizer.folder: {folder} names no end-of-text token; expected eos_token in "
            f"its tokenizer_config.json, or one of {', '.join(_ROLES['end_of_text'][1])} among "
            "its tokens"
        )
    if ids["begin_of_text_id"] == ids["end_of_text_id"]:
        ids["begin_of_text_id"] = None  # GPT-2 names one token for both
    unused = next((token for token in UNUSED_TOKENS if token in vocabulary), NEW_SEPARATOR)
    separator = separator or unused
    if separator not in vocabulary:
        library.add_special_tokens([separator])
    return Tokenizer(library, library.token_to_id(separator), **ids)


def _read_library(folder: Path) -> tokenizers.Tokenizer:
    whole, vocabulary, merges = (
        folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")
    )
    try:
        if whole.exists():
            return tokenizers.Tokenizer.from_file(str(whole))
        if vocabulary.exists() and merges.exists():
            library = tokenizers.Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
            prefix = bool(_read_json(folder / "tokenizer_config.json").get("add_prefix_space"))
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
            library.decoder = decoders.ByteLevel()
            _add_tokens(library, folder)
            known = [t for _, names in _ROLES.values() for t in names if t in library.get_vocab()]
            library.add_special_tokens(known)
            return library
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"design.tokenizer.folder: {folder} cannot be read: {error}") from error
    raise ConfigError(
        f"design.tokenizer.folder: expected tokenizer.json, or vocab.json and merges.txt, in "
        f"{folder}, which " + ("holds neither" if folder.is_dir() else "is not a folder")
    )


def _add_tokens(library: tokenizers.Tokenizer, folder: Path) -> None:
    """Adds the tokens of `added_tokens.json`, token -> id, after the ids of `vocab.json`."""
    settings = _read_json(folder / "tokenizer_config.json")
    described = settings.get("added_tokens_decoder", {})
    special = {*_named_tokens(folder).values()}
    for held in (_read_json(folder / "special_tokens_map.json"), settings):
        for token in held.get("additional_special_tokens") or []:
            special.add(token["content"] if isinstance(token, dict) else token)
    added = _read_json(folder / "added_tokens.json")
    for token, id in sorted(added.items(), key=lambda item: item[1]):
        own = {"special": token in special, **described.get(str(id), {}), "content": token}
        library.add_tokens([tokenizers.AddedToken(**own)])
        if library.token_to_id(token) != id:
            raise ValueError(
                f"added_tokens.json gives the id {id} to '{token}', but "
                f"{library.token_to_id(token)} is the next one"
            )


def _named_tokens(folder: Path) -> dict[str, str | int]:
    """What the folder's own files say: `eos_token` -> token, `eos_token_id` -> id."""
    named: dict[str, str | int] = {}
    for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json"):
        for key, value in _read_json(folder / name).items():
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str | int):
                named[key] = value
    return named


def _find(role: str, named: dict[str, str | int], vocabulary: dict[str, int]) -> int | None:
    fields, known = _ROLES[role]
    for field in fields:
        if named.get(field) in vocabulary:
            return vocabulary[named[field]]
    for field in fields:
        if named.get(f"{field}_id") in vocabulary.values():
            return named[f"{field}_id"]
    return next((vocabulary[token] for token in known if token in vocabulary), None)


def _check_separator(tokenizer: Tokenizer) -> None:
    name = tokenizer.library.id_to_token(tokenizer.separator_id)
    for role in _ROLES:
        if tokenizer.separator_id == getattr(tokenizer, f"{role}_id"):
            raise ConfigError(
                f"design.tokenizer.separator: '{name}' is the {role.replace('_', '-')} token; "
                'the separator must be another token. Leave it at "" to use an unused one'
            )


def _check_special_tokens(tokenizer: Tokenizer) -> None:
    """Stops on a special token that text can become, as it would appear where nobody put it."""
    for role, id in tokenizer.special_ids.items():
        if id is None:
            continue
        name = tokenizer.library.id_to_token(id)
        # A piece may be spelled differently from its text, and depend on its neighbours.
        texts = [f"{text} a{text} {text}" for text in (name, tokenizer.decode([id]))]
        if not any(id in tokenizer.encode(text) for text in texts):
            continue
        if role == "separator_id":
            raise ConfigError(
                f"design.tokenizer.separator: '{name}' also comes from text; choose a token that "
                'does not, or leave it at "" to use an unused one'
            )
        role = role.removesuffix("_id").replace("_", "-")
        raise ConfigError(
            f"design.tokenizer.folder: the {role} token '{name}' is an ordinary piece of this "
            "tokenizer, which is not supported, because text could contain it; choose another "
            "tokenizer"
        )


def _read_json(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}
