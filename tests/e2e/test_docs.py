"""README and docs, executed as they stand: `$` lines of console blocks, and python blocks.

A block opened with `python file=NAME`, or `csv file=NAME`, is written to that file, for the commands after it; one
opened with `python with=store` has the page's store open. A line `error: ...` below a command is what it must print,
ending with exit code 1. All blocks of one page run in a copy of the lab, in order; what they leave there is removed.
Where a page names no number of epochs, the copy trains two; the nightly tests train as many as the lab and its recipes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.labs import copy_lab
from tests.processes import imported, launcher, run

LAB = Path(__file__).resolve().parents[2]
PAGES = [LAB / "README.md", *sorted((LAB / "docs").glob("*.md")), *sorted((LAB / "docs" / "howto").glob("*.md"))]
BLOCK = re.compile(r"^```(console|python|csv)(?: (file|with)=(\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The number of epochs in the lab's defaults and recipes.
EPOCHS = re.compile(r"^( *epochs(?: =|:) )\d+$", re.MULTILINE)
# So many commands of README.md are run by a Python that starts afresh.
NUM_COLD = 1

# What a shell might read otherwise than as it stands, where no single quotes are around it.
READ_BY_SHELLS = set("$`|&;<>()*?[]{}~#!\\")
QUOTED = re.compile("'[^']*'")

OPENING = "from sacristan import runs\n\nstore = runs.open_store()\n"


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return each command with the lines that stand below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def words(command: str) -> list[str] | str:
    """Return the words of a command; the command itself, if that takes a shell."""
    name, *others = shlex.split(command)
    is_plain = name in ("python", "sacristan") and READ_BY_SHELLS.isdisjoint(QUOTED.sub("", command))
    if not is_plain:
        return command
    return [sys.executable, *(["-m", "sacristan"] if name == "sacristan" else []), *others]


@pytest.fixture(scope="module", params=["short", pytest.param("whole", marks=pytest.mark.nightly)])
def copied_lab(request, tmp_path_factory):
    """A copy of the lab, whose processes find its modules imported, and whose trainings are short or whole."""
    folder = tmp_path_factory.mktemp("lab")
    copy_lab(folder)
    if request.param == "short":
        for path in (folder / "ingredients" / "training.py", *(folder / "configs").glob("*.yaml")):
            path.write_text(EPOCHS.sub(r"\g<1>2", path.read_text()))
    with imported(folder):
        yield folder
    shutil.rmtree(folder)


@pytest.fixture
def lab(copied_lab):
    """The copy as it was made, for one page, which adds to it and changes nothing of it."""
    made = contents(copied_lab)
    yield copied_lab
    for path in copied_lab.iterdir():
        if path.is_dir() and not any(path in parent.parents for parent in made):
            shutil.rmtree(path)
    for path in contents(copied_lab).keys() - made.keys():
        path.unlink()
    assert contents(copied_lab) == made


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the files and links in a folder, with what tells whether they are as they were."""
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path: ((state := path.lstat()).st_ino, state.st_mtime_ns) for path in files}


EXECUTED = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [EXECUTED[0], *(pytest.param(page, marks=pytest.mark.slow) for page in EXECUTED[1:])],
    ids=lambda page: page.name,
)
def test_page_as_typed_does_what_it_says(page, lab):
    cold, warm = dict(os.environ), {**os.environ, **launcher(lab / "bin")}
    options = {"cwd": lab, "capture_output": True, "text": True}
    # The first one, that everybody types, is run by the Python that they have.
    cold_commands = NUM_COLD if page.name == "README.md" else 0
    for kind, what, name, block in BLOCK.findall(page.read_text()):
        if kind != "console":
            script = lab / (name if what == "file" else "example.py")
            script.write_text(OPENING + block if what == "with" else block)
            if what != "file":
                done = run([sys.executable, script.name], env=warm, starts_python=True, **options)
                assert done.returncode == 0, f"{block}\n{done.stderr}"
            continue
        for command, expected in commands(block):
            is_cold = cold_commands > 0
            starts_python = True if "torch.distributed.run" in command else None
            environ = cold if is_cold else warm
            done = run(command if is_cold else words(command), env=environ, starts_python=starts_python, **options)
            cold_commands -= 1
            assert done.returncode == (1 if expected else 0), f"{command}\n{done.stdout}\n{done.stderr}"
            for line in expected:
                assert line in done.stderr.splitlines(), f"{command}\n{done.stderr}"


@pytest.mark.slow
def test_tutorial_continues_from_the_readme_in_the_same_folder(lab):
    """The sweep of README.md, which no test types there, has the id of the tutorial's."""
    readme, tutorial = ((LAB / name).read_text() for name in ("README.md", "docs/tutorial.md"))
    sweep = next(line for line in readme.splitlines() if "sweep.run" in line and line.startswith("python "))
    table = next(line for line in readme.splitlines() if line.startswith("sacristan compare --sweep"))
    section = tutorial[tutorial.index("## 3.") : tutorial.index("## 4.")]
    again = [line.removeprefix("$ ") for line in section.splitlines() if line.startswith("$ ")]
    environ = {**os.environ, **launcher(lab / "bin")}
    for command in (sweep, table, *again):
        done = run(words(command), cwd=lab, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    expected = re.findall(r"^[0-9.]+ +(\d) ", section, re.MULTILINE)
    assert re.findall(r"^[0-9.]+ +(\d) ", done.stdout, re.MULTILINE) == expected == ["5", "5"]


@pytest.mark.parametrize("page", [*PAGES, LAB / "CONTRIBUTING.md", LAB / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_llms_txt_lists_every_page():
    linked = set(re.findall(r"\]\((\S+)\)", (LAB / "llms.txt").read_text()))
    pages = {str(page.relative_to(LAB)) for page in PAGES if page.parent.name != "howto"}
    assert pages - {"docs/index.md"} <= linked
    assert [link for link in linked if not (LAB / link).exists()] == []


def test_index_of_how_to_pages_lists_each_once_with_its_title():
    folder = LAB / "docs" / "howto"
    titles = {page.name: page.read_text().splitlines()[0] for page in folder.glob("*.md") if page.name != "index.md"}
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (folder / "index.md").read_text(), re.MULTILINE)
    assert sorted((f"# {title}", name) for title, name in listed) == sorted(
        (title, name) for name, title in titles.items()
    )


# What somebody asks before they try the lab, and what answers it.
FIRST_QUESTIONS = {
    "How do I start?": [
        "from a clone to a table",
        "pip install -c constraints.txt -e .",
        "pip install wheels/sacristan-*.whl",
        "--project",
    ],
    "Does it replace my tracker? Is it fast?": ["It replaces a tracker where", "µs for the training thread"],
    "How do I log a metric or an image?": ["_run.log_scalar(", "Image(np."],
    "How do I use my own model, data or loss?": ["model.name=nets:Deep", "data.name=mine:measurements"],
    "How do I look at runs?": ["sacristan board"],
    "How do I sweep?": ["python exp.py sweep.run with"],
    "How do I compare over seeds?": ["sweep.over='{seed: [0, 1, 2]}'", "sacristan compare"],
    "How do I resume or reproduce a run?": ["sacristan resume 3", "sacristan reproduce 1"],
    "Where are my runs? How do I delete them?": [
        "python exp.py -F archive",
        "sacristan rm latest",
        "sacristan gc",
    ],
    "How do I get data in and out?": ["sacristan import old.csv", "--limit 0 --output everything.zip"],
}


def linked_pages(text: str, folder: Path) -> list[Path]:
    """Return the pages to which a text in a folder links."""
    return [folder / name for name in re.findall(r"\]\((?!https?://)([^)#]+\.md)", text)]


@pytest.mark.parametrize("question", FIRST_QUESTIONS)
def test_first_question_is_answered_within_two_clicks(question):
    [row] = [line for line in (LAB / "README.md").read_text().splitlines() if line.startswith(f"| {question} |")]
    pages = linked_pages(row, LAB)
    pages += [further for page in pages for further in linked_pages(page.read_text(), page.parent)]
    answer = "".join(page.read_text() for page in pages)
    assert [text for text in FIRST_QUESTIONS[question] if text not in answer] == []


def test_first_questions_are_those_of_the_readme():
    table = (LAB / "README.md").read_text().partition("## Where to go next")[2]
    questions = re.findall(r"^\| ([^|]*\?) \|", table, re.MULTILINE)
    assert questions[: len(FIRST_QUESTIONS)] == list(FIRST_QUESTIONS)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#{1,3} (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, LAB / "CONTRIBUTING.md", LAB / "CHANGELOG.md"], ids=lambda page: page.name)
def test_anchors_of_links_are_headings(page):
    links = re.findall(r"\]\((?!https?://)([^)#]*\.md)?#([^)]+)\)", page.read_text())
    assert [
        (name, anchor) for name, anchor in links if anchor not in anchors(page.parent / name if name else page)
    ] == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_page_is_short_enough_to_be_read(page):
    assert len(page.read_text().split()) <= 2000


@pytest.mark.parametrize("page", ["training.md", "extending.md"])
def test_examples_of_ones_own_parts_take_under_twenty_lines(page):
    blocks = [block for kind, *_, block in BLOCK.findall((LAB / "docs" / page).read_text()) if kind == "python"]
    lengths = [sum(1 for line in block.splitlines() if line.strip()) for block in blocks]
    assert lengths
    assert max(lengths) < 20
