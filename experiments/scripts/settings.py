"""`Settings` and `Summary`: the config and the summary of a run, as scripts read and write them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from sacristan.ingredients.errors import ConfigError


class Settings(MutableMapping[str, Any]):
    """The settings of a run: `run.config.lr`, `run.config["lr"]`, `run.config.update(vars(args))`.

    Reading gives what was set, as it was set; the record has its latest value, as JSON holds it. Those of a sweep are
    `locked`. `write` takes settings that are new or have changed.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, Any]], None],
        values: Mapping[str, Any] | None = None,
        locked: Container[str] = (),
    ) -> None:
        vars(self)["_write"], vars(self)["_locked"] = write, locked
        vars(self)["_values"] = dict(values or {})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["_values"][name]
        except KeyError:
            raise AttributeError(f"config has no setting {name!r}; set it: config.{name} = ...") from None

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    __setattr__ = __setitem__

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"config.{name}: a setting that is recorded stays; set it to None")

    __delattr__ = __delitem__

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def update(  # type: ignore[override]  # takes what scripts parse as well, and W&B's option
        self, values: Any = (), allow_val_change: bool | None = None, **more: Any
    ) -> None:
        """Set several settings.

        Args:
            values: A mapping, the result of argparse, a dataclass, the flags of absl, or the path of a YAML or JSON
                file.
            allow_val_change: W&B's; settings may always change.
            **more: Settings by name.
        """
        new = {**as_settings(values), **more}
        new = {name: value for name, value in new.items() if name not in self._locked}
        self._values.update(new)
        self._write(new)

    def setdefaults(self, values: Any) -> None:
        """Set those of several settings that are not set."""
        self.update({name: value for name, value in as_settings(values).items() if name not in self._values})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy as a dict."""
        return dict(self._values)


def as_settings(values: Any) -> dict[str, Any]:
    """Return settings of a mapping, argparse.Namespace, dataclass, absl's flags or file, or raise ConfigError."""
    if values is None or values == ():
        return {}
    if isinstance(values, str | Path):
        return _of_file(Path(values))
    if hasattr(values, "flag_values_dict"):  # of absl
        return dict(values.flag_values_dict())
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return dataclasses.asdict(values)
    if type(values).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        values = OmegaConf.to_container(values, resolve=True)
    if not isinstance(values, Mapping):
        if not hasattr(values, "__dict__") or isinstance(values, type):
            raise ConfigError(
                f"config: got {values!r}, expected a dict, the result of argparse, a dataclass, or the path of a file"
            )
        values = vars(values)
    return {str(name): value for name, value in values.items()}


def _of_file(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML or JSON file; of an entry `{value: ..., desc: ...}`, as W&B has it, the value."""
    from sacristan.configs.files import load_yaml

    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"config: {path} cannot be read ({error})") from error
    if not isinstance(values, dict):
        raise ConfigError(f"config: {path} holds {values!r}, expected settings by name")
    return {
        str(name): value["value"] if isinstance(value, dict) and {"value"} <= {*value} <= {"value", "desc"} else value
        for name, value in values.items()
        if name != "wandb_version"
    }


class Summary(MutableMapping[str, Any]):
    """The numbers that stand for a run: the last value of each metric, or what `define_metric` asks for; and your own.

    run.summary["best_accuracy"] = best
    """

    def __init__(
        self, info: dict[str, Any], names: Callable[[], Iterator[str]], value_of: Callable[[str], Any]
    ) -> None:
        vars(self)["_info"], vars(self)["_names"], vars(self)["_value_of"] = info, names, value_of

    @property
    def _own(self) -> dict[str, Any]:
        return self._info.get("summary", {})

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else self._value_of(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"summary has no entry {name!r}") from None

    def __setitem__(self, name: str, value: Any) -> None:
        with contextlib.suppress(Exception):  # of an object, which may raise anything
            value = value.item() if getattr(value, "shape", None) == () else value
        self._info.setdefault("summary", {})[str(name)] = value

    __setattr__ = __setitem__

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    __delattr__ = __delitem__

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._names()), **self._own})

    def __len__(self) -> int:
        return len({*self._names(), *self._own})

    def __repr__(self) -> str:
        return repr(dict(self))
