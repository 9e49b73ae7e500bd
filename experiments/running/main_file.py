"""`MainFile`: the file of an experiment, how it was started, and the sources that belong to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sacred

from sacristan.ingredients.errors import ConfigError
from sacristan.observers.provenance import lab_git_state
from sacristan.observers.provenance.sources import imported_sources, is_loose, md5_of, source_name
from sacristan.old_names import current_name


def is_notebook() -> bool:
    """Return whether the process runs cells, in a notebook or a prompt of IPython, and no script."""
    return _shell() is not None and not hasattr(sys.modules["__main__"], "__file__")


def _shell() -> Any:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


class MainFile:
    """The file that creates an experiment; `path` is None in notebooks, prompts and modules of packages."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        path = names.get("__file__")
        self.module = module_of(names)
        is_installed = self.module is not None and path is not None and not is_loose(str(Path(path).absolute().parent))
        is_others = is_installed and not str(self.module).startswith("sacristan.")
        self.path: str | None = None if path == "<stdin>" or is_others else path

    @property
    def base_dir(self) -> Path:
        """The folder that the lab's modules are imported from, as Python finds them: links to a script resolved."""
        if self.path is None:
            return Path.cwd()
        if self.module is not None:
            if self.module.startswith("sacristan."):
                return Path(str(sys.modules["sacristan"].__file__)).parents[1]
            return (Path.cwd() / self.path).parents[self.module.count(".")]
        return Path(self.path).resolve().parent

    def executed_cells(self) -> str:
        """Return executed cells as a script that `ipython` runs, its commands as calls; empty without a notebook."""
        shell = _shell()
        cells = shell.user_ns.get("In", ()) if self.path is None and shell is not None else ()
        return "\n".join(f"# %% [{number}]\n{cell.rstrip()}\n" for number, cell in enumerate(cells) if cell.strip())

    def provenance(self, experiment: sacred.Experiment) -> dict[str, Any]:
        """Return the lab's sources imported by now, and its repository, as entries of Sacred's experiment info."""
        root = Path(os.fsdecode(experiment.base_dir))
        name = experiment.mainfile.to_json(experiment.base_dir)[0] if experiment.mainfile else None
        main = root / name if name else None
        if main is not None and main.exists() and self.path is not None and main.samefile(self.path):
            # Sacred's has all links resolved.
            name = source_name(self.path, root)
            main = root / name if name else main
        git = lab_git_state(root, main, content=False)
        repositories = [{"url": git["url"], "commit": git["commit"], "dirty": git["dirty"]}] if git else []
        sources = sorted({*imported_sources(root, main), *_added_sources(experiment, root)})
        entry = {"mainfile": name, "sources": sources, "repositories": repositories}
        return entry | ({"module": self.module} if self.module else {})


def module_of(names: Mapping[str, Any]) -> str | None:
    """Return the module that was started as `python -m package.module`, from the main globals; None for a script."""
    spec = names.get("__spec__")
    if spec is None or names.get("__name__") != "__main__":
        return None
    name = current_name(spec.name)
    parts = tuple(name.removeprefix("sacristan.").split("."))
    return name if Path(str(names.get("__file__"))).with_suffix("").parts[-len(parts) :] == parts else None


def _added_sources(experiment: sacred.Experiment, root: Path) -> Iterator[tuple[str, str]]:
    for part, _ in list(experiment.traverse_ingredients()):
        for path in getattr(part, "added_sources", ()):
            name = source_name(path, root)
            if name is None:
                raise ConfigError(
                    f"add_source_file: {path} is not below {root}, where the sources of {os.fsdecode(experiment.path)} "
                    "are; move it there, or keep it by add_resource, or give the experiment another base_dir"
                )
            yield name, md5_of(path)
