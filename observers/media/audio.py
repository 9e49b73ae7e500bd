"""Sounds that a run can log."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np

from sacristan.observers.errors import MediaError
from sacristan.observers.media.kinds import Media, check_size, snapshot
from sacristan.observers.media.pixels import as_integers, cut_off, has_channels_first
from sacristan.observers.record.media_files import Content

__all__ = ["Audio"]

_MAX_CHANNELS = 8
# Maximum rate that browsers play, Hz.
_MAX_RATE = 768_000


class Audio(Media):
    """A sound, kept as a WAV file of 16 bits.

        _run.log_media("speech", Audio(waveform, sample_rate=16_000, caption="generated"), step)

    Args:
        samples: An array or a tensor: (T,), (T, C) or (C, T), C being 1 to 8 channels. Where both ends could be
            channels, a tensor of torch has them first and an array of numpy last. int16, or floats from -1 to 1.
        sample_rate: Samples per second, Hz.
        caption: Text below it.

    Raises:
        MediaError: If shape, type, range or rate is another one, or it is larger than 512 MiB. The range of a tensor on
            a GPU is known only when the file is made; values outside are then cut off, and `meta` has
            `cut_off_from: [min, max]`.
    """

    kind = "audio"

    def __init__(self, samples: Any, sample_rate: float, caption: str | None = None) -> None:
        self._rate = _rate(sample_rate)
        self._snapshot = snapshot(samples, "Audio")
        self.caption = caption if caption is None else str(caption)
        self.num_bytes = self._snapshot.num_bytes
        shape, dtype = self._snapshot.shape, self._snapshot.dtype
        if dtype != "int16" and "float" not in dtype:
            raise MediaError(
                f"Audio: got samples of type {dtype}, expected int16, or floats from -1 to 1; convert them"
            )
        channels_first = has_channels_first(
            shape, is_tensor=hasattr(samples, "detach"), channels=range(1, _MAX_CHANNELS + 1), num_axes=2
        )
        if channels_first is None:
            raise MediaError(
                f"Audio: got an array of shape {shape}, expected (T,), (T, C) or (C, T) with T of at least 1 and C of "
                f"1 to {_MAX_CHANNELS}; give the sounds of a batch one by one"
            )
        check_size("Audio", 2 * int(np.prod(shape)))
        self._channels_first = channels_first
        if not self._snapshot.on_device and (outside := cut_off(self._snapshot.array(), -1.0)):
            low, high = map(float, outside["cut_off_from"])
            raise MediaError(
                f"Audio: got floats from {low:.6g} to {high:.6g}, expected -1 to 1; divide them by "
                "abs(x).max(), or give int16"
            )

    def encode(self) -> Content:
        samples = self._snapshot.array()
        outside = cut_off(samples, -1.0)
        samples = samples[:, None] if samples.ndim == 1 else samples.T if self._channels_first else samples
        samples = samples if samples.dtype == np.int16 else as_integers(samples, -1.0, np.int16)
        num_samples, channels = samples.shape
        stream = io.BytesIO()
        with wave.open(stream, "wb") as file:
            file.setparams((channels, 2, self._rate, num_samples, "NONE", ""))
            file.writeframes(np.ascontiguousarray(samples, "<i2").tobytes())
        meta = self._described(**outside, sample_rate=self._rate, channels=channels, num_samples=num_samples)
        return Content(stream.getvalue(), ".wav", "audio/wav", meta)


def _rate(sample_rate: Any) -> int:
    try:
        rate = int(sample_rate)
        if rate == sample_rate and 1 <= rate <= _MAX_RATE:
            return rate
    except (TypeError, ValueError, OverflowError):
        pass
    raise MediaError(
        f"Audio: got sample_rate={sample_rate!r}, expected a whole number of samples a second from 1 to {_MAX_RATE}, "
        "such as 16000"
    )
