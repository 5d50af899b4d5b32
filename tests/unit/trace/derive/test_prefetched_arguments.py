"""Arguments that are read in one pass: the relevant ones, of the right events."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, us

import stepscope
from stepscope.analysis.calls.operands import argument_texts, operand_texts, relevant_texts
from stepscope.analysis.calls.operands_of_work import operands_of_all_work
from stepscope.trace.derive.prefetched_arguments import prefetch_arguments
from stepscope.trace.model import Trace

ANYWHERE = ("Collective name", "Sequence number", "sequence number", "Fwd thread id")
OF_OPERATORS = ("Input Dims", "Input type", "Concrete Inputs")
KEYS = st.sampled_from((*ANYWHERE, *OF_OPERATORS, "fwd_thread_id", "External id", "Ev Idx"))
SCHEMA = {"event": pl.Int64, "args": pl.String}
VALUES = st.integers(0, 9999) | st.sampled_from(["[[3, 4], []]", "é", ""])
ARGS = st.none() | st.dictionaries(KEYS, VALUES, max_size=4).map(json.dumps)
NAMED = (*ANYWHERE, "fwd_thread_id")
OPERANDS = re.compile(r'(?s)"(?:Input |Concrete Inputs").*?(?=[0-9 }\n]*$)')


@given(st.lists(st.tuples(ARGS, st.booleans()), max_size=20), st.randoms())
def test_relevant_arguments_are_there(rows, random):
    texts = [text for text, _ in rows]
    operators = np.array([is_operator for _, is_operator in rows], np.bool_)
    args = pl.DataFrame({"event": range(len(rows)), "args": texts}, schema_overrides=SCHEMA)
    arguments = prefetch_arguments(args.lazy(), operators)

    def tells(text: str | None, is_operator: bool) -> bool:
        keys = set(json.loads(text or "{}"))
        anywhere = keys & {*ANYWHERE, "fwd_thread_id"}
        return bool(anywhere or (is_operator and keys & set(OF_OPERATORS)))

    asked = [random.randrange(len(rows)) for _ in range(len(rows))]
    events = pl.Series("event", asked, pl.Int64)
    wanted = [texts[event] if tells(*rows[event]) else None for event in asked]
    assert arguments.texts(events).to_list() == wanted
    assert arguments.has_operands_of(events) is all(operators[event] for event in asked)
    said = [OPERANDS.search(text or "") for text in wanted]
    assert arguments.operands(events).to_list() == [one and one[0] for one in said]
    without = arguments.texts(events, operands=False)
    assert [text is None for text in without] == [text is None for text in wanted]
    for text, head in zip(wanted, without, strict=True):
        assert text is None or text.startswith(head)
        assert text is None or all((f'"{key}"' in head) == (f'"{key}"' in text) for key in NAMED)


def test_repeated_operands_are_held_once():
    texts = [
        f'{{"External id": {number}, "Input Dims": [[{number % 2}]], "Ev Idx": {number}}}'
        for number in range(100)
    ]
    args = pl.DataFrame({"event": range(100), "args": texts}, schema_overrides=SCHEMA)
    arguments = prefetch_arguments(args.lazy(), np.ones(100, np.bool_))
    assert arguments.rows["operands"].n_unique() == 2
    assert not arguments.rows["head"].str.contains("Input").any()
    later = args.with_columns(pl.col("args").str.replace('"Ev Idx"', '"Sequence number"'))
    undivided = prefetch_arguments(later.lazy(), np.ones(100, np.bool_))
    assert undivided.rows["head"].equals(later["args"].alias("head"))
    assert undivided.rows["operands"].null_count() == 100


@pytest.fixture
def path(tmp_path):
    trace = GpuTrace()
    with trace.step():
        trace.op("aten::mm", shapes=[[3, 4], [4, 5]]).launch("gemm", us(10))
        trace.op("aten::add", shapes=[[3, 5], []]).launch("add", us(10))
        with trace.op("aten::empty", shapes=[[7]], types=["long"]):
            pass
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps(trace.document(), indent=1).encode())
    return path


def operators_of(trace: Trace, name: str) -> pl.Series:
    names = trace.names.select("name").collect()["name"].gather(trace.columns("name_id")["name_id"])
    return (names == name).arg_true().cast(pl.Int64)


def test_deriving_leaves_them_until_they_are_forgotten(path):
    trace = stepscope.load(path, store=True)
    assert trace.prefetched_arguments is None
    trace.derived.collect()
    assert trace.prefetched_arguments is not None
    (product,), (empty,) = operators_of(trace, "aten::mm"), operators_of(trace, "aten::empty")
    for events in ([product], [empty], [empty, product]):
        asked = pl.Series("event", events, pl.Int64)
        whole = argument_texts(trace, asked)
        assert relevant_texts(trace, asked, operands=True).equals(whole) is (empty not in events)
        assert operand_texts(trace, asked).to_list() == [OPERANDS.search(one)[0] for one in whole]
    assert trace.prefetched_arguments.has_operands_of(pl.Series([product]))
    assert not trace.prefetched_arguments.has_operands_of(pl.Series([empty])), (
        "it has launched nothing"
    )
    trace.drop_prefetched_arguments()
    assert trace.prefetched_arguments is None
    asked = pl.Series("event", [product], pl.Int64)
    assert "Input Dims" in relevant_texts(trace, asked, operands=True)[0]


def test_operands_are_the_same_from_memory_and_from_the_store(path):
    first = stepscope.load(path, store=True)
    from_memory = operands_of_all_work(first)
    again = stepscope.load(path, store=True)
    again.derived.collect()
    assert again.prefetched_arguments is None, "what is cached is not derived"
    assert from_memory.equals(operands_of_all_work(again))
    assert from_memory["dims"].drop_nulls().to_list() == ["[[3,4],[4,5]]", "[[3,5],[]]"]
    assert all(re.fullmatch(r"\[.*\]", text) for text in from_memory["types"].drop_nulls())
