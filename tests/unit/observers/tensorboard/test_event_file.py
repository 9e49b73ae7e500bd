import resource
import signal
import struct

import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

from sacristan.observers.tensorboard.event_file import EventFile


def read(path):
    return list(RawEventFileLoader(str(path)).Load())


def test_records_are_read_by_tensorboard(tmp_path):
    file = EventFile(tmp_path / "folder" / "tfevents")
    records = [b"", b"one", b"x" * 50_000]
    for record in records:
        file.add(record)
    file.flush()
    assert read(file.path) == records
    file.add(b"late")
    file.close()
    assert read(file.path) == [*records, b"late"]


def test_torn_record_is_passed_over(tmp_path):
    file = EventFile(tmp_path / "tfevents")
    file.add(b"one")
    file.add(b"two")
    file.close()
    file.path.write_bytes(file.path.read_bytes()[:-3])
    assert read(file.path) == [b"one"]


@pytest.fixture
def small_files():
    """No file may grow beyond 3000 bytes: as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_delays_records_and_loses_none(tmp_path, small_files, caplog):
    file = EventFile(tmp_path / "tfevents")
    for number in range(100):
        file.add(struct.pack("<Q", number) * 10)
        file.flush()
    assert len(read(file.path)) == 3000 // 96
    small_files()
    file.flush()
    assert [struct.unpack("<Q", record[:8])[0] for record in read(file.path)] == list(range(100))
    assert caplog.text.count("cannot be written") == 1
    assert file.num_lost == 0


def test_disk_that_is_full_for_too_long_loses_whole_records(tmp_path, small_files, caplog, monkeypatch):
    monkeypatch.setattr("sacristan.observers.tensorboard.event_file._MAX_PENDING_BYTES", 1000)
    file = EventFile(tmp_path / "tfevents")
    for number in range(100):
        file.add(struct.pack("<Q", number) * 10)
        file.flush()
    small_files()
    file.close()
    kept = [struct.unpack("<Q", record[:8])[0] for record in read(file.path)]
    assert kept == list(range(len(kept)))
    assert file.num_lost == 100 - len(kept)
    assert 3000 // 96 < len(kept) < 100
    assert "not all events could be written" in caplog.text
