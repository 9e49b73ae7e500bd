"""The good and bad cases of a model: a table of the samples that it gets right or wrong most clearly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sacristan.observers.media.kinds import Image
from sacristan.observers.media.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from sacristan.ingredients.datasets.batches import Data

__all__ = ["as_images", "cases_table", "choose_classes", "choose_values"]

NUM_CASES = 8


def cases_table(
    data: Data, predicted: Mapping[str, Tensor], num: int = NUM_CASES, ignore_index: int | None = None
) -> Table | None:
    """Return the good and bad cases of the test part; None if it is empty, or samples have several labels.

    The columns are `case`, `sample` (its position in the test part), `image` (if the inputs are images, as they were
    before they were normalised), `label`, `prediction`, and of classes `probability` (of the prediction), of values
    `error` (absolute, the mean over the outputs). Of a class for each pixel `label` and `prediction` are pictures, and
    `accuracy` is the share of right pixels.

    Args:
        data: The data.
        predicted: From `loop.predict` on the test part, in its order.
        num: How many samples of each case.
        ignore_index: Samples with this label do not count.
    """
    if not predicted or data.task in ("multilabel", "custom"):
        return None
    ignored = -100 if ignore_index is None else ignore_index
    if "probabilities" not in predicted:
        found = _of_values(predicted, num)
    elif predicted["predictions"].ndim > 1:
        found = _of_pixels(predicted, num, ignored, len(data.classes))
    else:
        found = _of_classes(predicted, num, ignored, data.classes)
    chosen = [(case, place) for case, places in found.cases.items() for place in places]
    images = as_images(data, [place for _, place in chosen])
    rows = []
    for number, (case, place) in enumerate(chosen):
        image = [] if images is None else [Image(images[number])]
        rows.append([case, place, *image, *(column[place] for column in found.columns), found.scores[place].item()])
    middle = [] if images is None else ["image"]
    return Table(["case", "sample", *middle, "label", "prediction", found.name], rows)


@dataclasses.dataclass(frozen=True)
class _Found:
    """Positions by case, the scores that they are chosen by, and labels and predictions as they are shown."""

    cases: Mapping[str, list[int]]
    name: str
    scores: Tensor
    columns: tuple[Sequence[Any], Sequence[Any]]


def _of_values(predicted: Mapping[str, Tensor], num: int) -> _Found:
    labels, predictions = predicted["targets"], predicted["predictions"]
    errors = (predictions - labels).abs().mean(1)
    return _Found(choose_values(errors, num), "error", errors, (_values(labels), _values(predictions)))


def _of_pixels(predicted: Mapping[str, Tensor], num: int, ignored: int, num_classes: int) -> _Found:
    labels, predictions = predicted["targets"], predicted["predictions"]
    counted = labels != ignored
    hits = ((predictions == labels) & counted).flatten(1).sum(1)
    accuracies = hits / counted.flatten(1).sum(1).clamp(min=1)
    columns = _pictures(labels, num_classes), _pictures(predictions, num_classes)
    # The greatest error is the smallest accuracy.
    return _Found(choose_values(1 - accuracies, num), "accuracy", accuracies, columns)


def _of_classes(predicted: Mapping[str, Tensor], num: int, ignored: int, classes: Sequence[str]) -> _Found:
    labels, predictions = predicted["targets"], predicted["predictions"]
    probabilities = predicted["probabilities"].gather(1, predictions[:, None])[:, 0]
    cases = choose_classes(labels, predictions, probabilities, num, ignored)
    columns = [classes[label] for label in labels.tolist()], [classes[label] for label in predictions.tolist()]
    return _Found(cases, "probability", probabilities, columns)


def choose_classes(
    labels: Tensor, predictions: Tensor, probability: Tensor, num: int, ignore_index: int | None = None
) -> dict[str, list[int]]:
    """Return the positions of the clearest mistakes, the closest right guesses, and the clearest successes.

    All tensors are (N,); `probability` is that of the prediction.
    """
    counted = labels != (-100 if ignore_index is None else ignore_index)
    right = (labels == predictions) & counted
    wrong = (labels != predictions) & counted
    order = probability.argsort(stable=True)
    unsure = order[right[order]][:num]
    # A sample among the least sure is not among the surest.
    sure = order[right[order]][len(unsure) :].flip(0)[:num]
    worst = order[wrong[order]].flip(0)[:num]
    return {"wrong": worst.tolist(), "unsure": unsure.tolist(), "right": sure.tolist()}


def choose_values(error: Tensor, num: int) -> dict[str, list[int]]:
    """Return the positions of the greatest and of the smallest errors.

    `error` has the absolute errors (N,). `worst` begins with the greatest, `best` with the smallest; none is in both.
    """
    order = error.argsort(stable=True)
    worst = order.flip(0)[:num]
    best = order[: len(order) - len(worst)][:num]
    return {"worst": worst.tolist(), "best": best.tolist()}


def _pictures(classes: Tensor, count: int) -> Sequence[Any]:
    """Return classes (N, H, W) as pictures: the first is black, the last white, and ignored pixels are black."""
    grey = classes.clamp(min=0).float() / max(count - 1, 1)
    return [Image(picture) if picture.ndim == 2 else "" for picture in grey]


def _values(values: Tensor) -> Sequence[Any]:
    """Return values (N, D) as numbers, or of more than one output as text."""
    rows: Iterator[list[float]] = iter(values.tolist())
    return [row[0] if len(row) == 1 else ", ".join(f"{value:.6g}" for value in row) for row in rows]


def as_images(data: Data, places: Sequence[int]) -> Tensor | None:
    """Return the inputs of test samples as images (n, C, H, W) from 0 to 1, before they were normalised.

    They are scaled together if the data go beyond 0 to 1. Returns None if the inputs are no images.
    """
    shape = data.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3, 4) or not places:
        return None
    images = data.test.inputs_at(places).float()
    if data.input_mean is not None and data.input_std is not None:
        images = images * data.input_std + data.input_mean
    low, high = images.min(), images.max()
    if low < -1e-3 or high > 1 + 1e-3:
        images = (images - low) / (high - low)
    return images.clamp(0, 1)
