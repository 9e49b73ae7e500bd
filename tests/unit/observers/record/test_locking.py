import os

from sacristan.observers.record.folders import RecordLock, is_locked


def test_lock_is_let_go_of_at_once_though_a_program_that_is_starting_has_a_copy_of_it(tmp_path):
    lock = RecordLock(tmp_path)
    assert lock.acquire()
    copy = os.dup(lock._descriptor.number)
    try:
        assert is_locked(tmp_path)
        lock.release()
        assert not is_locked(tmp_path)
    finally:
        os.close(copy)
