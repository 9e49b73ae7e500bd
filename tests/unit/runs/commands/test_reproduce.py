from __future__ import annotations

import pytest

from sacristan.command_line import make_parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rtol", "x"), "error: argument --rtol: got 'x', expected a number of at least 0, such as 1e-3; see"),
        (("--rtol", "nan"), "error: argument --rtol: got 'nan', expected a number of at least 0"),
        (("--atol=-1",), "error: argument --atol: got '-1', expected a number of at least 0"),
        (("--tolerance", "1e-3"), "error: argument --tolerance: got '1e-3', expected METRIC=R such as val/loss=1e-2"),
        (("--tolerance", "loss=x"), "error: argument --tolerance: got 'x', expected a number of at least 0"),
    ],
)
def test_tolerance_that_is_no_number_is_refused(words, message, capsys):
    with pytest.raises(SystemExit) as left:
        make_parser().parse_args(["reproduce", "1", *words])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(message)


def test_tolerances_are_taken():
    given = make_parser().parse_args(["reproduce", "1", "--rtol", "1e-6", "--tolerance", "a=b=inf"])
    assert (given.rtol, given.tolerance) == (1e-6, [("a=b", float("inf"))])
