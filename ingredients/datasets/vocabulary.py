"""`Vocabulary`: words of texts as codes."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from sacristan.ingredients.errors import DataError

__all__ = ["PADDING", "UNKNOWN_WORD", "Vocabulary"]

# Codes for padding and for words that are not in the vocabulary.
PADDING, UNKNOWN_WORD = 0, 1

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Codes of words: word k of `words` has the code k + 2, others `UNKNOWN_WORD`; `PADDING` pads texts.

    Attributes:
        words: Known words, most frequent first; empty before `fitted`.
        max_words: Maximum number of known words.
        min_count: Minimum number of occurrences of a known word.
        max_length: Number of words read from a text, its first ones.
        lowercase: Whether to convert texts to lower case.
    """

    words: tuple[str, ...] = ()
    max_words: int = 20_000
    min_count: int = 2
    max_length: int = 256
    lowercase: bool = True

    def __post_init__(self) -> None:
        for name in ("max_words", "min_count", "max_length"):
            if getattr(self, name) < 1:
                raise DataError(f"data.options.{name}: got {getattr(self, name)}, expected at least 1")

    @property
    def num_codes(self) -> int:
        """Number of codes."""
        return len(self.words) + 2

    def split(self, text: str) -> list[str]:
        """Return the first `max_length` words of a text; punctuation marks are words."""
        return _WORD.findall(text.lower() if self.lowercase else text)[: self.max_length]

    def fitted(self, texts: Iterable[Sequence[str]]) -> Vocabulary:
        """Return this vocabulary with the most frequent words of the training texts; ties are sorted alphabetically."""
        counts = Counter(word for text in texts for word in text)
        known = sorted((-count, word) for word, count in counts.items() if count >= self.min_count)
        return dataclasses.replace(self, words=tuple(word for _, word in known[: self.max_words]))

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Return the codes of words, int64 (words,); an empty text has one unknown word."""
        return np.array([self._codes.get(word, UNKNOWN_WORD) for word in words] or [UNKNOWN_WORD], np.int64)

    @functools.cached_property
    def _codes(self) -> dict[str, int]:
        return {word: code for code, word in enumerate(self.words, UNKNOWN_WORD + 1)}
