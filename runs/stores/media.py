"""Images, figures, histograms, texts and tables of a past run, read from any store."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from runs.errors import StoreError
from runs.stores.content import Content

__all__ = ["Medium"]


@dataclasses.dataclass(frozen=True)
class Medium:
    """An image, figure, histogram, text or table that a run logged.

    Attributes:
        name: The series, such as `test/cases`.
        kind: `image`, `figure`, `histogram`, `text` or `table`.
        step: The step it was logged at.
        time_s: Seconds from the run's start to it.
        content_type: Such as `image/png`.
        meta: What is known of it without opening it, such as width and height.
        content: Its file.
        images: Files of the images in a table, by the names that its cells have for them.

    Example:
        with open_store("my_runs") as store:
            for medium in store.get("latest").media:
                print(medium.name, medium.step, medium.kind, len(medium.content.read()))
    """

    name: str
    kind: str
    step: int | float | None
    time_s: float | None
    content_type: str
    meta: Mapping[str, Any]
    content: Content
    images: Mapping[str, Content] = dataclasses.field(default_factory=dict)

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows of a table; cells are numbers, texts, None, or the `Content` of an image.

        Raises:
            StoreError: If it is no table, or cannot be read.
        """
        document = self.document()
        if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
            raise StoreError(f"{self.name!r} at step {self.step} is a {self.kind}, and no table")
        return document.get("columns") or [], [[self._cell(value) for value in row] for row in document["rows"]]

    def document(self) -> Any:
        """Return what a histogram or a table holds, as JSON holds it.

        Raises:
            StoreError: If it is none of them, or cannot be read.
        """
        try:
            return json.loads(self.content.read())
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{self.name!r} at step {self.step} is a {self.kind}, and no JSON") from error

    def _cell(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "$number" in value:
            return float(value["$number"])
        name = str(value.get("$image"))
        if name not in self.images:
            raise StoreError(
                f"{self.name!r} at step {self.step} names the image {name!r}, which its record does not have"
            )
        return self.images[name]
