"""Sounds and videos that a run can log; videos are frames, or a file that was encoded elsewhere."""

from __future__ import annotations

import io
import os
import wave
from pathlib import Path
from typing import Any

from sacristan.configs.packages import numpy as np
from sacristan.observers.errors import MediaError
from sacristan.observers.media import arrays
from sacristan.observers.media.kinds import Media, check_size, snapshot
from sacristan.observers.record.media_files import Content

_MAX_CHANNELS = 8
# Maximum rate that browsers play, Hz.
_MAX_RATE = 768_000


class Audio(Media):
    """A sound, kept as a WAV file of 16 bits.

        _run.log_media("speech", Audio(waveform, sample_rate=16_000, caption="generated"), step)

    Args:
        samples: An array or a tensor: (T,), (T, C) or (C, T), C being 1 to 8 channels. Where both ends could be
            channels, a tensor of torch has them first and an array of numpy last. int16, or floats from -1 to 1.
            Or the path of a WAV file of 16 bits.
        sample_rate: Samples per second, Hz; that of a file is known.
        caption: Text below it.

    Raises:
        MediaError: If shape, type, range or rate is another one, or it is larger than 512 MiB. The range of a tensor on
            a GPU is known only when the file is made; values outside are then cut off, and `meta` has
            `cut_off_from: [min, max]`.
    """

    kind = "audio"

    def __init__(self, samples: Any, sample_rate: float | None = None, caption: str | None = None) -> None:
        if isinstance(samples, str | os.PathLike):
            samples, sample_rate = _read_wav(samples)
        self._rate = _whole_rate(sample_rate)
        self._snapshot = snapshot(samples, "Audio")
        self.caption = caption if caption is None else str(caption)
        self.num_bytes = self._snapshot.num_bytes
        shape, dtype = self._snapshot.shape, self._snapshot.dtype
        if dtype != "int16" and "float" not in dtype:
            raise MediaError(
                f"Audio: got samples of type {dtype}, expected int16, or floats from -1 to 1; convert them"
            )
        channels_first = arrays.has_channels_first(
            shape, is_tensor=hasattr(samples, "detach"), channels=range(1, _MAX_CHANNELS + 1), num_axes=2
        )
        if channels_first is None:
            raise MediaError(
                f"Audio: got an array of shape {shape}, expected (T,), (T, C) or (C, T) with T of at least 1 and C of "
                f"1 to {_MAX_CHANNELS}; give the sounds of a batch one by one"
            )
        check_size("Audio", 2 * int(np.prod(shape)))
        self._channels_first = channels_first
        if not self._snapshot.on_device and (outside := arrays.cut_off(self._snapshot.array(), -1.0)):
            low, high = map(float, outside["cut_off_from"])
            raise MediaError(
                f"Audio: got floats from {low:.6g} to {high:.6g}, expected -1 to 1; divide them by "
                "abs(x).max(), or give int16"
            )

    def encode(self) -> Content:
        samples = self._snapshot.array()
        outside = arrays.cut_off(samples, -1.0)
        samples = samples[:, None] if samples.ndim == 1 else samples.T if self._channels_first else samples
        samples = samples if samples.dtype == np.int16 else arrays.as_integers(samples, -1.0, np.int16)
        num_samples, channels = samples.shape
        stream = io.BytesIO()
        with wave.open(stream, "wb") as file:
            file.setparams((channels, 2, self._rate, num_samples, "NONE", ""))
            file.writeframes(np.ascontiguousarray(samples, "<i2").tobytes())
        meta = self._described(**outside, sample_rate=self._rate, channels=channels, num_samples=num_samples)
        return Content(stream.getvalue(), ".wav", "audio/wav", meta)


def _whole_rate(sample_rate: Any) -> int:
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


# ---------------------------------------------------------------------- videos

# Browsers show a frame of 10 ms or less for 100 ms.
_LEAST_FPS, _MOST_FPS = 0.01, 90
# Packing as many takes some seconds of the thread of the heartbeats.
_MAX_FRAME_BYTES = 2**27


def _read_wav(path: Any) -> tuple[np.ndarray, int]:
    """Return the samples, (T, C), and the rate of a WAV file of 16 bits."""
    try:
        with wave.open(os.fspath(path), "rb") as file:
            if file.getsampwidth() != 2:
                raise MediaError(
                    f"Audio: {path} has {8 * file.getsampwidth()} bits a sample, expected 16; convert it, or keep it "
                    "by _run.add_artifact(path)"
                )
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16)
            return samples.reshape(-1, file.getnchannels()), file.getframerate()
    except (OSError, EOFError, wave.Error) as error:
        raise MediaError(f"Audio: {path} cannot be read as a WAV file ({error}); convert it") from error


class Video(Media):
    """A video without sound, kept without loss as an animated PNG file.

        _run.log_media("episode", Video(frames, fps=30), step)

    Every browser, and TensorBoard, shows such a file as a moving image. It packs no better than single images: encode
    more than some hundred frames yourself, and log `Video.from_file("episode.mp4")`.

    Args:
        frames: An array or a tensor: (T, H, W), (T, H, W, C) or (T, C, H, W), C being 1 (grey), 3 (RGB) or 4 (RGBA).
            Where both could be channels, a tensor of torch has them first and an array of numpy last, as in `Image`.
            uint8, bool, or floats from 0 to 1.
            (N, T, C, H, W) is shown as one video after the other. Or the path of an MP4 or WebM file; see `from_file`.
        fps: Frames per second, from 0.01 to 90.
        caption: Text below it.
        format: W&B's, without a meaning.

    Raises:
        MediaError: If shape, type, range or rate is another one, or the frames have more than 128 MiB as bytes. The
            range of a tensor on a GPU is known only when the file is made; values outside are then cut off, and `meta`
            has `cut_off_from: [min, max]`.
    """

    kind = "video"
    _frames: arrays.Snapshot
    _file: Content | None = None

    def __init__(
        self, frames: Any, fps: Any = 4, caption: str | float | None = None, format: str | None = None
    ) -> None:
        if isinstance(fps, str) or isinstance(caption, int | float):  # as W&B has them: caption, fps
            fps, caption = (4 if caption is None else caption), fps
        if isinstance(frames, str | os.PathLike):
            made = Video.from_file(frames, None if caption is None else str(caption))
            self.caption, self._file, self.num_bytes = made.caption, made._file, made.num_bytes
            return
        if len(getattr(frames, "shape", ())) == 5:
            frames = frames.reshape(-1, *frames.shape[2:])
        self._fps = _frame_rate(fps)
        self._frames = snapshot(frames, "Video")
        self.caption = caption if caption is None else str(caption)
        self.num_bytes = self._frames.num_bytes
        arrays.check_pixels("Video", self._frames)
        shape = self._frames.shape
        channels_first = None
        if len(shape) in (3, 4) and shape[0]:
            channels_first = arrays.has_channels_first(shape[1:], is_tensor=hasattr(frames, "detach"))
        if channels_first is None:
            raise MediaError(
                f"Video: got an array of shape {shape}, expected (T, H, W), (T, H, W, C) or (T, C, H, W) with C of "
                "1, 3 or 4; give the videos of a batch one by one"
            )
        self._channels_first = channels_first
        check_size("Video", int(np.prod(shape)), _MAX_FRAME_BYTES)

    @classmethod
    def from_file(cls, file: str | os.PathLike[str] | bytes, caption: str | None = None) -> Video:
        """Return a video that is encoded already; it is read at once, and kept as it is.

        Args:
            file: An MP4 or WebM file: its path, or its bytes.
            caption: Text below it.

        Raises:
            MediaError: If it is no such file, cannot be read, or is larger than 512 MiB.
        """
        data = bytes(file) if isinstance(file, bytes | bytearray | memoryview) else _read(file)
        check_size("Video", len(data))
        if data[4:8] == b"ftyp":
            suffix = ".mp4"
        elif data[:4] == b"\x1aE\xdf\xa3" and b"webm" in data[:64]:
            suffix = ".webm"
        else:
            raise MediaError(
                f"Video: got data that begin with {data[:12]!r}, expected an MP4 or WebM file; encode it as one, or "
                "give frames"
            )
        video = cls.__new__(cls)
        video.caption = caption if caption is None else str(caption)
        video._file = Content(data, suffix, f"video/{suffix[1:]}", video._described())
        video.num_bytes = len(data)
        return video

    def encode(self) -> Content:
        if self._file is not None:
            return self._file
        values = self._frames.array()
        outside = arrays.cut_off(values)
        if values.ndim == 3:
            values = values[..., None]
        elif self._channels_first:
            values = np.moveaxis(values, 1, -1)
        num_frames, height, width, channels = values.shape
        size = {"width": width, "height": height, "channels": channels}
        meta = self._described(**outside, **size, num_frames=num_frames, fps=self._fps)
        return Content(arrays.animated_png_bytes(map(arrays.as_bytes, values), self._fps), ".png", "image/png", meta)


def _frame_rate(fps: Any) -> float:
    try:
        if _LEAST_FPS <= float(fps) <= _MOST_FPS:
            return float(fps)
    except (TypeError, ValueError, OverflowError):
        pass
    raise MediaError(
        f"Video: got fps={fps!r}, expected frames a second from {_LEAST_FPS} to {_MOST_FPS}, which is what browsers "
        "show; leave out frames, such as frames[::2]"
    )


def _read(file: Any) -> bytes:
    try:
        path = Path(file)
        check_size("Video", path.stat().st_size)
        return path.read_bytes()
    except TypeError as error:
        raise MediaError(f"Video: got a {type(file).__name__}, expected the path or the bytes of a file") from error
    except (OSError, ValueError) as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"Video: {file} cannot be read ({getattr(error, 'strerror', None) or error})") from error
