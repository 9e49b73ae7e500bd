"""Streams: samples that come one behind the other, and cannot be asked for by their place."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from ingredients.config.seed import global_stream
from ingredients.datasets.splitting import SPLITS, TRAIN
from ingredients.errors import DataError

__all__ = ["Stream", "Streams", "is_stream", "streams_of"]


@dataclasses.dataclass(frozen=True)
class Stream:
    """A part of the data as a stream, or as a map-style dataset beside one.

    Attributes:
        samples: Iterable anew for each epoch. It may yield functions without arguments, which make a sample; those of
            samples that are not needed are not called.
        length: Samples of an epoch; None if it is not known.
    """

    samples: Any
    length: int | None


@dataclasses.dataclass(frozen=True)
class Streams:
    """The parts of data of which one is a stream, by their codes.

    Attributes:
        parts: Each part.
        digest: SHA-256 of what is known of them.
    """

    parts: Mapping[int, Stream]
    digest: str

    def __len__(self) -> int:
        return sum(part.length or 0 for part in self.parts.values())

    def ready(self, epoch_samples: int | None, where: str) -> Streams:
        """Return the streams with the length of each; of val and test it is counted where they do not tell.

        Raises:
            DataError: If the length of the training part is not known, or a part is empty.
        """
        known = {}
        for code, part in self.parts.items():
            length = epoch_samples if code == TRAIN and epoch_samples else part.length
            if length is None and code == TRAIN:
                raise DataError(
                    f"data.epoch_samples: got None, but {where} is a stream that does not tell its length; write "
                    "data.epoch_samples= with the number of samples of an epoch"
                )
            if length is None:
                with global_stream(0, "fingerprint"):
                    length = sum(1 for _ in part.samples)
            if not length:
                raise DataError(f"{where}: the {SPLITS[code]} part of the stream has no samples")
            known[code] = dataclasses.replace(part, length=length)
        return dataclasses.replace(self, parts=known)


def is_stream(made: Any) -> bool:
    """Tell whether something is iterated only, as an `IterableDataset` of torch or of Hugging Face is."""
    if any(cls.__name__ == "IterableDataset" for cls in type(made).__mro__):
        return True
    return hasattr(made, "__iter__") and not hasattr(made, "__len__") and not hasattr(made, "__array__")


def streams_of(parts: Mapping[int | None, Any], where: str) -> Streams:
    """Return parts of which one is a stream; a single one is the training part.

    Raises:
        DataError: If one of them is used up by reading it once.
    """
    total = hashlib.sha256(where.encode())
    found = {}
    for code, samples in parts.items():
        if is_stream(samples) and iter(samples) is samples:
            raise DataError(
                f"{where}: got a {type(samples).__name__}, which can be read once only; return an IterableDataset, or "
                "an object whose __iter__ starts anew"
            )
        total.update(f"{code} {type(samples).__qualname__} {getattr(samples, 'fingerprint', '')}".encode())
        found[TRAIN if code is None else code] = Stream(samples, _length(samples))
    return Streams(found, total.hexdigest())


def _length(samples: Any) -> int | None:
    try:
        return len(samples)
    except TypeError:
        return None
