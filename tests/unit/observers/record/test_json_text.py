import json

import pytest

from sacristan.observers.record.json_text import MAX_LEVELS, parse_json


def nested(num_levels, inner="1"):
    return '{"a": [' * (num_levels // 2) + ("[" + inner + "]" if num_levels % 2 else inner) + "]}" * (num_levels // 2)


@pytest.mark.parametrize("encode", [str, str.encode])
def test_json_is_read_to_the_level_that_every_reader_walks(encode):
    text = nested(MAX_LEVELS)
    assert parse_json(encode(text)) == json.loads(text)
    flat = json.dumps({"[" * 500: [{}] * 1_000})
    assert parse_json(encode(flat)) == json.loads(flat)


@pytest.mark.parametrize("num_levels", [MAX_LEVELS + 1, 900, 100_000])
def test_deeper_json_is_refused_on_every_python(num_levels):
    with pytest.raises(ValueError, match="lists and objects are nested more than 200 levels deep"):
        parse_json(nested(num_levels))
