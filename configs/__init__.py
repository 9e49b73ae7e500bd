"""Configuration values as code sees them, and the recipes that ship with the lab.

`Map` is what captured functions receive, `MutableMap` what config hooks may change. The YAML files beside this module
are recipes for `python exp.py with configs/<recipe>.yaml`.
"""

import sys

if "." not in __name__:  # imported by its old name, from a checkout
    from sacristan.old_names import forward

    forward(__name__)

from sacristan.configs.map import FrozenList, Map, MutableMap, freeze, send_maps_as_maps, to_plain

if "multiprocessing.reduction" in sys.modules:  # as in a process that was spawned
    send_maps_as_maps(sys.modules["multiprocessing.reduction"])

__all__ = ["FrozenList", "Map", "MutableMap", "freeze", "to_plain"]
