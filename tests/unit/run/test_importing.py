import sys
import threading
from pathlib import Path

import pytest

from stepscope.run.importing import importing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_modules_are_imported_in_another_thread_by_the_end_of_the_block(folder):
    (folder / "slow_to_import.py").write_text(
        "import threading, time\ntime.sleep(0.05)\nthread = threading.current_thread()\n"
    )
    with importing("slow_to_import"):
        pass
    module = sys.modules.pop("slow_to_import")
    assert module.thread is not threading.current_thread()


def test_the_block_does_not_wait_for_a_module_that_it_does_not_need(folder):
    (folder / "waits.py").write_text("import waited_for\nwaited_for.event.wait(30)\ndone = True\n")
    (folder / "waited_for.py").write_text("import threading\nevent = threading.Event()\n")
    with importing("waits"):
        import waited_for  # type: ignore[import-not-found]

        waited_for.event.set()
    assert sys.modules.pop("waits").done
    del sys.modules["waited_for"]


def test_an_error_is_left_to_who_needs_the_module(folder, recwarn):
    (folder / "broken_module.py").write_text("raise ValueError('no')\n")
    (folder / "after_it.py").write_text("")
    with importing("broken_module", "after_it"):
        pass
    with pytest.raises(ValueError, match="no"):
        import broken_module  # type: ignore[import-not-found] # noqa: F401
    assert not recwarn.list


def test_an_error_of_the_block_is_raised_once_the_thread_is_done(folder):
    (folder / "fine.py").write_text("")
    with pytest.raises(KeyError), importing("fine"):
        raise KeyError
    assert sys.modules.pop("fine")
