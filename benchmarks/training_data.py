"""A folder of images: samples read a second beside a hand-written DataLoader, and what a start costs.

python benchmarks/training_data.py [--images N] [--size PIXELS] [--workers N] [--turns N]

Reading goes in turns of one epoch each, the hand-written loader first, and then the lab's; the median of the ratios
counts. The start is that of a process of its own: with nothing known of the images, and with all of it known.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LAB = Path(__file__).resolve().parents[1]
BATCH = 64
START = """
import sys, time
wall, cpu = time.perf_counter(), time.process_time()
from sacristan.ingredients.data import ingredient, load
from sacristan.configs import Map
config = {**ingredient.configurations[0](), "name": "image_folder", "path": sys.argv[1]}
load(Map(config), 0)
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def write_images(folder: Path, count: int, size: int) -> None:
    """Write colour images of two classes, half of them JPEG, half PNG."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(count):
        small = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)
        path = folder / f"class{number % 2}" / f"{number}.{('jpg', 'png')[number // 2 % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)


def by_hand(folder: Path, prepared: Any, num_workers: int) -> Any:
    """Return what people write: a Dataset that decodes and normalises, in a DataLoader with persistent workers."""
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    mean, std = (torch.from_numpy(values) for values in (prepared.preparation.mean, prepared.preparation.std))
    files = [folder / name for name in prepared.names]

    class Images(Dataset):
        def __init__(self) -> None:
            self.files = [files[place] for place in prepared.indices["train"]]
            self.labels = prepared.targets[prepared.indices["train"]].tolist()

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            image = Image.open(self.files[index]).convert("RGB")
            values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
            return (values - mean) / std, self.labels[index]

    options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
    return DataLoader(Images(), BATCH, shuffle=True, **options)


def children_cpu() -> float:
    """Return the CPU time of this process and of those that it started and that live, in seconds."""
    import psutil

    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def read(batches: Any) -> tuple[int, float, float]:
    """Return the samples of an epoch, and the wall and CPU time of reading them."""
    wall, cpu, count = time.perf_counter(), children_cpu(), 0
    for inputs, targets in batches:
        assert inputs.dtype.is_floating_point
        count += len(targets)
    return count, time.perf_counter() - wall, children_cpu() - cpu


def report_reading(folder: Path, num_workers: int, turns: int) -> None:
    """Print samples a second of both, and the ratio."""
    from sacristan.configs import Map
    from sacristan.ingredients.data import ingredient, load  # before torch, whose threads it lets sleep

    import torch  # isort: skip

    from sacristan.ingredients.datasets.batches import make_batches

    config = {**ingredient.configurations[0](), "name": "image_folder", "path": str(folder), "num_workers": num_workers}
    prepared = load(Map(config), 0)
    ours = make_batches(prepared, config, 0, torch.device("cpu")).train
    loader = by_hand(folder, prepared, num_workers)
    rates: list[tuple[float, float]] = []
    costs: list[tuple[float, float]] = []
    for turn in range(turns + 1):
        found = [read(loader), read(ours.epoch(turn))]
        if turn:  # the first one starts the workers
            rates.append((found[0][0] / found[0][1], found[1][0] / found[1][1]))
            costs.append((1e6 * found[0][2] / found[0][0], 1e6 * found[1][2] / found[1][0]))
    for place, name in enumerate(("DataLoader by hand", "sacristan")):
        rate, cost = (statistics.median(pair[place] for pair in pairs) for pairs in (rates, costs))
        print(f"{name:24}{rate:12,.0f} samples/s{cost:12,.0f} us of CPU a sample")
    ratio, cost_ratio = (statistics.median(pair[1] / pair[0] for pair in pairs) for pairs in (rates, costs))
    print(f"{'sacristan / by hand':24}{ratio:12.2f}{cost_ratio:22.2f}")


def report_start(folder: Path, cache: Path) -> None:
    """Print what preparing the data takes in a new process, without and with what is known of the images."""
    environment = {**os.environ, "PYTHONPATH": str(LAB), "SACRISTAN_CACHE": str(cache)}
    for name in ("nothing known", "all known"):
        command = [sys.executable, "-c", START, str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        wall, cpu = (1e3 * float(word) for word in done.stdout.split())
        print(f"start, {name:17}{wall:12,.0f} ms{cpu:15,.0f} ms of CPU, imports included")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--size", type=int, default=64, help="height and width, pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    sys.path.insert(0, str(LAB))
    with tempfile.TemporaryDirectory(prefix="sacristan-images-") as name:
        folder, cache = Path(name) / "images", Path(name) / "cache"
        write_images(folder, options.images, options.size)
        time.sleep(4)  # what has just changed is not kept
        os.environ["SACRISTAN_CACHE"] = str(cache)
        print(
            f"{options.images} images of {options.size}x{options.size}, {options.workers} workers, batches of {BATCH}, "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        )
        report_start(folder, cache)
        report_reading(folder, options.workers, options.turns)


if __name__ == "__main__":
    main()
