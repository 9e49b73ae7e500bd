"""What experiments are composed of.

Each module holds one ingredient, called `ingredient`, with its config and its captured builders `make_*`:
`data`, `model`, `loss`, `optimizer`, `scheduler`, `amp`, `device`, `training`, `checkpoint`. None of them imports torch
before something is built. `Ingredient` is the class to write one's own with.
"""

import warnings

with warnings.catch_warnings():
    # sacred 0.8.7 imports pkg_resources, whose deprecation is no news to its users.
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated", category=UserWarning)
    import sacred  # noqa: F401

from ingredients.config.ingredient import Ingredient
from ingredients.errors import LabError

__all__ = ["Ingredient", "LabError"]
