"""YAML as researchers mean it: `1e-3` is a number, and no tag builds an object."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["dump_yaml", "load_yaml"]

# YAML 1.1 takes 1e-3 for a string, which no researcher means; this is the float of YAML 1.2.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
_FLOAT_RESOLVER = ("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def load_yaml(text: str) -> Any:
    """Return the value that a text of YAML holds.

    Raises:
        yaml.YAMLError: If it is not valid.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's, with that float."""

    Loader.add_implicit_resolver(*_FLOAT_RESOLVER)
    return yaml.load(text, Loader=Loader)


def dump_yaml(config: dict) -> str:
    """Return a config as YAML that `load_yaml` reads back."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """PyYAML's, with that float."""

    Dumper.add_implicit_resolver(*_FLOAT_RESOLVER)
    return yaml.dump(config, Dumper=Dumper, sort_keys=False, allow_unicode=True)
