"""Configuration values as code sees them, and the recipes that ship with the lab.

`Map` is what captured functions receive, `MutableMap` what config hooks may change. The YAML files beside this module
are recipes for `python exp.py with configs/<recipe>.yaml`.
"""

from configs.map import FrozenList, Map, MutableMap, freeze, to_plain

__all__ = ["FrozenList", "Map", "MutableMap", "freeze", "to_plain"]
