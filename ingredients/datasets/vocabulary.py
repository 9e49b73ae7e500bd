"""`Vocabulary`: words of texts as codes."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ingredients.errors import DataError

__all__ = ["PADDING", "UNKNOWN_WORD", "Vocabulary"]

# What texts are filled up with, and what a word becomes that is not in the vocabulary.
PADDING, UNKNOWN_WORD = 0, 1

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Words as codes: word k of `words` has k + 2, others `UNKNOWN_WORD`; `PADDING` stands for none.

    Attributes:
        words: The known ones, the most frequent first; none before it is fitted.
        max_words: How many there may be.
        min_count: How often a word has to come to be known.
        max_length: Words of a text that are read, its first.
        lowercase: Whether capitals are read as small letters.
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
        """How many codes there are."""
        return len(self.words) + 2

    def split(self, text: str) -> list[str]:
        """Return the first words of a text; marks of punctuation are words, too."""
        return _WORD.findall(text.lower() if self.lowercase else text)[: self.max_length]

    def fitted(self, texts: Iterable[Sequence[str]]) -> Vocabulary:
        """Return a vocabulary of the words of texts, each as `split` returns it."""
        counts = Counter(word for text in texts for word in text)
        known = sorted((-count, word) for word, count in counts.items() if count >= self.min_count)
        return dataclasses.replace(self, words=tuple(word for _, word in known[: self.max_words]))

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Return the codes of words, int64 (words,); a text without any has one unknown word."""
        return np.array([self._codes.get(word, UNKNOWN_WORD) for word in words] or [UNKNOWN_WORD], np.int64)

    @functools.cached_property
    def _codes(self) -> dict[str, int]:
        return {word: code for code, word in enumerate(self.words, UNKNOWN_WORD + 1)}
