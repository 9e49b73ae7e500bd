"""The grammar of blocks in reports."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.runs import ReportError
from sacristan.runs.comparison.report_blocks import KINDS, Block, end_of_block


def test_words_and_options_are_read_as_written():
    block = Block.of(r'{{ curves train/loss, "val/loss - train/loss" where="lr<1e-3 and note=\"a \\ b\"" log_y=yes }}')
    assert block.kind == "curves"
    assert block.words == ("train/loss", "val/loss - train/loss")
    assert block.title == "train/loss, val/loss - train/loss"
    assert block.text("where") == r'lr<1e-3 and note="a \ b"'
    assert (block.flag("log_y"), block.flag("joined"), block.share("smoothing")) == (True, False, 0.0)


def test_braces_between_quotes_end_no_block():
    text = "see {{runs where=\"a='}}'\"}} here"
    assert text[4 : end_of_block(text, 4)] == "{{runs where=\"a='}}'\"}}"
    assert end_of_block(text, 0) == 0
    assert end_of_block("{{runs\n}}", 0) == 0


def test_fields_of_a_chart_are_quoted_as_panels_name_them():
    block = Block.of('{{scatter lr "`AP@IoU=0.5`.max" "a b"}}')
    assert block.title == "scatter(lr, `AP@IoU=0.5.max`, `a b`)"


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_valid(kind):
    assert Block.of(KINDS[kind].example).kind == kind


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{}}", "there is no block ''; there are: runs, curves"),
        ("{{rans}}", "there is no block 'rans'; did you mean runs?"),
        ("{{where=x}}", "there is no block 'where'"),
        ("{{runs lr<1e-3}}", "runs got 1 word, expected 0, such as {{runs where="),
        ("{{curves}}", "curves got 0 words, expected 1 to 10, such as {{curves"),
        ("{{curves a wher=b}}", "curves has no option 'wher'; did you mean where?"),
        ("{{runs where=a=1 where=b=2}}", "runs got where twice; join conditions by `and`"),
        ("{{runs run=1 where=a=1}}", "runs got run and where; choose runs by one of them"),
        ("{{runs limit=0}}", "limit: got '0', expected a number from 1 to 500"),
        ("{{runs limit=many}}", "limit: got 'many', expected a number from 1 to 500"),
        ("{{runs limit=99999999999999999999}}", "limit: got"),
        ("{{curves a smoothing=1}}", "smoothing: got '1', expected a number from 0 to below 1"),
        ("{{curves a smoothing=nan}}", "smoothing: got 'nan'"),
        ("{{curves a log_y=maybe}}", "log_y: got 'maybe', expected yes or no"),
        ("{{curves a band=intervall}}", "band: got 'intervall'; did you mean interval?"),
        ('{{value "1 lr}}', "expected a block on one line"),
        ('{{value 1"2"}}', "quote a word with blanks"),
        ("{{value", "expected a block on one line"),
    ],
)
def test_wrong_block_is_one_sentence(source, problem):
    with pytest.raises(ReportError) as caught:
        Block.of(source)
    assert problem in str(caught.value)


@given(st.text(alphabet='{}"\\= runscvalue1,`x\n', max_size=60))
def test_any_text_is_a_block_or_one_error(text):
    for source in (text, f"{{{{{text}}}}}", f"{{{{value {text}}}}}"):
        with contextlib.suppress(ReportError):
            assert Block.of(source).kind in KINDS
