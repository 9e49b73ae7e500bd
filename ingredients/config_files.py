"""Config files, read as data: JSON and YAML, never pickle, never tags that build objects.

Sacred reads `with file.yaml` through a table of handlers that decodes jsonpickle, full YAML and pickle, all of
which can run code. `guard_sacred` puts the readers of this module in their place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingredients.atomic_file import replacing
from ingredients.errors import ConfigError

__all__ = ["guard_sacred", "read_config_file", "write_config_file"]

# YAML 1.1 takes 1e-3 for a string, which no researcher means; this is the float of YAML 1.2.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")


def _yaml_loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Loader


def _load_yaml(text: str) -> Any:
    import yaml

    return yaml.load(text, Loader=_yaml_loader())


_READERS: dict[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": _load_yaml, ".yml": _load_yaml}


def read_config_file(path: str | Path) -> dict:
    """Return the entries of a JSON or YAML file.

    Raises:
        ConfigError: If there is no such file, it is of another kind, or it is not a mapping of entries.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise ConfigError(f"{path}: got a {path.suffix or 'suffixless'} file, expected .yaml, .yml or .json")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such config file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from error
    return _parse(text, path)


def _parse(text: str, path: Path) -> dict:
    try:
        entries = _READERS[path.suffix](text)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not valid {path.suffix[1:].upper()}: {reason}") from error
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        kind = type(entries).__name__
        raise ConfigError(f"{path}: got a {kind}, expected entries of the form `key: value`")
    return entries


def write_config_file(config: dict, path: str | Path) -> None:
    """Write `config` as JSON or YAML, by the suffix of `path`; the file is replaced as a whole or not at all.

    Raises:
        ConfigError: If the suffix is of another kind, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise ConfigError(f"config_filename: got {str(path)!r}, expected a name ending in .yaml, .yml or .json")
    if path.suffix == ".json":
        text = json.dumps(config, indent=2) + "\n"
    else:
        import yaml

        text = yaml.safe_dump(config, sort_keys=False)
    try:
        with replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; choose another config_filename") from error


def guard_sacred() -> None:
    """Make `with FILE` read config files through this module; calling it again changes nothing."""
    from sacred.config import config_files

    def load(stream: Any) -> dict:
        return _parse(stream.read(), Path(stream.name))

    for suffix in _READERS:
        config_files.HANDLER_BY_EXT[suffix] = config_files.Handler(load, config_files.HANDLER_BY_EXT[suffix].dump, "")
    config_files.HANDLER_BY_EXT.pop(".pickle", None)
