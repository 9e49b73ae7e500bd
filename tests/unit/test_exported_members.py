"""The exports of each package, as a list to read: a name that comes or goes is noticed here."""

import ast
import importlib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EXPORTED = {
    "sacristan": [
        "Artifact",
        "ArtifactStore",
        "Audio",
        "Callback",
        "Experiment",
        "Figure",
        "FileObserver",
        "Histogram",
        "Html",
        "Image",
        "Ingredient",
        "LabError",
        "Map",
        "MongoObserver",
        "ObserversError",
        "PointCloud",
        "Run",
        "RunsError",
        "Series",
        "Store",
        "Supervised",
        "Table",
        "TensorBoardObserver",
        "Text",
        "Trainer",
        "Video",
        "alert",
        "compare",
        "config",
        "copy",
        "define_metric",
        "diff",
        "evaluate",
        "export_runs",
        "finish",
        "fit",
        "fork",
        "import_foreign",
        "import_runs",
        "incense",
        "init",
        "log",
        "log_artifact",
        "log_model",
        "open_store",
        "predict",
        "read_media",
        "read_metrics",
        "read_table",
        "reproduce",
        "resume",
        "run",
        "save",
        "summary",
        "sync",
        "unwatch",
        "use_artifact",
        "use_model",
        "watch",
    ],
    "configs": ["FrozenList", "Map", "MutableMap", "freeze", "to_plain"],
    "experiments": [
        "Callback",
        "Experiment",
        "FitResult",
        "LabRun",
        "Monitor",
        "RunningMetrics",
        "Supervised",
        "Task",
        "Terminated",
        "Trainer",
        "cases_table",
        "evaluate",
        "fit",
        "inspection",
        "loop",
        "predict",
        "results",
        "steps_per_epoch",
    ],
    "ingredients": [
        "Batches",
        "CNN",
        "CheckpointError",
        "Checkpointer",
        "ConcurrentRunError",
        "ConfigError",
        "Data",
        "DataError",
        "DeviceError",
        "FocalLoss",
        "Ingredient",
        "LabError",
        "LoaderBatches",
        "Loss",
        "LossError",
        "MLP",
        "MissingConfigFileError",
        "MissingDependencyError",
        "MissingEntryError",
        "MixedPrecision",
        "ModelError",
        "OptimizerError",
        "Padded",
        "Place",
        "PrecisionError",
        "RankError",
        "Schedule",
        "SchedulerError",
        "Source",
        "TensorBatches",
        "TrainingError",
        "TrainingSettings",
        "UnknownEntryError",
        "UnknownNamedConfigError",
        "ViT",
        "amp",
        "checkpoint",
        "data",
        "device",
        "distributed",
        "exporting",
        "global_stream",
        "loss",
        "metrics",
        "model",
        "numpy_stream",
        "optimizer",
        "scheduler",
        "seed_globals",
        "stream_seed",
        "torch_stream",
        "training",
    ],
    "observers": [
        "ArtifactDamagedError",
        "ArtifactError",
        "ArtifactFile",
        "ArtifactMovedError",
        "ArtifactNotFoundError",
        "ArtifactStore",
        "ArtifactVersion",
        "Audio",
        "BufferedObserver",
        "DestinationError",
        "Figure",
        "FileObserver",
        "GraphObserver",
        "Histogram",
        "Html",
        "Image",
        "Lineage",
        "Media",
        "MediaEntry",
        "MediaError",
        "MediaObserver",
        "MediaRecord",
        "MissingExtraError",
        "MongoObserver",
        "NotifyError",
        "ObserversError",
        "PointCloud",
        "RecordError",
        "ReservedNameError",
        "ResumeError",
        "RewindableObserver",
        "SealError",
        "Series",
        "Table",
        "TensorBoardObserver",
        "Text",
        "Video",
        "file_observer",
        "read_media",
        "read_metrics",
        "read_table",
        "run_folder",
    ],
}


def imported(package):
    return importlib.import_module("sacristan" if package == "sacristan" else f"sacristan.{package}")


def imports_of(package):
    """Return what `package/__init__.py` imports at its top or for editors, by name: the module that it is from."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    for_editors = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    guarded = [node for node in tree.body if isinstance(node, ast.Try)]
    nodes = [*tree.body, *(node for block in (*for_editors, *guarded) for node in block.body)]
    found = [(node.module, alias) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    named = {alias.asname or alias.name: (module, alias.name) for module, alias in found}
    for module in [module for module, alias in found if alias.name == "*"]:
        named |= {name: (module, name) for name in importlib.import_module(module).__all__}
    return named


@pytest.mark.parametrize("package", EXPORTED)
def test_package_exports_these_names(package):
    module = imported(package)
    assert sorted(module.__all__) == EXPORTED[package]
    assert set(EXPORTED[package]) <= set(dir(module))


# Of the current run, which changes: `sacristan.__getattr__` looks them up at each use.
OF_THE_CURRENT_RUN = ("config", "run", "summary")
LASTING = [
    (package, name)
    for package in EXPORTED
    for name in EXPORTED[package]
    if (package, name) not in [("sacristan", each) for each in OF_THE_CURRENT_RUN]
]


@pytest.mark.parametrize(("package", "name"), LASTING)
def test_exported_name_is_there_for_programs_and_editors(package, name):
    found = getattr(imported(package), name)
    if isinstance(found, types.ModuleType) and found.__name__ == f"sacristan.{package}.{name}":
        return
    home, original = imports_of(package)[name]
    shown = importlib.import_module(f"{home}.{original}") if isinstance(found, types.ModuleType) else None
    assert found is (shown or getattr(importlib.import_module(home), original))


@pytest.mark.parametrize("package", EXPORTED)
def test_name_that_is_not_exported_is_refused(package):
    with pytest.raises(AttributeError, match=f"module '{imported(package).__name__}' has no attribute 'nothing'"):
        _ = imported(package).nothing


def test_tests_import_what_a_package_exports_from_the_package():
    exported = {
        (home, name)
        for package in ("configs", "experiments", "ingredients", "observers", "runs")
        for name, (home, original) in imports_of(package).items()
        if name == original and name in imported(package).__all__ and home != f"sacristan.{package}"
    }
    inner = [
        f"{path.relative_to(ROOT)}, line {node.lineno}: {node.module}.{alias.name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != "make_store.py"  # which earlier releases run
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module, alias.name) in exported
    ]
    assert inner == []
