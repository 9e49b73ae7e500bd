"""Writing a new experiment into a folder: all of its files, or none."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template

from sacristan.experiments.new.names import check_module, check_name
from sacristan.ingredients.errors import ConfigError

__all__ = ["read_template", "render", "write_experiment"]

# What an experiment imports from the file of its ingredient, unless the ingredient is in its own file.
_IMPORT = "\nfrom $name.noise import add_noise, noise\n"


def write_experiment(name: str, folder: Path) -> list[Path]:
    """Write a script, its recipe and its test into `folder`, and return them; if one cannot be written, none stays."""
    check_name(name)
    texts = {folder / file: text for file, text in _texts(name).items()}
    there = [path for path in texts if path.exists() or path.is_symlink()]
    if there:
        files = ", ".join(path.name for path in there)
        verb, them = ("exists", "it") if len(there) == 1 else ("exist", "them")
        raise ConfigError(f"{name}: {files} {verb} already; choose another name, or remove {them}")
    check_module(name, folder, f"{name}.py")
    try:
        _write_all(texts)
    except OSError as error:
        raise ConfigError(f"{name}: cannot write to {folder}: {error.strerror}; nothing was written") from error
    return list(texts)


def _texts(name: str) -> dict[str, str]:
    """Return the contents of the files by their names."""
    script, recipe, test = f"{name}.py", f"{name}.yaml", f"test_{name}.py"
    words = {
        "name": name,
        "script": script,
        "module": name,
        "recipe": recipe,
        "recipe_path": f'Path(__file__).with_name("{recipe}")',
        "test": test,
    }
    ingredient = read_template("ingredient").partition("\n\n")[2].partition("\n\n")[2]
    whole = read_template("script").replace(_IMPORT, f"\n{ingredient}\n")
    whole = whole.replace("from sacristan.ingredients import ", "from sacristan.ingredients import Ingredient, ")
    return {recipe: render("recipe", words), test: render("test", words), script: Template(whole).substitute(words)}


def _write_all(texts: dict[Path, str]) -> None:
    """Write files that do not exist; if one cannot be written, remove the others."""
    written: list[Path] = []
    try:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as stream:
                written.append(path)
                stream.write(text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def read_template(name: str) -> str:
    """Return the text of a template, by its name."""
    return (files("sacristan.experiments.new") / "templates" / f"{name}.txt").read_text(encoding="utf-8")


def render(template: str, words: dict[str, str]) -> str:
    """Return the text of a template with each `$name` replaced by its word."""
    return Template(read_template(template)).substitute(words)
