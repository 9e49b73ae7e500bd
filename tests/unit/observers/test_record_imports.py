"""The record, on which everything rests, loads nothing heavy; `tests/unit/test_architecture.py` has the floors."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_record_needs_neither_torch_nor_sacred():
    rooms = [ROOT / "observers" / "errors.py", *sorted((ROOT / "observers" / "record").rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in rooms]
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    script += "print([heavy for heavy in ('torch', 'sacred', 'pymongo', 'pandas') if heavy in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
