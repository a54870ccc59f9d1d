"""The built-in corpus `builtin:encyclopaedia`, about people who never lived.

Each person has four facts: birthplace, profession, teacher and a work. Each fact is stated in four
documents, each time in other words: in the article on the person; in that on the town or the work,
or in a register; in an almanac; in a letter. Quiz pages ask about one half of the people and do not
answer. `questions()` asks about the other half, about whom no document asks anything.

python -m icl_jax.corpus.builtin --to=FOLDER

writes documents.jsonl and questions.jsonl there, as examples of the format for files of your own.
"""

from collections.abc import Callable, Iterator, Sequence
import functools
import itertools
import json
from pathlib import Path
from typing import NamedTuple

from absl import flags
import google_crc32c
import numpy as np

from icl_jax.cli import Flag, command
from icl_jax.config import ConfigError
from icl_jax.corpus import builtin_words as words
from icl_jax.files.step_folder import beside

_PREFIX = "builtin:"
_SEED = 2110
PEOPLE, TEACHERS, TOWNS = 300, 24, 30
PAGE_PEOPLE = 6  # of a register, an almanac or a letter
QUIZ_PEOPLE = 5  # of a quiz page
QUIZ_WORDINGS = 2  # of each question on it
ARTICLE, TOPIC, ALMANAC, LETTER = range(4)  # where a fact is stated; a register is a topic


class Person(NamedTuple):
    """A person and their facts; the fields are the names used in the wordings."""

    number: int  # quiz pages ask about those below half of `PEOPLE`
    name: str
    town: str
    profession: str
    teacher: str
    kind: str  # of the work
    work: str

    def say(self, wording: str) -> str:
        """A wording about this person."""
        return wording.format(**self._asdict())


def is_builtin(source: str) -> bool:
    """Whether a source is generated here rather than read from a file."""
    return source.startswith(_PREFIX)


def check(source: str, field: str) -> None:
    """Stops on an unknown name; `field` is where the user gave it."""
    if source.removeprefix(_PREFIX) not in _BUILTIN:
        known = ", ".join(_PREFIX + name for name in _BUILTIN)
        raise ConfigError(f"{field}: there is no '{source}'; expected one of: {known}")


def read(source: str, start: int = 0, stop: int | None = None) -> Iterator[dict]:
    """The documents `start` .. `stop` - 1 of a source."""
    return itertools.islice(_make(source)[0], start, stop)


def read_questions(source: str, field: str) -> list[dict]:
    """The questions of a source."""
    check(source, field)
    return _make(source)[1]


def size(source: str) -> tuple[int, int]:
    """The number of documents, and of bytes in their text."""
    made, _ = _make(source)
    return len(made), sum(len(document["text"].encode()) for document in made)


def describe(source: str) -> dict:
    """Size and checksum of everything in a source, including its questions."""
    content = json.dumps(_make(source)).encode()
    return {"bytes": len(content), "checksum": f"{google_crc32c.value(content):08x}"}


def documents() -> Iterator[dict]:
    """The encyclopaedia: `id`, `title` and `text` of each document."""
    people = make_people()
    yield from _articles(people)
    yield from _topics(people)
    yield from _pages(people)
    yield from _letters(people)
    yield from _quiz_pages(people[: PEOPLE // 2])


def questions() -> list[dict]:
    """One `question` for each fact of the other half, with every right `answer`.

    The right answers are the fact itself and each sentence that states it.
    """
    asked = []
    for person in make_people()[PEOPLE // 2 :]:
        for fact in words.QUESTIONS:
            said = [person.say(wording) for wording in words.STATEMENTS[fact]]
            asked.append(
                {"question": _ask(person, fact)[0], "answer": [getattr(person, fact), *said]}
            )
    return asked


@functools.lru_cache(maxsize=1)
def make_people() -> tuple[Person, ...]:
    """All people of the encyclopaedia, in random order; their teachers are other people."""
    surnames = _names(words.SURNAME_BEGINS, words.SURNAME_ENDS, TEACHERS + PEOPLE)
    names = [f"{first} {last}" for first, last in zip(itertools.cycle(words.FIRST_NAMES), surnames)]
    towns = _names(words.TOWN_BEGINS, words.TOWN_ENDS, TOWNS)
    titles = _names([f"The {word} " for word in words.TITLE_BEGINS], words.TITLE_ENDS, PEOPLE)
    choices = (towns, words.PROFESSIONS, names[:TEACHERS], words.WORK_KINDS)
    columns = [_deal(several, PEOPLE, "deal", i) for i, several in enumerate(choices)]
    return tuple(map(Person, range(PEOPLE), names[TEACHERS:], *columns, titles))


def _articles(people: Sequence[Person]) -> Iterator[dict]:
    for person in people:
        facts = _shuffle(list(words.STATEMENTS), "article", person.number)
        said = [_state(person, fact, ARTICLE) for fact in facts]
        yield _document(f"person/{person.number}", person.name, said)


def _topics(people: Sequence[Person]) -> Iterator[dict]:
    """An article on each town, with everyone born there, and on each work."""
    for fact, openings in words.TOPICS.items():
        topics: dict[str, list[Person]] = {}
        for person in people:
            topics.setdefault(getattr(person, fact), []).append(person)
        for number, (topic, members) in enumerate(topics.items()):
            opening = openings[number % len(openings)].format(topic=topic)
            said = [_state(person, fact, TOPIC) for person in members]
            yield _document(f"{fact}/{number}", topic, [opening, *said])


def _pages(people: Sequence[Person]) -> Iterator[dict]:
    """Registers and almanacs: one fact of several people on each page."""
    for fact, place in itertools.product(words.STATEMENTS, (TOPIC, ALMANAC)):
        if place == TOPIC and fact in words.TOPICS:
            continue
        title, openings = words.PAGES["register" if place == TOPIC else "almanac"][fact]
        for number, members in enumerate(_pick_groups(people, "page", fact, place)):
            said = [_state(person, fact, place) for person in members]
            opening = openings[number % len(openings)]
            name = f"{title}, page {number + 1}"
            yield _document(f"page/{fact}/{place}/{number}", name, [opening, *said])


def _letters(people: Sequence[Person]) -> Iterator[dict]:
    """A fact about each of several people; each person is in as many letters as there are facts."""
    facts = list(words.STATEMENTS)
    for turn in range(len(facts)):
        for number, members in enumerate(_pick_groups(people, "letter", turn)):
            said = [_state(p, facts[(p.number + turn) % len(facts)], LETTER) for p in members]
            begin, end = words.LETTERS[number % len(words.LETTERS)]
            yield _document(f"letter/{turn}/{number}", "A letter", [begin, *said, end])


def _quiz_pages(people: Sequence[Person]) -> Iterator[dict]:
    for number, first in enumerate(range(0, len(people), QUIZ_PEOPLE)):
        members = people[first : first + QUIZ_PEOPLE]
        asked = [_ask(p, fact)[:QUIZ_WORDINGS] for p in members for fact in words.QUESTIONS]
        asked = _shuffle(list(itertools.chain.from_iterable(asked)), "quiz", number)
        yield _document(f"quiz/{number}", f"Quiz {number + 1}", asked)


def _state(person: Person, fact: str, place: int) -> str:
    """The fact as stated in this place: never twice in the same words for one person."""
    return person.say(_wordings(fact, person.number)[place])


@functools.lru_cache(maxsize=PEOPLE * len(words.STATEMENTS))
def _wordings(fact: str, number: int) -> list[str]:
    return _shuffle(words.STATEMENTS[fact], "state", fact, number)


def _ask(person: Person, fact: str) -> list[str]:
    """The question for the fact in all wordings, in random order."""
    return list(map(person.say, _shuffle(words.QUESTIONS[fact], "ask", fact, person.number)))


def _document(name: str, title: str, sentences: Sequence[str]) -> dict:
    return {"id": name, "title": title, "text": "\n".join(sentences)}


def _names(begins: Sequence[str], ends: Sequence[str], count: int) -> list[str]:
    """Distinct names, each a beginning and an end."""
    return _shuffle([begin + end for begin in begins for end in ends], begins[0], count)[:count]


def _deal(choices: Sequence[str], count: int, *stream: str | int) -> list[str]:
    """Each choice about equally often."""
    return _shuffle(list(itertools.islice(itertools.cycle(choices), count)), *stream)


def _pick_groups(people: Sequence[Person], *stream: str | int) -> list[Sequence[Person]]:
    order = _shuffle(people, *stream)
    return [order[i : i + PAGE_PEOPLE] for i in range(0, len(order), PAGE_PEOPLE)]


def _shuffle(items: Sequence, *stream: str | int) -> list:
    """Shuffled in an order that depends only on the stream, on any machine."""
    seed = google_crc32c.value(repr(stream).encode())
    order = np.random.RandomState([_SEED, seed]).permutation(len(items))
    return [items[i] for i in order]


@functools.lru_cache(maxsize=1)
def _make(source: str) -> tuple[list[dict], list[dict]]:
    make_documents, make_questions = _BUILTIN[source.removeprefix(_PREFIX)]
    return list(make_documents()), make_questions()


_BUILTIN: dict[str, tuple[Callable, Callable]] = {"encyclopaedia": (documents, questions)}


@command(Flag("to=FOLDER", "the folder to write to", required=True))
def main(given: flags.FlagValues) -> None:
    """Writes the encyclopaedia and its questions into a folder."""
    folder = Path(given.to)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in {"documents": list(documents()), "questions": questions()}.items():
        with beside(folder / f"{name}.jsonl") as partial:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{folder / name}.jsonl: {len(rows):,} {name}")


if __name__ == "__main__":
    main()
