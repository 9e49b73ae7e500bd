"""Models without Sacred: networks, building, initialisation, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["FeatureExtractor", "make_feature_extractor"]

if TYPE_CHECKING:
    from sacristan.ingredients.models.modules import FeatureExtractor, make_feature_extractor
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            from sacristan.ingredients.models import modules

            return getattr(modules, name)
        raise AttributeError(f"module 'sacristan.ingredients.models' has no attribute {name!r}")
