"""State of a page, as its URL encodes it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from sacristan.runs.board.roots import rooted

__all__ = ["UrlView"]


@dataclasses.dataclass(frozen=True)
class UrlView:
    """State of a page: each field is a parameter of its URL. A tuple repeats the parameter, a default omits it."""

    PATH: ClassVar[str]
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {}

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """Return the state that a URL encodes; invalid values are ignored."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            texts = [text for text in query.getlist(field.name) if text.strip()]
            if texts and texts[-1] in cls.CHOICES.get(field.name, texts):
                values[field.name] = _value(texts, field.default)
        return cls(**{name: value for name, value in values.items() if value is not None})

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """Return the parameters of the URL, except those of the fields in `without`."""
        pairs: list[tuple[str, str]] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in without:
                continue
            values = value if isinstance(value, tuple) else (value,)
            pairs += [(field.name, _text(one)) for one in values]
        return pairs

    def url(self, path: str = "", **changes: Any) -> str:
        """Return the URL of this state with some fields changed; `path` is another page with the same parameters."""
        pairs = dataclasses.replace(self, **changes).pairs()
        return rooted(path or self.PATH) + (f"?{urlencode(pairs)}" if pairs else "")


def _text(value: Any) -> str:
    return "1" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


def _value(texts: list[str], default: Any) -> Any:
    """Convert the texts of a URL to the type of a field's default; None if they are invalid."""
    if isinstance(default, tuple):
        return tuple(dict.fromkeys(texts))
    text = texts[-1]
    if isinstance(default, bool):
        return text == "1"
    if isinstance(default, int | float):
        try:
            return type(default)(text[:20])
        except ValueError:
            return None
    return text
