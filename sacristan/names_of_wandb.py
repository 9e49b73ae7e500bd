"""Names of W&B that `sacristan` does not have, and what to use instead."""

from __future__ import annotations

__all__ = ["ADVICE"]

ADVICE = {
    "Api": "read runs by sacristan.open_store('my_runs')",
    "Graph": "log the graph: run.lab_run.log_graph(model, inputs)",
    "Molecule": "keep the file: run.save(path)",
    "Object3D": "use sacristan.PointCloud",
    "Plotly": "log the figure itself: run.log({'plot': figure})",
    "Run": "the run is what sacristan.init returns",
    "Settings": "give init its arguments by name; there are no further settings",
    "agent": "run the sweep from the command line: sacristan sweep",
    "controller": "run the sweep from the command line: sacristan sweep",
    "ensure_configured": "nothing has to be configured; remove the line",
    "errors": "errors are sacristan.LabError and sacristan.ObserversError",
    "join": "use sacristan.finish()",
    "link_model": "use sacristan.log_artifact(path, type='model')",
    "login": "nothing has to be logged in to; remove the line",
    "plot": "log a sacristan.Table, or a figure: run.log({'roc': figure})",
    "plot_table": "log a sacristan.Table",
    "require": "nothing has to be required; remove the line",
    "restore": "use an artifact: sacristan.use_artifact(name)",
    "sdk": "what scripts use of it is in sacristan",
    "setup": "nothing has to be set up; remove the line",
    "sweep": "run the sweep from the command line: sacristan sweep",
    "teardown": "use sacristan.finish()",
    "termlog": "print it",
    "termwarn": "print it",
    "util": "nothing of it is needed to record",
    "wandb_run": "the run is what sacristan.init returns",
}
