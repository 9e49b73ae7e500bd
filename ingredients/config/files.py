"""Config files, read as data: JSON and YAML, never pickle, never tags that build objects.

Sacred reads `with file.yaml` through a table of handlers that decode jsonpickle, full YAML and pickle, all of which can
run code. `guard_sacred` replaces them with the readers of this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.shipped import find_file
from configs.yaml_text import dump_yaml, load_json, load_yaml
from ingredients.errors import ConfigError, MissingConfigFileError
from observers.record.atomic_file import replacing

__all__ = ["guard_sacred", "read_config_file", "write_config_file"]

_READERS: dict[str, Callable[[str], Any]] = {".json": load_json, ".yaml": load_yaml, ".yml": load_yaml}


def read_config_file(path: str | Path) -> dict:
    """Return the entries of a JSON or YAML file.

    Args:
        path: The file; its suffix, .json, .yaml or .yml, decides the format. A path below `configs/` that does not
            exist names the recipe of the lab.

    Returns:
        The entries, nested; none of an empty file.

    Raises:
        MissingConfigFileError: If there is no such file.
        ConfigError: If it is of another kind, or it is not a mapping of entries.
    """
    path = find_file(path)
    if path.suffix not in _READERS:
        raise ConfigError(f"{path}: got a {path.suffix or 'suffixless'} file, expected .yaml, .yml or .json")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingConfigFileError(f"{path}: there is no such config file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from error
    return _parse(text, path)


def _parse(text: str, path: Path) -> dict:
    try:
        entries = _READERS[path.suffix](text)
    except Exception as error:
        kind, reason = "JSON" if path.suffix == ".json" else "YAML", " ".join(str(error).split())
        raise ConfigError(f"{path}: is not valid {kind}: {reason}") from error
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        kind = type(entries).__name__
        raise ConfigError(f"{path}: got a {kind}, expected entries of the form `key: value`")
    _check_entries(entries, path)
    return entries


def _check_entries(value: Any, path: Path) -> None:
    """Reject keys and values that a config cannot hold, such as YAML's dates."""
    if isinstance(value, list):
        for item in value:
            _check_entries(item, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_key(key, path)
            _check_entries(item, path)
    elif not isinstance(value, str | int | float | None):
        raise ConfigError(f"{path}: got {value} ({type(value).__name__}), expected a number or text; quote it for text")


def _check_key(key: Any, path: Path) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{path}: got the key {key!r} ({type(key).__name__}), expected text; quote it")
    if key.startswith(("py/", "json://")):
        raise ConfigError(
            f"{path}: got the key {key!r}, by which jsonpickle builds objects; a config file holds plain "
            "values: give a class or function by its dotted name, as text"
        )
    if "." in key.strip("."):
        group, _, rest = key.partition(".")
        raise ConfigError(f"{path}: got the key {key!r}; nest it, as in `{group}: {{{rest}: ...}}`")
    if not key or "." in key or key.startswith("$"):
        raise ConfigError(f"{path}: got the key {key!r}, expected a name without `.` and `$`")


def write_config_file(config: dict, path: str | Path) -> None:
    """Write a config as JSON or YAML; the file is replaced as a whole or not at all.

    Args:
        config: Its entries, nested.
        path: The file; its suffix, .json, .yaml or .yml, decides the format.

    Raises:
        ConfigError: If the suffix is another one, a value is none of a config, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise ConfigError(f"config_filename: got {str(path)!r}, expected a name ending in .yaml, .yml or .json")
    try:
        text = json.dumps(config, indent=2) + "\n" if path.suffix == ".json" else dump_yaml(config)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: a config holds numbers, text, lists and dicts only: {reason}") from error
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
