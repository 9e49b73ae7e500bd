from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from sacristan.runs.drawing import Markup, element, escape, table


class Parsed(HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@given(st.text())
def test_texts_and_attributes_are_never_markup(text):
    found = Parsed(element("p", text, title=text))
    [(tag, attributes)] = found.tags
    assert tag == "p"
    assert list(attributes) == ["title"]
    assert found.text == attributes["title"]
    assert len(found.text) == len(text)


def test_markup_stays_and_all_else_is_escaped():
    assert element("td", Markup("<b>1</b>"), "<b>", class_="a b", data_x=1, id=None) == (
        '<td class="a b" data-x="1"><b>1</b>&lt;b&gt;</td>'
    )


def test_characters_that_lead_astray_are_replaced():
    assert escape("a\x00\x1b\u202eb\nc\td") == "a\ufffd\ufffd\ufffdb\nc\td"


def test_columns_of_numbers_are_aligned_to_the_right():
    found = Parsed(table(("a", "b"), [("x", 1)], numbers=(1,)))
    cells = [(tag, attributes["style"].partition(";")[0]) for tag, attributes in found.tags if tag in ("td", "th")]
    assert cells == [(tag, f"text-align:{side}") for tag in ("th", "td") for side in ("left", "right")]
