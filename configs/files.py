"""Files of configs: the lab's own, found from any folder; and YAML with `1e-3` as a number, and without tags."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_PATTERNS = ("*.yaml", "*.csv")


def find_file(path: str | Path) -> Path:
    """Return the path of a file, or of the lab's own one below `configs/` if the working folder has none."""
    path = Path(path)
    own = _own_folder(path.parent)
    is_own = own is not None and path.name in _own_names(own) and not os.path.lexists(path)
    return own / path.name if own is not None and is_own else path


def typed_name(path: str | Path) -> str:
    """Return the name that `find_file` finds a file of the lab by, or any other path unchanged."""
    is_own = Path(path).is_absolute() and Path(path).is_relative_to(_FOLDER)
    return str(Path(_FOLDER.name, Path(path).relative_to(_FOLDER))) if is_own else str(path)


def names_beside(path: str | Path) -> list[str]:
    """Return the names of the files, the lab's among them, that could be meant by the name of a path."""
    folder = Path(path).parent
    own = _own_folder(folder)
    return sorted({path.name for path in folder.glob("*.*")}.union(_own_names(own) if own else ()))


def _own_folder(folder: Path) -> Path | None:
    """Return the folder of the lab that a typed path names, such as `configs/sweeps`; None for another path."""
    is_own = folder.parts[:1] == (_FOLDER.name,) and ".." not in folder.parts
    return _FOLDER.joinpath(*folder.parts[1:]) if is_own else None


def _own_names(folder: Path) -> list[str]:
    return [path.name for pattern in _PATTERNS for path in folder.glob(pattern)]


# ---------------------------------------------------------------------- YAML and JSON

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
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice; give it once")
    return entries


def load_yaml(text: str) -> Any:
    """Parse YAML; raise yaml.YAMLError if a key occurs twice in a mapping or a number would surprise: 010, 1:30."""
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
