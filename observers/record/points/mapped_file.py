"""Files that are mapped into memory, where that is safe."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

__all__ = ["mapped_halves"]

# Where a page that was allocated can be written to at any time. On a file system that writes a page elsewhere when it
# changes (btrfs, ZFS), or that a server can take away, a full disk or a lost server would end the process by SIGBUS.
_SAFE_FILE_SYSTEMS = frozenset(("ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay"))
_MOUNTS = Path("/proc/self/mountinfo")


def mapped_halves(path: Path, half_bytes: int) -> tuple[mmap.mmap, mmap.mmap]:
    """Return a new file, all of it allocated, as memory: its first half, and all of it.

    Args:
        path: The file.
        half_bytes: The size of a half, which need not be one of whole pages.

    Raises:
        OSError, ValueError: If that cannot be.
        AttributeError: If the system cannot allocate files.
    """
    kind = _file_system(path.parent)
    if kind not in _SAFE_FILE_SYSTEMS:
        raise OSError(None, f"the file system {kind} is not known to keep what is mapped")
    # Whoever has an old one mapped keeps it.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, 2 * half_bytes)
        return mmap.mmap(descriptor, half_bytes), mmap.mmap(descriptor, 2 * half_bytes)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder is on.

    Raises:
        OSError: If the system does not tell.
    """
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0]
    return "unknown"
