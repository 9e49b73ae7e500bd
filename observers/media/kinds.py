"""Media that a run can log beside numbers: images, figures, histograms, texts, HTML; other modules here have more.

    _run.log({"val/samples": Image(x), "val/loss": 0.3}, step)
    _run.log_media("val/weights", Histogram(weight), step)

Each copies its values when it is created, and rejects values that it cannot show; a tensor on a GPU is copied there,
and fetched by the thread of the run's heartbeats. That thread also makes the files: PNG, JSON, WAV, text. Only figures
are rendered at once, because matplotlib allows a single thread.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from sacristan.configs.packages import numpy as np
from sacristan.observers.errors import MediaError
from sacristan.observers.media import arrays
from sacristan.observers.record.media_files import Content

_log = logging.getLogger(__name__)

# Maximum size of a sound, a video, a point cloud or a page: the whole file is held in memory.
MAX_BYTES = 2**29


class Media:
    """Base class of everything that can be logged beside numbers.

    Attributes:
        kind: Its name in the record, such as `image`.
        num_bytes: Memory it takes until its file is made.
        caption: Text to show below it; None for no text.
    """

    kind: ClassVar[str]
    num_bytes: int = 0
    caption: str | None = None

    def encode(self) -> Content:
        """Make the file. The thread of the run's heartbeats calls it, once."""
        raise NotImplementedError

    def as_logged(self) -> Media:
        """Return what is recorded, whatever happens to the object after it was logged."""
        return self

    def _described(self, **facts: Any) -> dict[str, Any]:
        """Return what the record says about the file: these facts, and the caption."""
        return facts if self.caption is None else {**facts, "caption": self.caption}


class Image(Media):
    """An image.

        _run.log_media("samples", Image(batch[0], caption="epoch 3"), step)

    Args:
        array: An array or a tensor: (H, W) or (H, W, C) or (C, H, W), C being 1 (grey), 3 (RGB) or 4 (RGBA). Where both
            ends could be channels, a tensor of torch has them first and an array of numpy last. uint8, bool, floats
            from 0 to 1, or integers from 0 to 255. Or an image of Pillow, where 65535 is white in the modes of 16 bits,
            and the modes I and F are taken as arrays. Or the path of an image file, which Pillow reads (extra
            `images`); or a figure of matplotlib.
        caption: Text below it.
        mode: A mode of Pillow, such as `RGB`, into which an image of Pillow or a file is converted.
        **options: W&B's other ones, such as `boxes`, `masks` and `file_type`, which are not kept.

    Raises:
        MediaError: If the shape, the type or the range is another one, or the file cannot be read. The range of a
            tensor on a GPU is known only when the file is made; values outside are then cut off, and `meta` has
            `cut_off_from: [min, max]`.
    """

    kind = "image"

    def __init__(self, array: Any, caption: str | None = None, mode: str | None = None, **options: Any) -> None:
        _leave_out("Image", options, _NOT_KEPT_OF_IMAGES)
        if isinstance(array, str | os.PathLike):
            array = _read_image(array)
        elif hasattr(array, "savefig") or hasattr(array, "gcf"):
            array = _rendered(array)
        if hasattr(array, "convert"):
            array = _pixels_of(array if mode is None else array.convert(mode))
        elif "int" in str(getattr(array, "dtype", "")):
            array = _from_0_to_255(array)
        self._snapshot = snapshot(array, "Image")
        self.caption = caption if caption is None else str(caption)
        self.num_bytes = self._snapshot.num_bytes
        arrays.check_pixels("Image", self._snapshot)
        channels_first = arrays.has_channels_first(self._snapshot.shape, is_tensor=hasattr(array, "detach"))
        if channels_first is None:
            raise MediaError(
                f"Image: got an array of shape {self._snapshot.shape}, expected (H, W), (H, W, C) or (C, H, W) with C "
                "of 1, 3 or 4; give the images of a batch one by one"
            )
        self._channels_first = channels_first

    def encode(self) -> Content:
        values = self._snapshot.array()
        pixels = arrays.as_bytes(values[..., None] if values.ndim == 2 else values)
        if self._channels_first:
            pixels = np.moveaxis(pixels, 0, -1)
        height, width, channels = pixels.shape
        meta = self._described(**arrays.cut_off(values), width=width, height=height, channels=channels)
        return Content(arrays.png_bytes(np.ascontiguousarray(pixels)), ".png", "image/png", meta)


_NOT_KEPT_OF_IMAGES = ("grouping", "classes", "boxes", "masks", "file_type", "normalize")
_warned: set[str] = set()


def _leave_out(kind: str, options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Warn once of options of W&B that are not kept; reject unknown ones."""
    for name, value in options.items():
        if name not in names:
            raise TypeError(f"{kind}: got an unexpected argument {name!r}")
        if value is not None and f"{kind}.{name}" not in _warned:
            _warned.add(f"{kind}.{name}")
            _log.warning("%s: %s is not kept", kind, name)


def _read_image(path: Any) -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise MediaError(f"Image: {path}: files are read by pillow, of the extra images: {error}") from error
    try:
        with PIL.Image.open(path) as image:
            image.load()
            return image
    except (OSError, ValueError, SyntaxError) as error:
        raise MediaError(f"Image: {path} cannot be read ({error})") from error


def _rendered(figure: Any) -> Any:
    """Return the pixels of a figure of matplotlib, or of the current one of its module pyplot, (H, W, 4)."""
    figure = figure.gcf() if hasattr(figure, "gcf") else figure
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba()).copy()


def _from_0_to_255(array: Any) -> Any:
    """Return integers from 0 to 255 as uint8; others, and those on a GPU, as they are."""
    if str(array.dtype).endswith("uint8") or getattr(getattr(array, "device", None), "type", "cpu") != "cpu":
        return array
    try:
        fits = int(array.min()) >= 0 and int(array.max()) <= 255
    except (ValueError, RuntimeError):  # it has no entries
        return array
    return array if not fits else array.astype(np.uint8) if hasattr(array, "astype") else array.byte()


def _pixels_of(image: Any) -> Any:
    """Return an image of Pillow as one of 8 bits, or as an array of its values, which are checked as any array."""
    mode = getattr(image, "mode", "RGB")
    if mode in ("L", "RGB", "RGBA"):
        return image
    if mode.startswith("I;16"):  # `convert` would cut them off at 255
        return np.asarray(image) / np.float64(2**16 - 1)
    if mode in ("I", "F"):  # no mode says how bright a value is
        return np.asarray(image)
    return (image.convert("LA") if mode == "La" else image).convert("RGBA")


class Figure(Media):
    """A figure of matplotlib, or another object with its `savefig`; rendered as PNG at once, and not closed.

        _run.log_media("roc", Figure(figure, dpi=120), step)

    Args:
        figure: The figure.
        caption: Text below it.
        dpi: Pixels per inch; None for those of the figure.

    Raises:
        MediaError: If it has no `savefig`, or that does not make a PNG file.
    """

    kind = "figure"

    def __init__(self, figure: Any, caption: str | None = None, dpi: float | None = None) -> None:
        if not hasattr(figure, "savefig"):
            raise MediaError(
                f"Figure: got a {type(figure).__name__}, expected a figure of matplotlib; give other plots as an "
                "Image of their pixels"
            )
        self.caption = caption if caption is None else str(caption)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", **({} if dpi is None else {"dpi": dpi}))
        try:
            width, height = arrays.png_size(stream.getvalue())
        except ValueError as error:
            raise MediaError(f"Figure: savefig of {type(figure).__name__}: {error}; give an Image instead") from error
        self._content = Content(stream.getvalue(), ".png", "image/png", self._described(width=width, height=height))
        self.num_bytes = len(self._content.data)

    def encode(self) -> Content:
        return self._content


class Histogram(Media):
    """A histogram of values of any shape; NaN and infinities are counted separately, masked values are left out.

        _run.log_media("weights/first", Histogram(network[0].weight), step)

    Args:
        values: Numbers: an array, a tensor, a list.
        bins: Number of bins.
        np_histogram: Counts and edges, as `numpy.histogram` returns them, instead of values; see `from_counts`.
        num_bins: The same as `bins`, as W&B calls it.

    Raises:
        MediaError: If the values are no real numbers, or `bins` is less than 1.
    """

    kind = "histogram"

    def __init__(
        self,
        values: Any = None,
        bins: int = 64,
        *,
        np_histogram: tuple[Any, Any] | None = None,
        num_bins: int | None = None,
    ) -> None:
        if isinstance(bins, tuple):
            np_histogram, bins = bins, 64
        bins = bins if num_bins is None else num_bins
        if (values is None) == (np_histogram is None):
            raise MediaError("Histogram: expected either values, or counts and edges as np_histogram")
        counted = None if np_histogram is None else _counted(*np_histogram)
        values = () if values is None else values
        if not isinstance(bins, int) or bins < 1:
            raise MediaError(f"Histogram: got bins={bins!r}, expected an int of at least 1; see from_counts for edges")
        if isinstance(values, np.ma.MaskedArray):
            values = values.compressed()
        self._snapshot = snapshot(values, "Histogram")
        if not are_numbers(self._snapshot.dtype):
            raise MediaError(f"Histogram: got values of type {self._snapshot.dtype}, expected numbers")
        self._bins = bins
        self._counted: dict[str, Any] | None = counted
        self.num_bytes = self._snapshot.num_bytes

    @classmethod
    def from_counts(cls, counts: Sequence[float], edges: Sequence[float]) -> Histogram:
        """Return a histogram of counts that you have, such as those of `numpy.histogram`.

        Args:
            counts: (n,) number of values in each bin; fractions are allowed.
            edges: (n + 1,) bounds of the bins, rising.

        Raises:
            MediaError: If the shapes do not fit, the edges do not rise, or a count is negative or not finite.
        """
        return cls(np_histogram=(counts, edges))

    def encode(self) -> Content:
        counted = self._counted or count_values(self._snapshot.array(), self._bins)
        meta = {"num": counted["num"], "bins": len(counted["counts"])}
        return Content(json.dumps(counted, allow_nan=False).encode(), ".json", "application/json", meta)


def _counted(counts: Any, edges: Any) -> dict[str, Any]:
    """Return a histogram of counts (n,) and rising edges (n + 1,)."""
    numbers = snapshot(counts, "Histogram").array().astype(np.float64)
    bounds = snapshot(edges, "Histogram").array().astype(np.float64)
    rising = bounds.ndim == 1 and len(bounds) > 1 and np.isfinite(bounds).all() and (np.diff(bounds) > 0).all()
    if numbers.ndim != 1 or not rising or len(bounds) != len(numbers) + 1:
        raise MediaError(
            f"Histogram: got counts of shape {numbers.shape} and edges of shape {bounds.shape}, expected n counts "
            "and n + 1 rising edges"
        )
    if not (np.isfinite(numbers).all() and (numbers >= 0).all()):
        raise MediaError("Histogram: got counts that are negative, NaN or infinite, expected numbers from 0")
    return binned(numbers, bounds)


class Text(Media):
    """A text.

        _run.log_media("translation", Text("a sentence"), step)

    Args:
        text: The text.

    Raises:
        MediaError: If it is no str.
    """

    kind = "text"

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise MediaError(f"Text: got a {type(text).__name__}, expected a str; write Text(str(value))")
        # Half of a surrogate pair, which UTF-8 cannot encode, becomes a question mark.
        self._data = text.encode("utf-8", "replace")
        self._meta = {"num_chars": len(text)}
        self.num_bytes = len(self._data)

    def encode(self) -> Content:
        return Content(self._data, ".txt", "text/plain; charset=utf-8", self._meta)


class Html(Media):
    """A page of HTML, such as a highlighted text or a report.

        _run.log_media("attention", Html("<p>the <b>cat</b> sat</p>"), step)

    The board shows it in a sandbox: its scripts do not run, and nothing is loaded from elsewhere. It may hold styles,
    and images as `data:` URLs.

    Args:
        text: The page, or a part of one; or the path of a file that ends with `.html`, or an open file.
        inject: W&B's, without a meaning: nothing is added to the page.
        data_is_not_path: Whether a `text` that ends with `.html` is a page.

    Raises:
        MediaError: If it is no str, empty, larger than 512 MiB, or a file that cannot be read.
    """

    kind = "html"

    def __init__(self, text: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        is_path = isinstance(text, os.PathLike) or (isinstance(text, str) and text.endswith(".html"))
        if is_path and not data_is_not_path:
            try:
                text = Path(text).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise MediaError(f"Html: {text} cannot be read ({error})") from error
        elif hasattr(text, "read"):
            text = text.read()
        if not isinstance(text, str) or not text.strip():
            got = "an empty text" if isinstance(text, str) else f"a {type(text).__name__}"
            raise MediaError(f"Html: got {got}, expected HTML as a str; read a file as Path(file).read_text()")
        self._data = text.encode("utf-8", "replace")
        self.num_bytes = len(self._data)
        check_size("Html", self.num_bytes)

    def encode(self) -> Content:
        return Content(self._data, ".html", "text/html; charset=utf-8", {})


def check_size(kind: str, num_bytes: int, most: int | None = None) -> None:
    """Reject a medium whose file would have more than `most` bytes, by default `MAX_BYTES`."""
    most = MAX_BYTES if most is None else most
    if num_bytes > most:
        raise MediaError(
            f"{kind}: got {num_bytes / 2**20:.0f} MiB, expected {most // 2**20} MiB at most; log a part of it, or "
            "keep the file by _run.add_artifact(path)"
        )


def snapshot(values: Any, kind: str) -> arrays.Snapshot:
    """Copy an array, a tensor or nested lists as they are now; see `Snapshot`."""
    try:
        return arrays.Snapshot(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MediaError(f"{kind}: got a {type(values).__name__} that is no array of numbers: {error}") from error


def are_numbers(dtype: str) -> bool:
    """Tell whether arrays of a type hold real numbers or booleans."""
    return dtype == "bool" or "int" in dtype or "float" in dtype


_NONE: dict[str, Any] = {"num": 0, "min": None, "max": None, "mean": None}


def count_values(values: np.ndarray, bins: int) -> dict[str, Any]:
    """Count values into equal bins: `edges` (bins + 1,) and `counts` (bins,), both empty if no value is finite.

    `num`, `min`, `max` and `mean` are those of the finite values; `nan`, `inf` and `-inf` are counted beside them.
    """
    values = values.reshape(-1).astype(np.float64)
    odd = {"nan": int(np.isnan(values).sum()), "inf": int((values == math.inf).sum())}
    odd["-inf"] = int((values == -math.inf).sum())
    good = values[np.isfinite(values)]
    if not len(good):
        return {"edges": [], "counts": [], **_NONE, **odd}
    low, high = float(good.min()), float(good.max())
    # The distance between the greatest floats is no float.
    scale = 4.0 if max(-low, high) > 1e300 else 1.0
    counts, edges = np.histogram(good / scale, bins, _bounds(low / scale, high / scale, bins))
    edges *= scale
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)  # undo the rounding of scaling
    with np.errstate(over="ignore"):
        mean = float(good.mean())
        if not math.isfinite(mean):
            mean = min(max(low, float((good / len(good)).sum())), high)
    summary = {"num": len(good), "min": low, "max": high, "mean": mean}
    return {"edges": edges.tolist(), "counts": counts.tolist(), **summary, **odd}


def _bounds(low: float, high: float, bins: int) -> tuple[float, float]:
    """Return bounds around low to high with enough different floats between them for the edges of the bins."""
    least = max(4 * bins * float(np.spacing(max(-low, high))), 1e-290, 0.5 if low == high else 0.0)
    if high - low >= least:
        return low, high
    greatest, middle = float(np.finfo(np.float64).max) / 4, low + (high - low) / 2
    return max(middle - least / 2, -greatest), min(middle + least / 2, greatest)


def binned(counts: np.ndarray, edges: np.ndarray) -> dict[str, Any]:
    """Return (n,) `counts` between (n + 1,) rising `edges` as `count_values` does; `mean` takes the middles of bins."""
    total = float(counts.sum())
    summary: dict[str, float | None] = dict(_NONE)
    if total:
        filled = np.flatnonzero(counts)
        middles = edges[:-1] + np.diff(edges) / 2
        summary = {"num": total, "min": edges[filled[0]].item(), "max": edges[filled[-1] + 1].item()}
        summary["mean"] = float((middles * (counts / total)).sum())
    return {"edges": edges.tolist(), "counts": counts.tolist(), **summary, "nan": 0, "inf": 0, "-inf": 0}
