"""Steps of small models with one thread, with threads that spin while they wait, and with threads that sleep.

python benchmarks/threads.py [--load N] [--steps N]

Beside N processes that keep cores busy, by default one a core. Each row is a process of its own, as OpenMP reads its
settings when torch is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

LAB = Path(__file__).resolve().parents[1]
# Number of threads (0: torch's own) and what OpenMP is asked for: its own count of spins, or to sleep.
ROWS = {
    "1 thread": ("1", {"OMP_WAIT_POLICY": "passive"}),
    "threads that spin": ("0", {"GOMP_SPINCOUNT": "300000"}),
    "threads that sleep (the lab's)": ("0", {"OMP_WAIT_POLICY": "passive"}),
}
BUSY = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: sum(range(10_000))"


def measure(num_threads: int, num_steps: int) -> dict[str, tuple[float, float]]:
    """Return the wall and CPU time of a step, microseconds, of each model."""
    import torch
    from torch import nn

    from sacristan.ingredients.models.networks import CNN, MLP, ViT

    if num_threads:
        torch.set_num_threads(num_threads)
    shape = (1, 8, 8)
    found = {}
    for name, model, share in (("mlp", MLP(shape, 10), 10), ("cnn", CNN(shape, 10), 1), ("vit", ViT(shape, 10), 1)):
        inputs, targets = torch.randn(64, *shape), torch.randint(0, 10, (64,))
        optimizer = torch.optim.AdamW(model.parameters())
        criterion = nn.CrossEntropyLoss()
        for step in range(num_steps * share + 3):
            if step == 3:
                wall, cpu = time.perf_counter(), time.process_time()
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        steps = num_steps * share / 1e6
        found[name] = ((time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes that keep cores busy")
    parser.add_argument("--steps", type=int, default=10, help="steps of the cnn; the mlp takes ten times as many")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.steps)))
        return
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(options.load)]
    try:
        print(
            f"{os.cpu_count()} cores, {options.load} busy processes, load {os.getloadavg()[0]:.1f}; us a step (its CPU)"
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        for row, (threads, asked) in ROWS.items():
            environment = kept | {"PYTHONPATH": str(LAB)} | asked
            command = [sys.executable, __file__, "--measure", threads, "--steps", str(options.steps)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            shown = "  ".join(f"{name} {wall:9,.0f} ({cpu:9,.0f})" for name, (wall, cpu) in found.items())
            print(f"{row:32}{shown}", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
