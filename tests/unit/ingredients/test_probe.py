import pytest

from sacristan.ingredients import ConfigError
from sacristan.ingredients.probe import check_probes, check_profile

REFUSED = [
    (lambda: check_probes(0, []), r"probe\.every: got 0, expected at least 1"),
    (lambda: check_probes(1, ["gradient"]), r"probe\.what: got 'gradient', .*; did you mean gradients\?"),
    (lambda: check_probes(1, ["x"]), r"probe\.what: got 'x', which no probe measures; there are: inputs, activations"),
    (lambda: check_profile([3]), r"probe\.profile: got \[3\], expected the first and the last step, such as"),
    (lambda: check_profile([0, 4]), r"probe\.profile: got \[0, 4\]"),
    (lambda: check_profile([5, 4]), r"probe\.profile: got \[5, 4\]"),
]


@pytest.mark.parametrize(("check", "message"), REFUSED)
def test_settings_that_cannot_be_are_refused(check, message):
    with pytest.raises(ConfigError, match=message):
        check()


def test_settings_that_can_be_are_taken():
    check_probes(1, ["inputs", "images"])
    check_profile([])
    check_profile([7, 7])
