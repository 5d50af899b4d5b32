"""SQL over traces: right answers, and nothing but answers."""

import os
import subprocess
import sys

import polars as pl
import pytest
from tests.support.tables import TableBuilder

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.trace.model import Trace
from stepscope.trace.sql import query as query_module
from stepscope.trace.sql.execution import execute
from stepscope.trace.sql.query import RankSource, run_query, run_sql, view_columns
from stepscope.trace.sql.views import VIEWS


@pytest.fixture(scope="module")
def trace():
    build = TableBuilder()
    build.step(3, 0, 1000)
    op = build.host("aten::mm", 10, 100)
    build.launch(20, 5, 200, 300)
    build.launch(
        40,
        5,
        600,
        50,
        name="Memcpy HtoD (Pinned -> Device)",
        category="gpu_memcpy",
        call="cudaMemcpyAsync",
    )
    build.launch(
        60,
        5,
        700,
        70,
        name="ncclDevKernel_Generic(x)",
        args={
            "Collective name": "allreduce",
            "In msg nelems": 8,
            "Group size": 2,
            "dtype": "Float",
        },
    )
    build.step(4, 1001, 10)
    build.instant(
        "[memory]",
        15,
        {
            "Addr": 2**63 + 5,
            "Bytes": -512,
            "Device Id": 0,
            "Device Type": 1,
            "Total Allocated": 2**40,
        },
    )
    build.metadata("schemaVersion", 1)
    assert op == 1
    return Trace.from_tables(build.build(), "made.json")


def rows(trace, query):
    return run_sql(trace, query).rows()


def test_each_view_answers(trace):
    for view in VIEWS:
        frame = run_sql(trace, f"SELECT * FROM {view.name}")
        assert len(frame.columns) > 1, view.name
    assert rows(trace, "SELECT count(*) FROM events") == [(9,)]
    assert rows(
        trace, 'SELECT name, "group", step, op_name, dur_ns FROM kernels ORDER BY event'
    ) == [
        ("volta_sgemm_128x32_nn", "gemm", 3, "aten::mm", 300),
        ("ncclDevKernel_Generic(x)", "all_reduce", 3, "aten::mm", 70),
    ]
    assert rows(
        trace, "SELECT call_name, work_name, delay_ns FROM launches ORDER BY work LIMIT 1"
    ) == [("cudaLaunchKernel", "volta_sgemm_128x32_nn", 175)]
    assert rows(trace, 'SELECT "group" FROM copies') == [("host_to_device",)]
    assert rows(
        trace, "SELECT collective, elements_in, group_size, dtype, elements_out FROM collectives"
    ) == [("allreduce", 8, 2, "Float", None)]
    assert rows(trace, "SELECT address, bytes, total_allocated_bytes FROM memory") == [
        (2**63 + 5, -512, 2**40)
    ]
    assert rows(trace, "SELECT step, dur_ns, is_empty FROM steps") == [
        (3, 1001, False),
        (4, 10, True),
    ]
    assert rows(trace, "SELECT step, end_ns FROM device_steps") == [(3, 770), (4, 770)]
    assert rows(trace, "SELECT key, value FROM metadata") == [("schemaVersion", "1")]
    assert ("empty_step", 1) in rows(trace, "SELECT problem, count FROM problems")


@pytest.fixture(scope="module")
def other():
    """Another rank: the same numbers of events, names and lanes stand for other things."""
    build = TableBuilder()
    build.step(3, 0, 500)
    build.host("aten::bmm", 1, 300)
    build.launch(20, 5, 40, 11, name="another_kernel", stream=9)
    build.launch(30, 5, 60, 13, name="ncclDevKernel_Generic(x)", args={"Group size": 4})
    return Trace.from_tables(build.build(), "other.json")


def test_over_ranks_each_view_has_the_rows_of_each_rank(trace, other, monkeypatch):
    # One query runs in a process of its own below; here are dozens.
    monkeypatch.setattr(query_module, "execute_apart", lambda given, *_: execute(given))
    sources = [RankSource(5, lambda: other), RankSource(2, lambda: trace)]
    for view in VIEWS:
        query = f"SELECT * FROM {view.name}"
        found = run_query(sources, query).rows
        assert found.columns[0] == "rank"
        of_each = [
            one.sql(query).select(pl.lit(rank, pl.Int64).alias("rank"), pl.all()).rows()
            for rank, one in ((5, other), (2, trace))
        ]
        expected = [row for part in of_each for row in part]
        assert sorted(map(repr, found.rows())) == sorted(map(repr, expected)), view.name


def test_over_ranks_one_query_compares_them(trace, other):
    sources = [RankSource(0, lambda: trace), RankSource(1, lambda: other)]
    found = run_query(
        sources,
        "SELECT a.step, a.dur_ns - b.dur_ns AS longer_ns FROM steps a JOIN steps b USING (step)"
        " WHERE a.rank = 0 AND b.rank = 1",
    )
    assert found.rows.rows() == [(3, 1001 - 500)]
    by_rank = "SELECT rank, count(*) FROM kernels GROUP BY rank ORDER BY rank"
    assert run_query(sources, by_rank).rows.rows() == [(0, 2), (1, 2)]
    shown = run_query(sources, "SHOW TABLES").rows["name"].to_list()
    assert sorted(shown) == sorted(view.name for view in VIEWS)


def test_a_rank_that_cannot_be_read_is_left_out_and_named(trace):
    def broken():
        raise UnreadableInputError("rank1.json: is cut off")

    sources = [RankSource(0, lambda: trace), RankSource(1, broken)]
    found = run_query(sources, "SELECT DISTINCT rank FROM events")
    assert found.rows.rows() == [(0,)]
    assert found.left_out == ("rank 1 is left out: rank1.json: is cut off",)
    with pytest.raises(UnreadableInputError, match=r"rank1\.json: is cut off"):
        run_query(sources[1:], "SELECT 1")


def test_over_ranks_a_query_reads_nothing_else(trace, tmp_path):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(UsageError, match="disabled|not allowed|Permission"):
        run_query([RankSource(0, lambda: trace)], f"SELECT * FROM read_text('{tmp_path}/secret')")


def test_integers_stay_integers(trace):
    frame = run_sql(trace, "SELECT sum(dur_ns) AS total, [sum(dur_ns)] AS many FROM events")
    assert frame["total"].dtype == pl.Int64
    assert frame["total"].item() == sum(d for (d,) in rows(trace, "SELECT dur_ns FROM events"))
    huge = run_sql(trace, "SELECT sum(18446744073709551615::HUGEINT) AS s FROM range(3)")
    assert int(huge["s"].item()) == 3 * (2**64 - 1)
    assert rows(trace, "SELECT 18446744073709551615::UBIGINT") == [(2**64 - 1,)]


def test_other_statements_that_only_read(trace):
    assert ("kernels",) in rows(trace, "SHOW TABLES")
    assert rows(trace, "DESCRIBE steps")[0][0] == "step"
    assert rows(trace, "FROM lanes SELECT count(*);") == [(2,)]
    assert rows(trace, "SELECT 1 AS a, 2 AS a -- the end") == [(1, 2)]
    assert rows(trace, "WITH k AS (SELECT * FROM kernels) SELECT count(*) FROM k") == [(2,)]


def test_limits(trace):
    result = run_query(trace, "SELECT * FROM range(10)", row_limit=3)
    assert (len(result.rows), result.is_cut) == (3, True)
    result = run_query(trace, "SELECT * FROM range(3)", row_limit=3)
    assert (len(result.rows), result.is_cut) == (3, False)
    endless = (
        "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range + b.range < 0"
    )
    with pytest.raises(UsageError, match=r"timed out after 0\.2 s"):
        run_query(trace, endless, time_limit_s=0.2)


@pytest.mark.parametrize(
    "query",
    [
        "COPY events TO '{place}/stolen.csv'",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; DROP VIEW events",
        "ATTACH '{place}/other.db'",
        "SET lock_configuration = false",
        "PRAGMA enable_external_access = true",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE COPY events TO '{place}/stolen.csv'",
        "SELECT content FROM read_text('{place}/secret')",
        "SELECT * FROM read_csv('{place}/secret')",
        "SELECT * FROM '{place}/secret.parquet'",
        "SELECT * FROM glob('{place}/*')",
        "SELECT * FROM query('COPY events TO ''{place}/stolen.csv''')",
        "SELECT * FROM read_csv('https://example.org/x.csv')",
        "SELECT * FROM frame_of_the_caller",
        "SELECT getenv('HOME')",
        "SELECT * FROM events) TO '{place}/stolen.csv' --",
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT nothing FROM events",
    ],
)
def test_everything_else_is_refused_in_one_line(trace, tmp_path, query):
    frame_of_the_caller = pl.DataFrame({"a": [1]})
    frame_of_the_caller.write_parquet(tmp_path / "secret.parquet")
    (tmp_path / "secret").write_text("secret")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UsageError) as caught:
        run_sql(trace, query.format(place=tmp_path))
    assert "\n" not in str(caught.value)
    assert str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_store_is_read_where_it_lies(tmp_path, monkeypatch):
    """Tables of a store are scanned, not collected: frames that refuse to be read prove it."""
    build = TableBuilder()
    build.launch(0, 5, 10, 20)
    tables = build.build()
    store = tmp_path / "it's a store"
    for name in ("events", "names", "lanes", "instants"):
        (store / name).mkdir(parents=True)
        frame = getattr(tables, name)
        frame.head(1).write_parquet(store / name / "00000.parquet")
        frame.slice(1).write_parquet(store / name / "00001.parquet")
    whole = Trace.from_tables(tables, "x")
    trace = Trace(
        **{f: getattr(whole, f) for f, of in Trace.__dataclass_fields__.items() if of.init}
        | {"store": store, "names": None}
    )
    assert rows(trace, "SELECT count(*) FROM names") == [(2,)]
    assert rows(trace, "SELECT name FROM names ORDER BY name_id") == [
        ("cudaLaunchKernel",),
        ("volta_sgemm_128x32_nn",),
    ]


def test_views_are_listed_with_their_columns():
    found = view_columns()
    assert found["view"].unique(maintain_order=True).to_list() == [view.name for view in VIEWS]
    assert ("kernels", "dur_ns", "BIGINT") in found.select("view", "column", "type").rows()
    assert not any(" " in name for name in found["column"].to_list())


def test_nothing_is_left_on_stderr_at_exit():
    """Handing rows over must not upset the interpreter's end, where DuckDB reports leaks."""
    code = (
        "from tests.support.tables import TableBuilder\n"
        "from stepscope.trace.model import Trace\n"
        "b = TableBuilder(); b.launch(0, 1, 2, 3)\n"
        "print(Trace.from_tables(b.build(), 'x').sql('SELECT * FROM kernels').height)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
