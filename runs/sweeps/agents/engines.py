"""`Engine`: where the agents of a sweep run, on this machine or on a cluster, and with which resources."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.runs.errors import SweepError, needing_extra
from sacristan.runs.sweeps.agents.ray_agents import host_and_port, ray_agents
from sacristan.runs.sweeps.agents.supervising import supervise
from sacristan.runs.sweeps.agents.trials import Means
from sacristan.runs.sweeps.spec.definition import Definition
from sacristan.runs.sweeps.study.place import Place
from sacristan.runs.sweeps.views.status import Status
from sacristan.runs.work.worker import divided_threads

__all__ = ["Engine"]

_RESOURCES = ("cpus", "gpus", "memory_gb")
_CLUSTERS = ("slurm", "local", "debug")


@dataclasses.dataclass(frozen=True)
class Engine:
    """Runs agents in one of three places.

    Attributes:
        name: `local`, this machine; `ray`, the nodes of a cluster; or `slurm`, the tasks of an array job.
        address: Address of a Ray cluster; None starts one on this machine.
        resources: Resources of each agent on a cluster: `cpus`, `gpus`, `memory_gb`; with Ray also others that its
            nodes name.
        slurm: Options of the job, and the `cluster`: slurm, local or debug.
    """

    name: str = "local"
    address: str | None = None
    resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    slurm: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Reject options that the engine does not take."""
        if self.address is not None and self.name != "ray":
            raise SweepError(f"sweep.address: got {self.address!r} with sweep.engine={self.name}, expected engine=ray")
        if self.address not in (None, "auto"):
            host_and_port(self.address)
        if self.slurm and self.name != "slurm":
            raise SweepError(f"sweep.slurm: got options with sweep.engine={self.name}, expected sweep.engine=slurm")
        if self.resources and self.name == "local":
            raise SweepError(
                "sweep.resources: got some with sweep.engine=local, expected engine ray or slurm; on this machine CPUs"
                " and GPUs are divided among sweep.workers"
            )
        for name, value in self.resources.items():
            self._check_resource(name, value)
        cluster = self.slurm.get("cluster", "slurm")
        if cluster not in _CLUSTERS:
            raise SweepError(f"sweep.slurm: got the cluster {cluster!r}, expected one of: {', '.join(_CLUSTERS)}")

    def check_extras(self) -> None:
        """Reject an engine whose package is not installed."""
        package = {"ray": "ray", "slurm": "submitit"}.get(self.name)
        if package is not None:
            with needing_extra(self.name, f"sweep.engine={self.name}"):
                importlib.import_module(package)

    def _check_resource(self, name: str, value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value < 0:
            raise SweepError(f"sweep.resources.{name}: got {value!r}, expected a number that is not negative")
        if self.name != "slurm":
            return
        if name not in _RESOURCES:
            raise SweepError(
                f"sweep.resources.{name}: Slurm knows {', '.join(_RESOURCES)}; options of the job go to sweep.slurm"
            )
        if name != "memory_gb" and value != int(value):
            raise SweepError(f"sweep.resources.{name}: got {value}, but Slurm shares none; expected a whole number")

    def run(
        self, place: Place, definition: Definition, means: Means, workers: Sequence[dict[str, str]], log: Path
    ) -> Status:
        """Run agents on a sweep until it is done, and show its progress.

        `workers` holds variables for each agent's runs on this machine; clusters set their own.
        """
        if self.name == "slurm":
            from sacristan.runs.sweeps.agents.slurm_agents import run_array

            threads = {"OMP_NUM_THREADS": str(int(self.resources.get("cpus", 1)) or 1)}
            own = dataclasses.replace(means, environment={**threads, **means.environment})
            return run_array(place, definition.id, own, len(workers), self.resources, self.slurm)
        if self.name == "ray":
            # Of recent versions, Ray lets agents without GPUs see all of their node.
            variables = {} if self.resources.get("gpus") else {"CUDA_VISIBLE_DEVICES": "-1"}
            with ray_agents(place, definition, self.address, self.resources) as start:
                return supervise(place, definition.id, means, [variables for _ in workers], log, start=start)
        own = dataclasses.replace(means, environment={**divided_threads(len(workers)), **means.environment})
        return supervise(place, definition.id, own, workers, log)
