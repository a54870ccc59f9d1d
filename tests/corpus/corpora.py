"""One small made-up corpus, written in every format."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from icl_jax.config import CorpusConfig
from icl_jax.corpus.documents import read_documents
from icl_jax.corpus.shards import plan_shards

ANIMALS = ("heron", "badger", "lynx", "otter", "marten", "stoat", "shrew", "dormouse", "plover")


def make_documents(count: int = 23) -> list[dict]:
    documents = []
    for i in range(count):
        animal = ANIMALS[i % len(ANIMALS)]
        lines = [
            f"The {animal} number {i} lives near Zürich, 東京. It eats {i + 3} fish a day.",
            f"In winter the {animal} sleeps for {i + 40} days. Nobody has seen it wake up early!",
            f"A story about the {animal} ends here, in the mud of page {i * 7}.",
        ]
        text = "\n".join(lines[: 1 + i % 3])
        documents.append({"id": str(100 + i), "title": f"{animal.title()} {i}", "text": text})
    return documents


def write_jsonl(path: Path, documents: list[dict]) -> Path:
    return write(path, "".join(json.dumps(document) + "\n" for document in documents).encode())


def write_wikiextractor(path: Path, documents: list[dict]) -> Path:
    parts = [
        f'<doc id="{d["id"]}" url="https://x.org/wiki?curid={d["id"]}" title="{d["title"]}">\n'
        f"{d['title']}\n\n{d['text']}\n\n</doc>\n"
        for d in documents
    ]
    return write(path, "".join(parts).encode())


def write_blocks(path: Path, documents: list[dict]) -> Path:
    return write(path, "\n \n".join(d["text"] for d in documents).encode())


def write_parquet(path: Path, documents: list[dict], rows: int = 7) -> Path:
    pq.write_table(pa.Table.from_pylist(documents), path, row_group_size=rows)
    return path


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def read_all(config: CorpusConfig, shard_bytes: int = 1 << 20) -> list:
    return [d for shard in plan_shards(config, shard_bytes) for d in read_documents(shard, config)]
