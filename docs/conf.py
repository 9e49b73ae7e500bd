"""Configuration of Sphinx: `python -m sphinx -W -c docs . build/docs` builds the documentation.

The source is the whole repository, because pages link to files beside `docs/`. When a build begins, each public name
gets a page in `docs/api`; so do the keys of the JSON that commands print.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
API = ROOT / "docs" / "api"
# The packages whose `__all__` is public, each with its purpose.
PACKAGES = {
    "sacristan.experiments": "compose experiments and train",
    "sacristan.ingredients": "the parts of an experiment, and what they build",
    "sacristan.observers": "record runs; media and artifacts",
    "sacristan.runs": "find, read, compare, resume and reproduce past runs",
    "sacristan.configs": "configs as captured functions receive them",
    "sacristan": "what is used most",
}

project = "Sacristan"
author = copyright = "the Sacristan authors"
html_title = "Sacristan"
html_theme = "furo"
html_show_sphinx = False
html_static_path = []
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["*.md", "benchmarks/README.md", "tests/README.md", "docs/**"]
myst_heading_anchors = 3
copybutton_prompt_text = "$ "
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False  # a description may hold a colon
# Short names of attributes, such as `bytes`, are also those of types; blocks of CSV have no highlighting.
suppress_warnings = ["ref.python", "misc.highlighting_failure"]


def write_api_pages(app: Any) -> None:
    """Write a page for each public name, one for each package that lists them, and one of the keys of JSON."""
    from sacristan.runs.commands import reasons_without_json, schemas
    from sacristan.runs.documents import reference_page

    API.mkdir(exist_ok=True)
    pages: dict[Path, str] = {}
    documented: dict[int, str] = {}
    for package, purpose in PACKAGES.items():
        module = importlib.import_module(package)
        names = sorted(module.__all__, key=str.lower)
        listed = "\n".join(f"{package}.{name}" for name in names)
        pages[API / f"{package}.md"] = f"# {package}: {purpose}\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
        for name in names:
            exported = getattr(module, name)
            first = documented.setdefault(id(exported), f"{package}.{name}")
            directive = f"```{{eval-rst}}\n{api_directive(package, name, exported)}\n```"
            text = directive if first == f"{package}.{name}" else f"The same as [{first}]({first}.md)."
            pages[API / f"{package}.{name}.md"] = f"# {package}.{name}\n\n{text}\n"
    pages[API / "json.md"] = reference_page(schemas(), reasons_without_json())
    for path in set(API.glob("*.md")) - pages.keys():
        path.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def api_directive(package: str, name: str, exported: Any) -> str:
    """Return the directive of autodoc for a public name; a module is documented with all that it exports."""
    if inspect.ismodule(exported):
        return f".. automodule:: {exported.__name__}\n   :members:"
    if inspect.isclass(exported):
        lines = [f".. autoclass:: {package}.{name}", "   :members:", "   :show-inheritance:"]
        documented = [base for base in exported.__mro__[1:] if has_page(base)]
        if len(documented) < len(exported.__mro__) - 1:
            lines.append(f"   :inherited-members: {', '.join(base.__name__ for base in documented)}")
        return "\n".join(lines)
    return f".. {'autofunction' if callable(exported) else 'autodata'}:: {package}.{name}"


def has_page(base: type) -> bool:
    """Tell whether a base of a class has a page, here or elsewhere, so that the class need not repeat its members."""
    package = ".".join(base.__module__.split(".")[:2])
    return package not in PACKAGES or base.__name__ in importlib.import_module(package).__all__


def read_as_markdown(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring, whose asterisks and indented code are those of Markdown, into reStructuredText."""
    is_code, converted = False, [""]
    for line in lines:
        if re.fullmatch(r"Examples?:", line):
            converted += ["**Example**", "", ".. code-block:: python", ""]
            is_code = True
            continue
        if is_code and line and not line.startswith(" "):
            is_code = False
        elif not is_code and re.match(r" {4}\S", line) and not converted[-1] and not in_section(converted):
            converted += [".. code-block:: python", ""]
            is_code = True
        converted.append(line if is_code else escaped(line))
    lines[:] = converted[1:]


def in_section(lines: list[str]) -> bool:
    """Tell whether the next line belongs to a section such as `Args:`, and is indented for that."""
    unindented = [line for line in lines if line and not line.startswith(" ")]
    return bool(unindented) and re.fullmatch(r"[A-Z]\w+:", unindented[-1]) is not None


def escaped(line: str) -> str:
    """Return a line with its asterisks escaped, except those in code."""
    return "".join(part if part.startswith("`") else part.replace("*", r"\*") for part in re.split(r"(`[^`]*`)", line))


def copy_llms_txt(app: Any, exception: Exception | None) -> None:
    """Put `llms.txt` into the site's root, with links to the pages' sources, which the site has in Markdown."""
    if exception is None and app.builder.name == "html":
        text = (ROOT / "llms.txt").read_text()
        (Path(app.outdir) / "llms.txt").write_text(re.sub(r"\]\((\S+\.md)\)", r"](_sources/\1.txt)", text))


def setup(app: Any) -> None:
    """Connect the functions above to the events of Sphinx."""
    app.connect("builder-inited", write_api_pages)
    app.connect("build-finished", copy_llms_txt)
    app.connect("autodoc-process-docstring", read_as_markdown, priority=100)
