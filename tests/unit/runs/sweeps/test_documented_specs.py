"""The page on specs names all there is, and its specs are read."""

import re
from pathlib import Path

import pytest

from sacristan import runs
from sacristan.configs.files import load_yaml
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.spec.distributions import DISTRIBUTIONS
from sacristan.runs.sweeps.spec.search import METHODS, STOPPING

PAGE = (Path(runs.__file__).parents[1] / "docs" / "sweep_specs.md").read_text(encoding="utf-8")
SPECS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", SPECS)
def test_spec_of_the_page_is_read(text):
    assert read_spec(load_yaml(text)).notes == ()


def test_page_names_every_distribution_method_and_rule():
    words = set(re.findall(r"[`\w-]+", PAGE))
    assert len(SPECS) == 2
    assert [name for name in (*DISTRIBUTIONS, *METHODS, *STOPPING) if not {f"`{name}`", name} & words] == []


@pytest.mark.parametrize("method", METHODS)
def test_page_names_every_option_of_a_method(method):
    [row] = [line for line in PAGE.splitlines() if re.match(rf"\|[^|]*`{method}`[^|]*\|", line) and "|" in line[5:]][:1]
    assert [option for option in METHODS[method] if f"`{option}`" not in row] == []
