from __future__ import annotations

import inspect

from sacristan.ingredients.loss import config
from sacristan.ingredients.losses import build_loss


def test_config_has_the_arguments_of_build_loss():
    arguments = [name for name in inspect.signature(build_loss).parameters if name not in ("data", "device")]
    assert [*config()] == [*arguments, "parts"]
