"""YAML and JSON as researchers mean them: `1e-3` is a number, no key stands twice, and no tag builds an object."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["dump_yaml", "load_json", "load_yaml"]

# YAML 1.1 takes 1e-3 for a string, which no researcher means; this is the float of YAML 1.2.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
# Numbers to YAML 1.1, which read otherwise: 010 is 8, 08 is a float, and 1:30 is 90.
_LEADING_ZERO, _BASE_60 = re.compile(r"[-+]?0[0-9_]+"), re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_FLOAT_RESOLVER = ("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def load_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError if it is invalid, or a key occurs twice in an object."""
    return json.loads(text, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice; give it once")
    return found


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises yaml.YAMLError if it is invalid, a key occurs twice in a mapping, or a number would surprise: 010, 1:30.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's, with that float."""

        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            first: dict[tuple[str, str], Any] = {}
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                other = first.setdefault((key.tag, key.value), key)
                if other is not key:
                    lines = " and ".join(dict.fromkeys((str(_line_of(other)), str(_line_of(key)))))
                    raise yaml.YAMLError(f"the key {key.value!r} stands twice, in line {lines}; give it once")
            return node

        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            if node.tag in _NUMBERS and (_LEADING_ZERO.fullmatch(value) or _BASE_60.fullmatch(value)):
                raise yaml.YAMLError(f"got {value} in line {_line_of(node)}, {_surprise(value, yaml.safe_load(value))}")
            return value

    Loader.add_implicit_resolver(*_FLOAT_RESOLVER)
    return yaml.load(text, Loader=Loader)


def _surprise(text: str, read: Any) -> str:
    """Return how YAML reads a number, and how to write what was meant."""
    read = read if isinstance(read, int | float) else float(text)  # 08
    decimal = [] if ":" in text else [str(int(text))]
    ways = ", or ".join(
        dict.fromkeys(
            [*decimal, f"{read:g}" if isinstance(read, float) else str(read), f"'{text}' in quotes for the text"]
        )
    )
    return f"which YAML reads as {read}; write {ways}"


def _line_of(node: Any) -> int:
    return node.start_mark.line + 1


def dump_yaml(config: dict) -> str:
    """Return a config as YAML that `load_yaml` reads back."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """PyYAML's, with that float."""

    Dumper.add_implicit_resolver(*_FLOAT_RESOLVER)
    return yaml.dump(config, Dumper=Dumper, sort_keys=False, allow_unicode=True)
