"""Text as UTF-8 bytes, cut into sequences for a language model: 256 tokens fit every text, without a vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sacristan.ingredients.datasets.batches import Data, TensorBatches
from sacristan.ingredients.datasets.splitting import SPLITS, Split
from sacristan.ingredients.errors import DataError

VOCABULARY = 256
# The files of a folder to read.
_PATTERN = "*.txt"


def read_text(path: str | None) -> bytes:
    """Read a text, or the `*.txt` files of a folder in order; None reads Python's language reference."""
    if path is None:
        from pydoc_data.topics import topics

        return "\n\n".join(topics[name] for name in sorted(topics)).encode()
    where = Path(path)
    files = sorted(where.rglob(_PATTERN)) if where.is_dir() else [where]
    if not files:
        raise DataError(f"text.path={path}: has no files {_PATTERN}; give a file, or a folder with some")
    try:
        text = b"\n\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise DataError(f"text.path={path}: cannot be read ({error.strerror}); check the path") from error
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"text.path={path}: is not UTF-8 ({error.reason} at byte {error.start})") from error
    return text


def characters_a_byte(text: bytes) -> float:
    """Return the number of characters per byte of a text: 1 for ASCII, less for other texts."""
    return len(text.decode(errors="replace")) / len(text)


def make_corpus(
    text: bytes,
    context: int,
    batch_size: int,
    val_fraction: float,
    test_fraction: float,
    seed: int,
    device: torch.device,
) -> Data:
    """Return a text as batches of sequences (tokens, next tokens), both (B, T) int64 of bytes; `context` is T.

    The fractions are shares of the text: its start is the training part, its end the test part. Tokens of a part that
    do not fill a sequence are dropped.
    """
    shares = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    _check_settings(context, batch_size, shares)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.zeros(0, dtype=torch.uint8)
    num_val, num_test = (int(len(tokens) * share) for share in shares.values())
    num_train = len(tokens) - num_val - num_test
    fingerprint = hashlib.sha256(text).hexdigest()
    digest = hashlib.sha256(f"{num_train} {num_val} {num_test}".encode()).hexdigest()
    batches: dict[str, Any] = {}
    for split, part in zip(SPLITS, tokens.split([num_train, num_val, num_test]), strict=True):
        inputs, targets = _sequences(part, context)
        if not len(inputs) and shares.get(f"{split}_fraction", 1) > 0:
            raise DataError(
                f"text: its {split} part has {len(part)} bytes, fewer than the {context + 1} of one sequence; give a "
                "longer text, or a smaller text.context"
            )
        options: dict[str, Any] = {"seed": seed, "shuffle": split == "train"}
        batches[split] = TensorBatches(inputs.to(device), targets.to(device), batch_size, **options)
    return Data(
        **batches,
        task="custom",
        input_shape=(context,),
        num_targets=VOCABULARY,
        fingerprint=fingerprint,
        split=Split(0, 0, None, val_fraction, test_fraction, False, fingerprint, digest, "text"),
        input_dtype=torch.int64,
    )


def _check_settings(context: int, batch_size: int, shares: Mapping[str, float]) -> None:
    for name, value in (("context", context), ("batch_size", batch_size)):
        if value < 1:
            raise DataError(f"text.{name}: got {value}, expected at least 1")
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise DataError(f"text.{name}: got {share}, expected 0 or more, and less than 1")


def _sequences(tokens: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return consecutive sequences (N, T), and the same shifted by one token."""
    num = max(0, (len(tokens) - 1) // context)
    parts = (tokens[start : start + num * context].reshape(num, context).long() for start in (0, 1))
    inputs, targets = parts
    return inputs, targets
