"""Random questions about random runs with odd values: folders, MongoDB and a reference in plain Python agree.

The reference is written by what `sacristan.runs.query.filters` promises, and shares no code with the stores.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from datetime import datetime

import pytest

from sacristan.observers.mongo.documents import RunDocument
from sacristan.runs import FilterError, Words, open_store

MISSING = object()
LONG = "a" * 5_000
TEXTS = ["", "a", "cnn", "CNN", "mlp", "é", "٣", "3", "1.0", "None", "a.b", "two\nlines", "\ud800"]
TEXTS += [LONG + "x", LONG + "y"]
NUMBERS = [0, 1, -1, 3, 0.1, 1.0, -0.0, 1e-3, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), 2**63, 2**64]
NUMBERS += [2**64 + 1, float(2**64), float(2**63), -(2**70), 10**33 + 1, 10**35, 1e300, math.nan, math.inf, -math.inf]
LISTS = [[], [1], [1.0], [True], [[1], [2]], [[1]], [None], ["a"], [2**70], [math.nan], [1, 2.5, "é"], [0] * 3_000]
VALUES = [MISSING, None, True, False, {}, [{"a": 1}], *TEXTS, *NUMBERS, *LISTS]
# With an entry that a run may lack, and one below a list or a number, which nobody has.
NAMES = ["x", "rare", "deep", "deep.a", "deep.a.b", "deep.0", "info.n", "info.deep.a", "result", "loss.min"]
NAMES += ["val.acc.max", "status", "command", "name", "note", "tags.best", "id", "start", "stop", "duration"]
# Fields of every run: they are never rejected, nor is the order of a text there.
FIELDS_OF_ALL_RUNS = {"result", "status", "command", "name", "note", "id", "start", "stop", "duration"}
# Names that are asked for between backticks: metrics' statistics, then entries of the config.
ODD_NAMES = ["AP@IoU=0.5.max", "recall@p>=0.9.max", "precision and recall.max", "A<B.max", "val/acc,top1.max"]
ODD_NAMES += ["odd`s.max", "a = b", "in (1, 2)", "x, y", "-x", "`x`", "it's"]
MISSPELT = ["staus", "stat", "X", "xx", "rar", "deep.a.c", "info.m", "los.min", "loss.mim", "ids", "tags.bst"]
STATUSES = ["COMPLETED", "FAILED", "QUEUED", "DEAD", "INTERRUPTED"]
MISSPELT_STATUSES = ["completed", "Completed", "COMPLTED", "failed", "", "dead", "DEADS", "3", 3, True]
ORDERS = ("<", "<=", ">", ">=")
# On a long text Python takes longer for it than anybody has.
EXPONENTIAL = "^(a+)+y$"
# Lists for `in` without a single plain value.
ODD_CHOICES = [[], [None], [math.nan], [None, math.nan]]
SEARCHES = ["cnn", "CNN", "É", "é", "aa x", "ain one", "lines two", "best", "%", "there good", "", "udc", "3", "comp"]
PATTERNS = ["^c", "(?i)cnn", "a+x", "^a+$", "é", "[0-9]", "^$", r"\.", "LETE", "x-", EXPONENTIAL]


def made_run(chance, number):
    """Return a run's run.json, config, info, summary and notes."""
    value = lambda: chance.choice(VALUES)  # noqa: E731
    entry = {"uid": f"{number:032x}", "format": "sacristan-1", "experiment": {"name": chance.choice(["one", "two"])}}
    entry |= {"command": chance.choice(["main", "evaluate"]), "host": {"hostname": "there"}, "result": value()}
    entry["status"] = chance.choice(["COMPLETED", "COMPLETED", "FAILED", "INTERRUPTED", "QUEUED"])
    for name in ("start_time", "stop_time", "heartbeat"):
        second, micro = chance.choice([0, 0, 1, 30, 59]), chance.choice([0, 1, 999, 1_000, 500_000, 999_999])
        entry[name] = chance.choice([MISSING, None, f"2026-01-0{chance.randint(1, 3)}T12:00:{second:02}.{micro:06}"])
    deep = chance.choice(
        [MISSING, None, 3, {}, {"a": value()}, {"a": {"b": value()}}, [{"a": 1, "b": 2}], [8, 9], {"0": 1}]
    )
    config = {name: value() for name in ODD_NAMES if not name.endswith(".max") and chance.random() < 0.8}
    config |= {"x": value(), "rare": value() if chance.random() < 0.1 else MISSING, "deep": deep}
    info = {"n": value(), "deep": chance.choice([MISSING, [{"a": 1}], {"a": value()}])}
    statistic = lambda: chance.choice([0.5, 0.25, 1, math.nan, math.inf, None])  # noqa: E731
    summary = {"loss": {"min": statistic()}, "val.acc": {"max": statistic()}} if chance.random() < 0.8 else {}
    odd = [name.removesuffix(".max") for name in ODD_NAMES if name.endswith(".max")]
    summary |= {name: {"max": statistic()} for name in odd if chance.random() < 0.8}
    notes = {"tags": chance.choice([{}, {"best": True}]), "note": chance.choice(["", "good", "a"])}
    return [_without_missing(part) for part in (entry, config, info, summary, notes)]


def _without_missing(value):
    return {k: _without_missing(v) for k, v in value.items() if v is not MISSING} if isinstance(value, dict) else value


def write(runs, folder, database):
    """Write the runs into a folder, and what is delivered of them into a database."""
    documents = []
    for id, (entry, config, info, summary, notes) in runs.items():
        parts = {"run": entry, "config": config, "info": info, "summary": summary, "notes": notes}
        (folder / id).mkdir(parents=True)
        for name, part in parts.items():
            (folder / id / f"{name}.json").write_text(json.dumps(part))
        built = RunDocument(folder / id, entry["uid"]).build(entry, list(summary))
        documents.append({**built, **notes, "uid": entry["uid"], "_id": int(id) if id.isdigit() else id})
    database.runs.insert_many(documents)


# ---------------------------------------------------------------------- the reference


class AMapping:
    """Stands for a mapping, which is equal to nothing."""


def plain(value):
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return str(value) if abs(value) >= 10**34 else value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return (
        [plain(item) for item in value] if isinstance(value, list) else AMapping if isinstance(value, dict) else value
    )


def milliseconds(text):
    """Return a time in whole milliseconds, as text and as number."""
    try:
        time = datetime.fromisoformat(text)
    except TypeError:
        return None, None
    time = time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=None)  # all of them are in UTC
    return time.isoformat(), (time - datetime(2026, 1, 1)).total_seconds()


def value_of(id, run, name):
    entry, config, info, summary, notes = run
    if name == "id":
        return int(id) if id.isdigit() else id
    if name in ("start", "stop"):
        return milliseconds(entry.get(f"{name}_time"))[0]
    if name == "duration":
        start = milliseconds(entry.get("start_time"))[1]
        stop = milliseconds(entry.get("stop_time"))[1]
        stop = milliseconds(entry.get("heartbeat"))[1] if stop is None else stop
        return None if start is None or stop is None or stop < start else round(stop - start, 6)
    if name in ("loss.min", "val.acc.max", *ODD_NAMES):
        if not name.endswith(".max") and name != "loss.min":
            return plain(config.get(name))
        metric, _, statistic = name.rpartition(".")
        return plain(summary.get(metric, {}).get(statistic))
    roots = {"info": {"info": info}, "tags": notes, "note": notes, "name": {"name": entry["experiment"]["name"]}}
    found = roots.get(name.partition(".")[0], entry if name in ("status", "command", "result") else config)
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return plain(found)


def kind_of(value):
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else type(value).__name__


def equal(value, wanted):
    if kind_of(value) != kind_of(wanted) or AMapping in (value, wanted):
        return False
    if isinstance(value, list):
        return len(value) == len(wanted) and all(map(equal, value, wanted))
    return value == wanted or (value != value and wanted != wanted)


def holds(value, operator, wanted):
    if operator == "in":
        return any(equal(value, plain(one)) for one in wanted)
    if operator in ("==", "!="):
        return equal(value, plain(wanted)) == (operator == "==")
    if operator == "~":
        pattern = "^a+y$" if wanted == EXPONENTIAL else wanted
        return isinstance(value, str) and re.search(pattern, value, re.ASCII) is not None
    wanted = float(wanted) if plain(wanted) != wanted and isinstance(wanted, int) else plain(wanted)
    if kind_of(value) != kind_of(wanted):
        return False
    return {"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}[operator]


def as_id(value):
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def as_time(value):
    return milliseconds(value)[0] if isinstance(value, str) else value


def matches(tree, id, run):
    if isinstance(tree, dict):
        [(word, parts)] = tree.items()
        found = [matches(part, id, run) for part in parts]
        return all(found) if word == "$and" else any(found) if word == "$or" else not any(found)
    if isinstance(tree, Words):
        texts = [lower(text) for text in texts_of(run)]
        return all(any(lower(word) in text for text in texts) for word in plain(tree.text).split())
    name, operator, wanted = tree
    if name in ("start", "stop"):
        wanted = [as_time(one) for one in wanted] if operator == "in" else as_time(wanted)
    if name == "id" and operator != "~":
        wanted = [as_id(one) for one in wanted] if operator == "in" else as_id(wanted)
    value = value_of(id, run, name)
    return holds(str(value) if name == "id" and operator == "~" else value, operator, wanted)


def is_rejected(tree, runs, negated=False):
    """Return whether a filter names what no run has, or asks for the order of a text where no run has one."""
    if isinstance(tree, Words):
        return False
    if isinstance(tree, dict):
        [(word, parts)] = tree.items()
        return any(is_rejected(part, runs, negated != (word == "$nor")) for part in parts)
    name, operator, wanted = tree
    negated, operator = (not negated, "==") if operator == "!=" else (negated, operator)
    choices = wanted if operator == "in" else [wanted]
    if name == "status":
        if operator == "~":
            return not any(holds(status, "~", wanted) for status in STATUSES)
        return not all(one is None or one in STATUSES for one in choices)
    if name == "id":
        known = {int(id) if id.isdigit() else id for id in runs}
        return negated and operator in ("==", "in") and not all(one is None or as_id(one) in known for one in choices)
    if name.startswith("tags."):
        odd = operator not in ("==", "in") or not all(one is None or one is True for one in choices)
        return odd or (name == "tags.bst" and holds(None, operator, wanted) != negated)
    if name in FIELDS_OF_ALL_RUNS:
        return False
    if not any(has(run, name) for run in runs.values()):
        return True
    values = (plain(value_of(id, run, name)) for id, run in runs.items())
    return operator in ORDERS and isinstance(wanted, str) and not any(isinstance(value, str) for value in values)


def has(run, name):
    """Return whether a run has an entry of the config or the info, or a statistic."""
    _, config, info, summary, _ = run
    if name in ODD_NAMES and not name.endswith(".max"):
        return name in config
    if name.rpartition(".")[2] in ("min", "mim", "max"):
        metric, _, statistic = name.rpartition(".")
        return statistic in summary.get(metric, {})
    found = {"info": info} if name.startswith("info.") else config
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True


def texts_of(run):
    entry, config, _, _, notes = run

    def below(value):
        return [text for one in value.values() for text in below(one)] if isinstance(value, dict) else [plain(value)]

    others = (entry["experiment"]["name"], entry["command"], "there", notes["note"], entry.get("result"))
    values = [*below(config), *map(plain, others), *notes["tags"]]
    return [value for value in values if isinstance(value, str)]


def lower(text):
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def expected(runs, tree, sort, limit):
    by_id = sorted(runs, key=lambda id: (not id.isdigit(), int(id) if id.isdigit() else 0, id))
    found = [id for id in by_id if matches(tree, id, runs[id])]
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    name = next((odd for odd in ODD_NAMES if typed(odd) == name), name)
    if name == "id":
        return (found[::-1] if descending else found)[:limit]
    groups = {"number": [], "bool": [], "text": [], "": []}
    for id in found:
        value = value_of(id, runs[id], name)
        kind = kind_of(value) if value == value else ""
        groups[kind if kind in groups else ""].append(id)
    ordered = [
        id
        for kind, ids in groups.items()
        for id in (ids if not kind else sorted(ids, key=lambda i: value_of(i, runs[i], name), reverse=descending))
    ]
    return ordered[:limit]


# ---------------------------------------------------------------------- the questions


def condition(chance):
    name = chance.choice(chance.choices([NAMES, ODD_NAMES, MISSPELT], [75, 20, 5])[0])
    operator = chance.choice(["==", "==", "!=", "<", "<=", ">", ">=", "in", "~"])
    if operator == "~" and name not in ("start", "stop"):
        return name, operator, chance.choice(PATTERNS)
    pool = [None, True, False, *TEXTS, *NUMBERS]
    if name in ("start", "stop"):
        pool = [
            None,
            1,
            "2026-01-02",
            "2026-01-01T12:00:00.000500",
            "2026-01-02T12:00:30.999",
            "2026-01-02T12:00Z",
        ]
        operator = "==" if operator == "~" else operator
    elif name == "id":
        pool = ["7", 7, 2.5, "x-1", "x-29", "12", "9", 2**64]
    elif name == "duration":
        pool = [None, 0, 0.001, 59.5, 86_400, True]
    elif name == "status":
        pool = [*STATUSES, None, *(MISSPELT_STATUSES if chance.random() < 0.1 else ())]
    elif name.startswith("tags.") and chance.random() < 0.9:
        pool, operator = [True, None], chance.choice(["==", "!=", "in"])
    elif name in ("command", "name"):
        pool = ["COMPLETED", "FAILED", "main", "one", None]
    if operator == "in":
        if chance.random() < 0.4:
            return name, operator, chance.choice(ODD_CHOICES)
        pool = [*pool, *(LISTS if name.partition(".")[0] not in ("start", "stop", "id", "status", "tags") else [])]
        return name, operator, chance.sample(pool, min(4, len(pool)))
    if operator in ("==", "!="):
        return name, operator, chance.choice([*pool, *(LISTS if name in ("x", "result", "deep.a") else [])])
    return name, operator, chance.choice([one for one in pool if not isinstance(one, bool | None)])


def question(chance):
    """Return a filter, a sort, a limit and an offset."""

    def tree(depth):
        if depth == 0 or chance.random() < 0.5:
            return condition(chance) if chance.random() < 0.85 else Words(chance.choice(SEARCHES))
        word = chance.choice(["$and", "$or", "$nor"])
        return {word: [tree(depth - 1) for _ in range(chance.randint(1, 3))]}

    sort = chance.choice(["", "-"]) + typed(chance.choice([*NAMES, *ODD_NAMES]))
    return tree(2), sort, chance.choice([None, None, 0, 1, 7]), chance.choice([0, 0, 1, 5])


def asked(tree):
    """Return a filter of the reference as a store takes it."""
    if isinstance(tree, dict):
        return {word: [asked(part) for part in parts] for word, parts in tree.items()}
    if isinstance(tree, Words) or tree[0] not in ODD_NAMES:
        return [tree]
    name, operator, wanted = tree
    if operator == "~" or not isinstance(wanted, list | float):
        return f" {typed(name)} {operator} {wanted if operator == '~' else repr(wanted)}"
    return [(typed(name), operator, wanted)]


def typed(name):
    """Return a name as people type it."""
    return "`" + name.replace("`", "``") + "`" if name in ODD_NAMES else name


def check(stores, runs, tree, sort="id", limit=None, offset=0):
    """Check that all stores answer a question as the reference does."""
    if is_rejected(tree, runs):
        messages = set()
        for store in stores:
            for ask in (lambda s: s.find(asked(tree), sort, limit, (), offset), lambda s: s.count(asked(tree))):
                with pytest.raises(FilterError) as error:
                    ask(store)
                messages.add(str(error.value).partition(";")[0])
        assert len(messages) == 1, messages
        return False
    wanted = expected(runs, tree, sort, None)
    for store in stores:
        found = [run.id for run in store.find(asked(tree), sort, limit, columns=(), offset=offset)]
        assert found == wanted[offset:][:limit], (store.where, tree, sort, limit, offset)
        assert store.count(asked(tree)) == len(wanted), (store.where, tree)
        assert store.count(asked(tree), 3) == min(len(wanted), 3), (store.where, tree)
    return True


def agree(seed, num_runs, num_questions, folder, database, url):
    chance = random.Random(seed)
    runs = {f"x-{n}" if n % 29 == 0 else str(n): made_run(chance, n) for n in range(1, num_runs + 1)}
    write(runs, folder, database)
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(open_store(where)) for where in (folder, f"{url}/{database.name}")]
        answered = [check(stores, runs, *question(chance)) for _ in range(num_questions)]
        assert 0.5 < sum(answered) / num_questions < 1
        # A list without a plain value, ahead of and behind one with some.
        for odd in ODD_CHOICES:
            for name, choices in (("x", [1, 3, "a", True]), ("id", [*range(1, 9)])):
                for parts in ([("rare", "in", odd), (name, "in", choices)], [(name, "in", choices), ("id", "in", odd)]):
                    check(stores, runs, {chance.choice(["$and", "$or", "$nor"]): parts})


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_folder_database_and_reference_agree(tmp_path, database, mongo_url, seed):
    agree(seed, 60, 40, tmp_path, database, mongo_url)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_folder_database_and_reference_agree_on_many_questions_about_many_runs(tmp_path, database, mongo_url):
    agree(2026, 3_000, 300, tmp_path, database, mongo_url)
