from __future__ import annotations

import json
import math

from sacristan.runs.query.strict_json import strict


def test_strict_json_says_numbers_that_json_lacks_as_texts():
    document = {"a": [math.nan, math.inf, -math.inf, 1.5], 3: (True, None)}
    text = json.dumps(strict(document), allow_nan=False)
    assert json.loads(text) == {"a": ["NaN", "Infinity", "-Infinity", 1.5], "3": [True, None]}
    assert math.isnan(float("NaN"))
    assert float("-Infinity") == -math.inf
