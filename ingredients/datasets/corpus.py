"""Text as a stream of bytes, cut into sequences for a language model.

Characters are their UTF-8 bytes, so that every text of every language fits one vocabulary of 256 tokens, which a model
can be used with without knowing the text it was trained on. Of ASCII text, a byte is a character.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ingredients.datasets.batches import Data, TensorBatches
from ingredients.datasets.splitting import Split
from ingredients.errors import DataError

__all__ = ["VOCABULARY", "characters_a_byte", "make_corpus", "read_text"]

VOCABULARY = 256
# Of a folder, these are read.
_PATTERN = "*.txt"


def read_text(path: str | None) -> bytes:
    """Return a file, or all `*.txt` below a folder, in the order of their names; without a path Python's reference.

    That is what Python's `help` shows of the language: `pydoc_data.topics`, half a million characters of English that
    every CPython has. They differ a little from version to version.

    Raises:
        DataError: If there is no such file, or none in the folder, or it is no UTF-8.
    """
    if path is None:
        from pydoc_data.topics import topics

        return "\n\n".join(topics[name] for name in sorted(topics)).encode()
    given = Path(path)
    files = sorted(given.rglob(_PATTERN)) if given.is_dir() else [given]
    if not files:
        raise DataError(f"text.path={path}: has no files {_PATTERN}; give a file, or a folder with some")
    try:
        found = b"\n\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise DataError(f"text.path={path}: cannot be read ({error.strerror}); check the path") from error
    try:
        found.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"text.path={path}: is no text in UTF-8 ({error.reason} at byte {error.start})") from error
    return found


def characters_a_byte(text: bytes) -> float:
    """Return characters over bytes: 1 of ASCII, less of others."""
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
    """Return sequences of a text as batches of (tokens, the tokens that follow each), both (B, T) int64.

    The beginning of the text is the training part, the end the test part. What is left of a part beyond whole sequences
    is left out.

    Args:
        text: The text.
        context: Tokens in a sequence, T.
        batch_size: Sequences in a batch, B.
        val_fraction, test_fraction: Shares of the text.
        seed: Seed of the order of the sequences.
        device: Where batches are wanted.

    Raises:
        DataError: If a number cannot be, or the text is too short for a sequence in each part.
    """
    for name, value in (("context", context), ("batch_size", batch_size)):
        if value < 1:
            raise DataError(f"text.{name}: got {value}, expected at least 1")
    shares = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise DataError(f"text.{name}: got {share}, expected 0 or more, and less than 1")
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.zeros(0, dtype=torch.uint8)
    num_val, num_test = (int(len(tokens) * share) for share in shares.values())
    num_train = len(tokens) - num_val - num_test
    fingerprint = hashlib.sha256(text).hexdigest()
    digest = hashlib.sha256(f"{num_train} {num_val} {num_test}".encode()).hexdigest()
    cut: dict[str, Any] = {}
    for split, part in zip(("train", "val", "test"), tokens.split([num_train, num_val, num_test]), strict=True):
        wanted = split == "train" or shares[f"{split}_fraction"] > 0
        inputs, targets = _sequences(part, context)
        if wanted and not len(inputs):
            raise DataError(
                f"text: its {split} part has {len(part)} bytes, fewer than the {context + 1} of one sequence; give a "
                "longer text, or a smaller text.context"
            )
        options: dict[str, Any] = {"seed": seed, "shuffle": split == "train"}
        cut[split] = TensorBatches(inputs.to(device), targets.to(device), batch_size, **options)
    return Data(
        **cut,
        task="custom",
        input_shape=(context,),
        num_targets=VOCABULARY,
        classes=(),
        class_counts=(),
        target_mean=None,
        target_std=None,
        fingerprint=fingerprint,
        split=Split(0, 0, None, val_fraction, test_fraction, False, fingerprint, digest, "text"),
        input_dtype=torch.int64,
    )


def _sequences(tokens: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return sequences (N, T) that follow each other, and the same one token further."""
    num = max(0, (len(tokens) - 1) // context)
    parts = (tokens[start : start + num * context].reshape(num, context).long() for start in (0, 1))
    inputs, targets = parts
    return inputs, targets
