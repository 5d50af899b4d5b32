"""The series that a trace holds, or that follow from its events."""

from tests.support.tables import TableBuilder

from stepscope.analysis.counters import counters_of
from stepscope.trace.model import Trace


def test_a_device_whose_work_takes_no_time_is_never_busy():
    build = TableBuilder()
    build.gpu("gemm", 100, 50)
    build.gpu("gemm", 500, 0, device=1)
    found = {one.name: one for one in counters_of(Trace.from_tables(build.build(), "t"), 0, None)}
    assert list(found) == ["busy, GPU 0"]
    assert found["busy, GPU 0"].value.max() == 1
