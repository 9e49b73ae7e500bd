"""Definitions and files of a sweep: ids that can be typed, and one sentence where a file is damaged."""

import dataclasses
import json

import pytest

from sacristan.runs import SweepError
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study import Study
from sacristan.runs.sweeps.study.home import Place

SPEC = read_spec({"method": "grid", "parameters": {"x": {"values": [1, 2]}}})
TINY = Definition("s", "tiny", SPEC.document, "tiny.py", "", "/", "/", (), (), 0, None, "", "")


def test_an_id_is_no_number_and_changes_with_what_is_asked_alone():
    ids = [Definition.id_of("tiny", SPEC.document, (), seed) for seed in range(200)]
    assert len(set(ids)) == 200
    assert all(set(id) & set("abcdf") for id in ids)
    assert Definition.id_of("tiny", {**SPEC.document, "run_cap": 3, "name": "n"}, (), 0) == ids[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{broken", "cannot be read"),
        ("3", "got 3, expected a sweep"),
        (json.dumps({**TINY.document(), "settings": 3}), "got 3 as 'settings'"),
        (json.dumps({**TINY.document(), "spec": None}), "got None as 'spec'"),
    ],
)
def test_a_damaged_definition_is_refused(tmp_path, text, message):
    home = Place(tmp_path).home("s")
    assert home.create(TINY)
    (tmp_path / "sweeps" / "s" / "sweep.json").write_text(text)
    with pytest.raises(SweepError, match=message):
        home.definition()


def test_a_damaged_journal_is_refused_and_a_damaged_claim_is_nobodys(tmp_path):
    home = Place(tmp_path).home("s")
    home.create(TINY)
    Study(home, TINY, SPEC).take(0)
    path = tmp_path / "sweeps" / "s" / "study.journal"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "garbage{\n", *others]))
    with pytest.raises(SweepError, match=r"study\.journal: a line cannot be read"):
        Study(home, TINY, SPEC)
    assert home.claims(0, "a").add(0)
    (tmp_path / "sweeps" / "s" / "claims" / "000000.0").write_bytes(b"\xff\xfe")
    assert home.last_claims([0])[0].owner not in home.living_agents()


def test_a_definition_is_read_back(tmp_path):
    home = Place(tmp_path).home("s")
    assert home.create(TINY)
    assert not home.create(dataclasses.replace(TINY, seed=1))
    assert home.definition() == TINY
