"""What experiments are composed of.

Each module holds one ingredient, called `ingredient`, with its config and its captured builders `make_*`:
`data`, `model`, `loss`, `optimizer`, `scheduler`, `amp`, `device`, `training`, `checkpoint`. None of them imports torch
before something is built. `Ingredient` is the class to write one's own with.
"""

from ingredients.errors import LabError
from ingredients.ingredient import Ingredient

__all__ = ["Ingredient", "LabError"]
