"""What processes of a job send each other comes out as it was, and names nothing but the package.

What a message would run, it would run on all hosts of the job.
"""

import collections
import contextlib
import dataclasses
import functools
import inspect
import json
import math
import os
from pathlib import Path
import pickle
import subprocess
import sys

from etils import epath
import numpy as np
import pytest

from icl_jax.config import (
    ConfigError,
    CorpusConfig,
    DataConfig,
    ExperimentConfig,
    GPTConfig,
    RobertaConfig,
    StageError,
)
from icl_jax.corpus import sentence_shards
from icl_jax.corpus.documents import Document
from icl_jax.design.records.layout import Marks
from icl_jax.design.strategies import contiguous
from icl_jax.experiment.branches import Branch
from icl_jax.experiment.rounds.config import Round
from icl_jax.retrieval.search import elsewhere as search_elsewhere
from icl_jax.retrieval.search import search as search_shards
from icl_jax.workers import hosts as parallel_hosts
from icl_jax.workers import hosts_messages, hosts_session
from icl_jax.workers.hosts import _Call, _End, _Ended, _Look
from icl_jax.workers.hosts_messages import MessageError, decode, encode
from icl_jax.workers.hosts_session import HostError, LeftError
from icl_jax.workers.local import Runner


def there_and_back(value):
    return decode(encode(value))


def same(found, value) -> bool:
    """Equal, and of the same types all through."""
    if type(found) is not type(value):
        return False
    if isinstance(value, list | tuple):
        return len(found) == len(value) and all(map(same, found, value))
    if isinstance(value, dict):
        return same(list(found.items()), list(value.items()))
    return found == value


def message(told) -> bytes:
    """As somebody would write it who has not the package, or means no good."""
    return json.dumps(told).encode()


CONFIG = ExperimentConfig(
    model=RobertaConfig(head_dim=7),
    data=DataConfig(phases=((3, (0.5, 1e-300)), (4, (2.0, 3.0)))),
)
FUNCTION = "icl_jax.corpus.sentence_shards:make_shard"
MARKS = Marks(*range(len(Marks._fields)))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**80), 0.1, 1.0, -0.0, math.inf, -math.inf, "", "Ä\u2028\ud800\0",
        b"", bytes(range(256)), [], [1, [2.0, "3"], ()], (), (1, (True, None), [b"4"]),
        {}, {"a": 1, 2: (3,), (4, "b"): {None: 5}}, {"dict": []}, {"function": "os:system"},
        {1, "a", (2,)}, set(), frozenset({1, 2}), Path("a/b"), Path("/"),
        epath.Path("/a"), epath.Path("gs://bucket/a b"), np.float32(0.1), np.int64(-3),
        np.bool_(True), np.float64(1e300), np.complex64(2j),
    ],
    ids=lambda value: type(value).__name__,  # the order of a set is not fixed
)  # fmt: skip
def test_a_value_comes_out_as_it_was(value):
    assert same(there_and_back(value), value)


def test_numbers_that_equal_nothing_come_out_as_they_were():
    assert math.isnan(there_and_back(math.nan)) and type(there_and_back(math.nan)) is float
    assert math.copysign(1, there_and_back(-0.0)) == -1
    found = there_and_back([np.float32("nan"), -np.float64("inf")])
    assert np.isnan(found[0]) and type(found[0]) is np.float32 and found[1] == -np.inf


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint16).reshape(2, 3), np.array(0.5), np.empty((0, 3), np.int64),
        np.array([np.nan, np.inf, -0.0], np.float16), np.array([True, False]),
        np.arange(12).reshape(3, 4).T[::2], np.arange(3, dtype=">i4"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_array_comes_out_as_it_was_and_can_be_changed(array):
    found = there_and_back(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes() and found.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        CONFIG, MARKS, Runner(3, options=("--a",), design="gs://b"),
        Branch("a-seed1", "a", CONFIG, epath.Path("gs://b/w")),
        [Round(2, CONFIG, epath.Path("/w")), Document(*["x"] * len(Document._fields))],
        _Look("seen"), _End([Branch("b", "b", CONFIG, epath.Path("/w"))]),
        _Ended([3, 1], {"process 1": 5}, None, {}),
        sentence_shards.ShardSummary(1, 2, 3, {"long": 4}, 5, [["f", 1, "why"]], "c"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_dataclasses_and_named_tuples_come_out_as_they_were(value):
    found = there_and_back(value)
    assert same(found, value)
    assert repr(found) == repr(value)  # which tells the types of all fields


def test_a_changed_field_of_a_config_is_sent_and_each_copy_is_its_own():
    config = dataclasses.replace(CONFIG, model=GPTConfig())
    config.seed = 17
    found = there_and_back(config)
    assert found == config and found is not config and found.model is not config.model


def test_an_object_that_all_tasks_hold_is_sent_once():
    large = CorpusConfig(files=tuple(f"file {i}" for i in range(1000)))
    nested = [Runner(1), (large, Runner(2))]
    told = encode([nested, *((large, i) for i in range(1000))])
    assert len(told) < 2 * len(encode(large)) + 30_000
    found = decode(told)
    assert found[0] == nested and found[0][1][0] is found[1][0] is found[1000][0]


def test_a_call_names_its_functions_and_finds_the_same():
    task = ("{}", search_shards.search_shard, 3, Path("/a"))
    company = functools.partial(search_elsewhere._together, "{}", option=(1,))
    call = _Call(search_elsewhere._call, [task], [5], Runner(1), True, company)
    found = there_and_back(call)
    assert (found.function, found.tasks) == (call.function, call.tasks)
    assert (found.company.func, found.company.args) == (company.func, ("{}",))
    assert found.company.keywords == {"option": (1,)}


@pytest.mark.parametrize(
    "error", [HostError("process 1 (a): b"), LeftError(""), ConfigError("Ä"), StageError("c\nd")]
)
def test_an_error_comes_out_with_its_class_and_text(error):
    found = there_and_back(_End(error=error)).error
    assert type(found) is type(error) and str(found) == str(error)


@dataclasses.dataclass
class Foreign:
    """Not of the package."""

    value: int = 0


def foreign() -> None:
    """Not of the package."""


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "builtins.object"), (collections.Counter("a"), "collections.Counter"),
        (Foreign(), "test_hosts_messages:Foreign"), (foreign, "test_hosts_messages:foreign"),
        (lambda: None, "<lambda>"), (ValueError("a"), "builtins:ValueError"), (print, "builtin"),
        (functools.partial(print, 1), "builtins:print"), (Runner.of, "method"), (Runner, "type"),
        (os.system, "builtin"), (parallel_hosts.run, "icl_jax.workers.hosts:run"),
        (np.array([None]), "object"), (np.array(["a"]), "U1"), (np.zeros(1, "i4,f4"), "array of"),
        (np.ma.array([1]), "MaskedArray"), ([{1: {"a": (object(),)}}], "builtins.object"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_named(value, named):
    with pytest.raises(TypeError, match="cannot be sent to another process") as caught:
        encode(value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "os:system", "posix:system", "builtins:eval", "subprocess:run", "tests.a_job:start_job",
        "icl_jax.corpus.sentence_shards:os.system", "icl_jax.corpus.sentence_shards:Path",
        "icl_jax.corpus.sentence_shards:read_documents",  # of another module
        "icl_jax.corpus.sentence_shards:json", "icl_jax.corpus.sentence_shards:__builtins__",
        "icl_jax.corpus.sentence_shards:make_shard.__globals__", "icl_jax.corpus.none:a",
        "icl_jax.corpus.sentence_shards:make_shard:os", "icl_jax.corpus.sentence_shards",
        "icl_jax.corpus.sentence_shards:<lambda>", "icl_jax.corpus..os:system",
        "icl_jax.corpus.../../os:system", "icl_jax.corpuses:a", "icl_jax.workers.local:os", ":", "",
        "icl_jax.workers.local:os.system", "__main__:main", "icl_jax.corpus.sentence_shards:None",
        # Of the package, but they open pickles or start processes.
        "icl_jax.workers.beam:call", "icl_jax.workers.job:_call_witness",
        7, None, ["os", "system"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["function", "partial", "object", "error"])
def test_a_foreign_name_in_a_message_is_refused(kind, name):
    held = {
        "function": name,
        "partial": [name, {"tuple": []}, {"dict": []}],
        "object": [name, []],
        "error": [name, "text"],
    }[kind]
    with pytest.raises(MessageError, match="message of another process"):
        decode(message([1, {"tuple": [{kind: held}]}]))


@pytest.mark.parametrize(
    "name",
    [
        "os:system", "icl_jaxes:a", "icl_jax.corpuses:a", "icl_jax.corpus..os:system",
        "icl_jax.corpus/../os:system", "icl_jax.corpus.../os:system", f"{FUNCTION}.__globals__",
        f"{FUNCTION}:os", "icl_jax.corpus.sentence_shards:<lambda>", "icl_jax.corpus",
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_of_the_package_is_refused_before_any_import(name, monkeypatch):
    imported = []
    monkeypatch.setattr(hosts_messages.importlib, "import_module", imported.append)
    with pytest.raises(MessageError, match="expected one of icl_jax"):
        decode(message({"function": name}))
    assert not imported


def test_a_foreign_module_is_not_even_imported(tmp_path):
    (tmp_path / "evil.py").write_text("print('imported')\ndef run(): pass\nclass Run: pass\n")
    code = (
        "from icl_jax.workers import hosts_messages as m\n"
        'for told in (b\'{"function":"evil:run"}\', b\'{"object":["evil:Run",{}]}\',\n'
        '             b\'{"error":["evil:Run",""]}\'):\n'
        "    try: m.decode(told)\n"
        "    except m.MessageError: print('refused')\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["refused"] * 3


class Opened:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_pickle_is_refused_unopened(tmp_path):
    pickled = pickle.dumps(Opened(tmp_path / "opened"))
    with pytest.raises(MessageError, match="cannot be read"):
        decode(pickled)
    assert not any(tmp_path.iterdir())
    pickle.loads(pickled)
    assert any(tmp_path.iterdir())  # it would have been noticed


@pytest.mark.parametrize(
    "told",
    [
        {}, {"tuple": [], "list": []}, {"strange": 1}, {"tuple": 3}, {"dict": [[1]]},
        {"set": [[1]]}, {"bytes": "?"}, {"path": 3}, {"epath": "ssh://a"}, {"array": []},
        {"array": ["|O", [1], "AAAAAAAAAAA="]}, {"array": ["<i4", [3], "AAAA"]},
        {"array": ["i4,O", [1], "AAAA"]}, {"array": ["|V3", [1], "AAAA"]},
        {"number": ["<f4", [], ""]},
        {"object": ["icl_jax.workers.local:Runner", [["workers", 1]]]},
        {"again": 0}, {"again": "a"},
        {"object": ["icl_jax.workers.local:Runner", [["__class__", 1]]]},
        {"object": ["icl_jax.workers.local:KeptOpen", []]},
        {"object": ["icl_jax.config:StageError", []]},
        {"error": ["icl_jax.workers.local:Runner", "a"]},
        {"function": "icl_jax.corpus.shards:Shard"},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_message_is_refused(told):
    with pytest.raises(MessageError, match="message of another process"):
        decode(message(told))


@pytest.mark.parametrize("told", [b"", b"\xff\xfe\xfd", b"[1", b"[" * 100_000, b"9" * 10_000])
def test_bytes_that_are_no_message_are_refused(told):
    with pytest.raises(MessageError, match="cannot be read"):
        decode(told)


def test_no_code_of_a_class_runs_when_a_message_is_opened(monkeypatch):
    told = [encode(Runner(2)), encode(HostError("a")), encode(MARKS)]

    called = []
    for kind in (Runner, HostError):
        monkeypatch.setattr(kind, "__init__", lambda *held, **more: called.append("__init__"))
    assert [type(decode(each)) for each in told] == [Runner, HostError, Marks]
    monkeypatch.setattr(Runner, "__iter__", lambda self: called.append("__iter__"), raising=False)
    runner = json.loads(told[0])
    for held in (
        runner,
        [runner],
        ["icl_jax.workers.local:Runner", runner],
        [FUNCTION, runner, runner],
    ):
        for kind in ("tuple", "set", "dict", "partial", "object", "error", "path"):
            with contextlib.suppress(MessageError):  # a tuple may hold it
                decode(message({kind: held}))
    assert not called


def test_only_what_is_asked_for_adds_functions_of_other_modules(monkeypatch):
    assert hosts_messages.CLASSES_OF == ("icl_jax",)
    assert all(name.startswith("icl_jax.") for name in hosts_messages.FUNCTIONS_OF)
    more = (*hosts_messages.FUNCTIONS_OF, __name__)
    monkeypatch.setattr(hosts_messages, "FUNCTIONS_OF", more)
    assert there_and_back(foreign) is foreign
    assert there_and_back(contiguous.make_shard) is contiguous.make_shard


def test_all_that_run_shards_are_in_packages_whose_functions_can_be_sent():
    package = Path(hosts_messages.__file__).parents[1]
    calling = [path for path in package.rglob("*.py") if " run_shards(" in path.read_text()]
    parts = {path.relative_to(package).parts[0] for path in calling} - {"workers"}
    assert {f"icl_jax.{part}" for part in parts} == {*hosts_messages.FUNCTIONS_OF}


def test_hosts_open_no_pickles():
    for module in (hosts_messages, hosts_session, parallel_hosts):
        source = inspect.getsource(module)
        for way in ("import pickle", "pickle.", "marshal", "cloudpickle", "allow_pickle"):
            assert way not in source


class Store:
    """The job's store, of one process."""

    def __init__(self):
        self.held = {}

    def key_value_set_bytes(self, key, value):
        self.held[key] = value

    def blocking_key_value_get_bytes(self, key, timeout):
        return self.held[key]


def test_a_session_goes_on_after_what_cannot_be_sent_or_read(monkeypatch):
    store = Store()
    monkeypatch.setattr(hosts_session, "job_store", lambda: store)
    session = hosts_session.Session(7)
    with pytest.raises(TypeError, match=r"builtins\.object"):
        session.tell(_End(object()))
    assert session.tell(_Look("a")) == 0  # else followers would wait for a number never told
    store.held["icl_jax/hosts/7/told/1"] = pickle.dumps(_Look("a"))
    heard = session.hear()
    assert next(heard) == (0, _Look("a"))
    number, told = next(heard)
    assert number == 1 and isinstance(told, MessageError)
    assert isinstance(session.blame(told), HostError)
