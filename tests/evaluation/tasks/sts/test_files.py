"""Sentence pairs in every layout and format, and what is said of files that are wrong."""

import csv
import json

import numpy as np
import pytest

from icl_jax.config import ConfigError, StsConfig
from icl_jax.config.evaluation import STS_SETS
from icl_jax.config.tree import validate
from icl_jax.evaluation.tasks.sts.files import SUBSETS, read_sets
from tests.evaluation import small, sts_data

QUOTES = [('He said "yes', 'She said "no', 1.0), ('"', "a", 2.5), ("b\u2028c", "d\x85e", 5.0)]


def read(data="", **fields):
    sets = read_sets(small.evaluation(data=str(data), sts=StsConfig(**fields)))
    return {held.name: held for held in sets}


def refused(data="", **fields):
    with pytest.raises(ConfigError) as error:
        read(data, **fields)
    return str(error.value)


def triples(held, subset=""):
    return [tuple(pair[2:]) for pair in held.pairs if pair.subset == subset]


def test_the_seven_sets_of_senteval_are_read_whole(tmp_path):
    sets = read(sts_data.write_senteval(tmp_path))
    assert tuple(sets) == STS_SETS == tuple(SUBSETS) == StsConfig().tasks
    assert [len(held.pairs) for held in sets.values()] == [35, 18, 45, 35, 35, 5, 5]
    assert not any(held.missing or held.unscored for held in sets.values())
    assert triples(sets["STS12"], "MSRpar") == sts_data.make_pairs(5, 1)
    assert triples(sets["STS-B"]) == sts_data.make_pairs(5, 98)
    assert triples(sets["SICK-R"]) == sts_data.make_pairs(5, 99, lowest=1)
    assert sets["STS13"].source == "sts/original" and sets["SICK-R"].source == "sick"


def test_the_original_is_read_where_both_texts_are_there(tmp_path):
    sts_data.write_senteval(tmp_path, "original")
    sts_data.write_senteval(tmp_path, "senteval_tok", pairs=2)
    assert len(read(tmp_path)["STS-B"].pairs) == 5
    assert len(read(tmp_path, tokenised=True)["STS-B"].pairs) == 2
    (tmp_path / "sts/original/STSBenchmark").rename(tmp_path / "benchmark")
    assert read(tmp_path)["STS-B"].missing == ["STS-B"]  # not of the other text
    (tmp_path / "sts/original").rename(tmp_path / "gone")
    assert read(tmp_path)["STS-B"].source == "sts/senteval_tok"
    (tmp_path / "sts/senteval_tok").rename(tmp_path / "sts/original")
    assert "sts/senteval_tok/STS12" in refused(tmp_path, tokenised=True, tasks=("STS-B",))


@pytest.mark.parametrize("top", ["sts", "STS"])
def test_sentevals_own_folders_need_no_level_between(tmp_path, top):
    sts_data.write_senteval(tmp_path / "from", "")
    (tmp_path / "to").mkdir()
    (tmp_path / "from/sts").rename(tmp_path / "to" / top)
    (tmp_path / "from/sick").rename(tmp_path / "to" / ("SICK" if top == "STS" else "sick"))
    sets = read(tmp_path / "to")
    assert not any(held.missing for held in sets.values())
    assert sets["STS16"].source == top


def test_the_names_and_fields_of_2016_and_blank_scores(tmp_path):
    pairs = [("a b", "c", 3.0), ("d", "e", None), ("f", "g", 0.25), ("h", "i", None)]
    folder = tmp_path / "sts/original/STS16-en-test"
    sts_data.write_subset(folder, "headlines", pairs, "STS2016", "\thttp://x\thttp://y")
    held = read(tmp_path)["STS16"]
    assert triples(held, "headlines") == [pairs[0], pairs[2]] and held.unscored == 2
    assert held.missing == [f"STS16/{s}" for s in SUBSETS["STS16"] if s != "headlines"]


def test_quotes_and_odd_line_breaks_are_text_and_white_space_is_folded(tmp_path):
    folder = tmp_path / "sts/STS13-en-test"
    sts_data.write_subset(folder, "FNWN", [(f"  {a} ", b, s) for a, b, s in QUOTES])
    sts_data.write_stsb(tmp_path / "sts/STSBenchmark/sts-test.csv", QUOTES)
    sets = read(tmp_path)
    expected = [(" ".join(a.split()), " ".join(b.split()), s) for a, b, s in QUOTES]
    assert triples(sets["STS13"], "FNWN") == triples(sets["STS-B"]) == expected


def test_missing_sets_are_named_and_nothing_at_all_is_refused(tmp_path):
    sts_data.write_senteval(tmp_path)
    (tmp_path / "sts/original/STS13-en-test/STS.gs.FNWN.txt").unlink()
    (tmp_path / "sick/SICK_test_annotated.txt").unlink()
    (tmp_path / "sts/original/STS15-en-test").rename(tmp_path / "sts/elsewhere")
    sets = read(tmp_path)
    missing = [name for held in sets.values() for name in held.missing]
    assert missing == ["STS13/FNWN", "STS15", "SICK-R"] and len(sets["STS13"].pairs) == 13
    message = refused(tmp_path, tasks=("STS15", "SICK-R"))
    assert "none of STS15, SICK-R" in message and "sick/SICK_test_annotated.txt" in message
    assert "there is no folder" in refused(tmp_path / "nowhere")
    assert "none of STS12, STS13" in refused()


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("sts/original/STS12-en-test/STS.gs.MSRvid.txt", None, r"has 6 lines, but STS.gs.MSRvid"),
        ("sts/original/STS12-en-test/STS.gs.MSRvid.txt", "5.5", "line 2 .*from 0 to 5, got '5.5'"),
        ("sts/original/STS12-en-test/STS.gs.MSRvid.txt", "two", "line 2 of .* got 'two'"),
        ("sts/original/STS12-en-test/STS.gs.MSRvid.txt", "nan", "line 2 of .* got 'nan'"),
        ("sts/original/STS12-en-test/STS.input.MSRvid.txt", "one", "line 2 .*two sentences, got 1"),
        ("sts/original/STS12-en-test/STS.input.MSRvid.txt", "a\t ", "line 2 .*sentences, got 1"),
        (
            "sts/original/STSBenchmark/sts-test.csv",
            "a\tb\t1",
            "line 2 .*7 tab-separated .* got 3",
        ),
        ("sick/SICK_test_annotated.txt", "1\ta\tb\t0.5\tx", "line 2 .*from 1 to 5, got '0.5'"),
        ("sick/SICK_test_annotated.txt", "1\ta\t\t2\tx", "line 2 .*two sentences, got 1"),
    ],
)
def test_a_wrong_line_is_named_with_its_file(tmp_path, file, line, expected):
    path = sts_data.write_senteval(tmp_path) / file
    lines = path.read_text().splitlines()
    lines[1:2] = [] if line is None else [line]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=expected) as error:
        read(tmp_path)
    assert path.name in str(error.value)


def test_all_wrong_sets_are_reported_at_once(tmp_path):
    sts_data.write_senteval(tmp_path)
    (tmp_path / "sick/SICK_test_annotated.txt").write_text("a\tb\n")
    (tmp_path / "sts/original/STS12-en-test/STS.gs.MSRpar.txt").write_text("\n" * 5)
    message = refused(tmp_path)
    assert "expected a column sentence1 (or sentence_A" in message
    assert "STS.gs.MSRpar.txt has no score at all" in message


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_tables_of_any_format_give_the_same_pairs(tmp_path, kind):
    pairs = [(a, b, s) for a, b, s in QUOTES[:2]] + [("e", "f", None)]
    names = ("sentence_A", "sentence_B", "relatedness_score")
    rows = [dict(zip(names, pair, strict=True)) for pair in pairs]
    file = tmp_path / f"pairs.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "tsv":
        lines = ["\t".join("" if v is None else str(v) for v in pair) for pair in pairs]
        file.write_text("\n".join(["\t".join(names), *lines]) + "\n")
    elif kind == "csv":
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, names)
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), file)
    held = read(tasks=(), files=(f"SICK-R={file}", f"mine={file}"))
    assert triples(held["SICK-R"]) == triples(held["mine"]) == QUOTES[:2]
    assert held["mine"].unscored == 1 and not held["mine"].missing


def write_rows(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_table_with_subsets_lacks_those_that_it_does_not_hold(tmp_path):
    file = tmp_path / "sts13.jsonl"
    rows = [{"subset": s, "sentence1": "a", "sentence2": "b", "score": 1} for s in ("FNWN", "OnWN")]
    write_rows(file, rows)
    assert read(tasks=("STS13",), files=(f"STS13={file}",))["STS13"].missing == ["STS13/headlines"]
    write_rows(file, [{**row, "subset": ""} for row in rows])  # no word of subsets
    assert read(tasks=("STS13",), files=(f"STS13={file}",))["STS13"].missing == []


def test_wrong_tables_are_refused(tmp_path):
    file = tmp_path / "pairs.jsonl"
    row = {"sentence1": "a", "sentence2": "b", "label": -1}  # GLUE's hidden ones
    write_rows(file, [{**row, "label": 2}, row])
    message = refused(tasks=(), files=(f"STS-B={file}",))
    assert "row 2 of" in message and "got '-1'" in message and "scores are public" in message
    write_rows(file, [{"sentence1": "a", "text": "b"}])
    assert "column sentence2" in refused(tasks=(), files=(f"STS-B={file}",))
    write_rows(file, [])
    assert "holds no rows" in refused(tasks=(), files=(f"STS-B={file}",))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tasks": ("STS11",)}, "or sets that `files` names, got 'STS11'"),
        ({"tasks": ("STS12", "STS12")}, "different ones"),
        ({"tasks": ()}, "at least one"),
        ({"pooling": "best"}, "pooling"),
    ],
)
def test_wrong_choices_are_refused_with_the_config(fields, expected):
    with pytest.raises(ConfigError, match=expected):
        validate(small.evaluation(sts=StsConfig(**fields)))
    validate(small.evaluation(sts=StsConfig(tasks=("mine",), files=("mine=a.csv",))))


def test_hugging_faces_data_sets_are_read(tmp_path):
    pytest.importorskip("datasets")
    rows = [dict(zip(("sentence1", "sentence2", "score"), p, strict=True)) for p in QUOTES[:2]]
    write_rows(tmp_path / "test.jsonl", rows)
    held = read(tasks=("STS-B",), files=(f"STS-B=hf:{tmp_path}:test",))["STS-B"]
    assert triples(held) == QUOTES[:2] and held.files["STS-B"]["checksum"]


def test_prepared_tfds_folders_are_read(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")
    pairs = sts_data.make_pairs(3, 0)

    class Similar(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        url_infos = None  # nothing to download

        def _info(self):
            text, number = tfds.features.Text(), tfds.features.Scalar(np.float32)
            features = {"sentence1": text, "sentence2": text, "label": number}
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):
            return {"validation": self._generate_examples()}

        def _generate_examples(self):
            for n, (a, b, score) in enumerate(pairs):
                yield n, {"sentence1": a, "sentence2": b, "label": score}

    builder = Similar(data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    source = f"tfds:{builder.data_dir}:validation"
    assert sorted(triples(read(tasks=(), files=(f"STS-B={source}",))["STS-B"])) == sorted(pairs)
