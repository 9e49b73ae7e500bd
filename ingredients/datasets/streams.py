"""Streams: samples that can only be iterated, not indexed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from sacristan.ingredients.config.seed import global_stream
from sacristan.ingredients.datasets.splitting import SPLITS, TRAIN
from sacristan.ingredients.errors import DataError

__all__ = ["Stream", "Streams", "is_stream", "streams_of"]


@dataclasses.dataclass(frozen=True)
class Stream:
    """A part of the data as a stream, or as a map-style dataset next to one.

    Attributes:
        samples: Can be iterated for each epoch. It may yield functions without arguments that make a sample; those of
            skipped samples are not called.
        length: Samples in an epoch; None if unknown.
    """

    samples: Any
    length: int | None


@dataclasses.dataclass(frozen=True)
class Streams:
    """Data with at least one stream; `digest` is the SHA-256 of the classes and fingerprints of the parts."""

    parts: Mapping[int, Stream]
    digest: str

    def __len__(self) -> int:
        return sum(part.length or 0 for part in self.parts.values())

    def ready(self, epoch_samples: int | None, where: str) -> Streams:
        """Return the streams with known lengths; unknown ones of val and test are counted.

        `epoch_samples` is the length of a training epoch; None uses that of the stream.
        """
        known = {code: self._with_length(code, part, epoch_samples, where) for code, part in self.parts.items()}
        return dataclasses.replace(self, parts=known)

    def _with_length(self, code: int, part: Stream, epoch_samples: int | None, where: str) -> Stream:
        length = part.length
        if code == TRAIN:
            length = epoch_samples or length
            if length is None:
                raise DataError(
                    f"data.epoch_samples: got None, but {where} is a stream of unknown length; set data.epoch_samples "
                    "to the number of samples in an epoch"
                )
        elif length is None:
            with global_stream(0, "fingerprint"):
                length = sum(1 for _ in part.samples)
        if not length:
            raise DataError(f"{where}: the {SPLITS[code]} part of the stream has no samples")
        return dataclasses.replace(part, length=length)


def is_stream(made: Any) -> bool:
    """Return whether an object can only be iterated, such as an `IterableDataset` of torch or of Hugging Face."""
    if any(cls.__name__ == "IterableDataset" for cls in type(made).__mro__):
        return True
    return hasattr(made, "__iter__") and not hasattr(made, "__len__") and not hasattr(made, "__array__")


def streams_of(parts: Mapping[int | None, Any], where: str) -> Streams:
    """Return parts as streams; a single part, with the code None, becomes the training part.

    Raises `DataError` if a stream can be read only once.
    """
    total = hashlib.sha256(where.encode())
    streams = {}
    for code, samples in parts.items():
        if is_stream(samples) and iter(samples) is samples:
            raise DataError(
                f"{where}: got a {type(samples).__name__}, which can be read only once; return an IterableDataset, or "
                "an object whose __iter__ starts again"
            )
        total.update(f"{code} {type(samples).__qualname__} {getattr(samples, 'fingerprint', '')}".encode())
        streams[TRAIN if code is None else code] = Stream(samples, _length(samples))
    return Streams(streams, total.hexdigest())


def _length(samples: Any) -> int | None:
    try:
        return len(samples)
    except TypeError:
        return None
