"""Inference is told from training, its steps are found, and its advice is not a training's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import (
    GEMM,
    MM,
    MM_FLOAT,
    PLAIN,
    SMALL,
    dump,
    job,
    optimizer,
    products,
)
from tests.support.rendered import diagnosis_to_markdown

from stepscope.advice import rules
from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.rank import inference
from stepscope.advice.rules import RULES
from stepscope.analysis.find_purpose import purpose_of
from stepscope.analysis.selection.purpose import Work
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis import to_json as diagnosis_to_dict
from stepscope.report.diagnosis.sentences import work

OF_TRAININGS = r"optimizer|losses|DataLoader|gradient|training|checkpointing|DDP|FSDP|GradScaler"


@pytest.fixture
def judge(tmp_path: Path):
    def judged(t: GpuTrace) -> Diagnosis:
        (tmp_path / "rank0.pt.trace.json").write_bytes(dump(t))
        return diagnose(open_run(str(tmp_path)))

    return judged


def loop(body, steps: int = 4, **options) -> GpuTrace:
    """Steps of a model that never goes backward."""
    t = GpuTrace(**{"memory_bytes": 80 << 30, **options})
    products(t)
    for number in range(steps):
        with t.step():
            body(t, number)
    t.sync()
    return t


def forward(t: GpuTrace, _step: int) -> None:
    products(t, 4)


@pytest.mark.parametrize(
    ("shows", "expected"),
    [
        (lambda t: None, Work.INFERENCE),
        (lambda t: t.op("autograd::engine::evaluate_function: MmBackward0"), Work.TRAINING),
        (lambda t: t.op("aten::convolution_backward"), Work.TRAINING),
        (lambda t: t.op("CompiledFunctionBackward"), Work.TRAINING),
        (lambda t: t.annotate("loss.backward"), Work.TRAINING),
        (lambda t: t.annotate("## backward ##"), Work.TRAINING),
        (lambda t: t.annotate("Optimizer.step#AdamW.step"), Work.TRAINING),
        (lambda t: t.op("aten::_fused_adamw_"), Work.TRAINING),
        (lambda t: t.frame("torch/optim/sgd.py(80): step"), Work.TRAINING),
        (lambda t: t.frame("torch/_tensor.py(592): backward"), Work.TRAINING),
        (lambda t: t.frame("model.py(7): forward"), Work.INFERENCE),
        (lambda t: t.annotate("is_backward_compatible_check"), Work.TRAINING),
        (lambda t: t.annotate("backwards_search"), Work.INFERENCE),
    ],
)
def test_a_training_is_known_by_any_part_of_a_backward_or_an_optimizer(shows, expected):
    def body(t: GpuTrace, step: int) -> None:
        forward(t, step)
        part = shows(t)
        if part is not None:
            with part:
                t.python(us(10))

    found = purpose_of(loop(body).load())
    assert found.work is expected
    assert found.evidence


def test_without_operators_kernels_show_a_training_and_nothing_shows_inference():
    for name, expected in (
        ("void flash_bwd_dq_dk_dv_loop_kernel<128>", Work.TRAINING),
        ("sm90_xmma_wgrad_implicit_gemm_bf16", Work.TRAINING),
        # A transposed convolution of a forward pass is the gradient of one.
        ("sm90_xmma_dgrad_implicit_gemm_bf16", Work.UNKNOWN),
        (GEMM, Work.UNKNOWN),
    ):
        t = GpuTrace()
        with t.step():
            t.launch(name, ms(1))
        assert purpose_of(t.load()).work is expected, name


@pytest.mark.parametrize(("count", "expected"), [(60, Work.INFERENCE), (10, Work.UNKNOWN)])
def test_without_matrix_products_many_operators_show_inference(count, expected):
    t = GpuTrace()
    with t.step():
        for _ in range(count):
            t.op("aten::mul").launch(SMALL, us(4))
    assert purpose_of(t.load()).work is expected


def test_the_report_states_what_inference_is_known_by(judge):
    diagnosis = judge(loop(forward))
    said = work(diagnosis.shown)
    assert said.startswith("inference: no backward pass and no optimizer among ")
    assert f"**Work**: {said}" in diagnosis_to_markdown(diagnosis)
    assert diagnosis_to_dict(diagnosis)["ranks"][0]["purpose"]["work"] == "inference"
    assert work(judge(job(forward)).shown) == ""


def _small_kernels(t: GpuTrace, _step: int) -> None:
    products(t, 1)
    for _ in range(150):
        t.op("aten::add", before=us(30), after=us(20)).launch(SMALL, us(4))


def _pageable(t: GpuTrace, _step: int) -> None:
    products(t, 4)
    for _ in range(3):
        t.op("aten::to").copy("HtoD", 64 << 20, ms(5), pinned=False)
        t.python(ms(1))


def _full_precision(t: GpuTrace, _step: int) -> None:
    products(t, name=PLAIN, **MM_FLOAT)


def _slow_python(t: GpuTrace, _step: int) -> None:
    t.python(ms(16))
    products(t)


def _reads_results(t: GpuTrace, _step: int) -> None:
    for _ in range(3):
        t.python(us(500))
        t.op("aten::mm", **MM).launch(GEMM, us(900))
        t.item()


def _waits_for_input(t: GpuTrace, _step: int) -> None:
    t.data_wait(ms(16))
    products(t)


def _little_memory(t: GpuTrace, _step: int) -> None:
    t.memory(1 << 20)
    products(t)


PLANTS = {
    "launch-bound": _small_kernels,
    "many-small-kernels": _small_kernels,
    "pageable-copies": _pageable,
    "full-precision-matmuls": _full_precision,
    "cpu-bound-python": _slow_python,
    "memory-far-below-limit": _little_memory,
    "synchronisation": _reads_results,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", PLANTS)
def test_inference_gets_no_advice_for_trainings(judge, rule):
    body = PLANTS[rule]
    finding = next(one for one in judge(loop(body, 8)).findings if one.id == rule)
    said = f"{finding.title} {finding.assumption} {finding.advice}"
    assert not re.search(OF_TRAININGS, said.replace("DataLoader(pin_memory=True) if the loop", ""))

    def training(t: GpuTrace, step: int) -> None:
        body(t, step)
        optimizer(t)

    of_training = next(one for one in judge(loop(training, 8)).findings if one.id == rule)
    assert of_training.advice != finding.advice


def test_each_advice_is_a_rules():
    assert set(inference._ADVICE) <= set(RULES)


def test_what_any_rule_says_of_a_training_has_words_for_inference():
    said = {text for text in _texts_of_rules() if re.search(r"\btrain(ing|ed)\b", text)}
    assert len(said) > 10
    for text in said:
        assert not re.search(r"\btrain(ing|ed)\b", inference._neutral(text)), text


def _texts_of_rules() -> Iterator[str]:
    """All that the rules may say: the texts in their modules that are no docstrings."""
    for source in Path(rules.__file__).parent.rglob("*.py"):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        notes = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
        for part in ast.walk(tree):
            is_text = isinstance(part, ast.Constant) and isinstance(part.value, str)
            if is_text and id(part) not in notes:
                yield part.value


def test_a_librarys_loader_has_the_librarys_arguments(judge):
    def body(t: GpuTrace, step: int) -> None:
        with t.frame("transformers/pipelines/base.py(1306): __call__"):
            _slow_python(t, step)

    advice = next(o for o in judge(loop(body)).findings if o.id == "cpu-bound-python").advice
    assert "num_workers=" in advice
    assert "batch_size=" in advice
    assert "DataLoader" not in advice


ENGINES = {
    "vLLM": [f"execute_context_{n % 2}({64 * n})_generation_{7 + n}({7 + n})" for n in range(6)],
    "vLLM of before": [f"execute_new_{n % 2}_cached_{n}" for n in range(6)],
    "vLLM with details": [
        f"execute_{n}_context_1(sq128sk256sqsq1sqsk1)_generation_2(sq1sk300)" for n in range(6)
    ],
    "SGLang": ["step[EXTEND bs=2 toks=4096]", *(f"step[DECODE bs={n}]" for n in range(5))],
    "ATOM": ["prefill[bs=2 tok=16384]", *(f"decode[bs={n}]" for n in range(5))],
}  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("count", [1, 6])
def test_an_engines_ranges_are_the_steps(judge, engine, count):
    t = GpuTrace(memory_bytes=80 << 30, annotate_steps=False)
    products(t, 2)
    starts = []
    for name in ENGINES[engine][:count]:
        with t.annotate("scheduler"):
            t.python(us(50))
        starts.append(t.now)
        with t.annotate(name), t.annotate("model"):
            products(t, 4)
        t.python(us(200))
    t.sync()
    trace = t.load()
    assert trace.steps["start_ns"].to_list() == starts
    assert f"{count} ranges '" in trace.step_source
    found = purpose_of(trace)
    assert found.work is Work.INFERENCE
    assert found.engine == engine.partition(" ")[0]
    assert found.engine in work(judge(t).shown)


def test_kinds_of_an_engines_steps_are_listed():
    t = GpuTrace(annotate_steps=False)
    for name in ENGINES["SGLang"]:
        with t.annotate(name):
            products(t, 2)
    source = t.load().step_source
    assert source == ("6 ranges 'step[DECODE bs=N]' and 'step[EXTEND bs=N toks=N]' taken as steps")


def test_an_engine_on_another_thread_than_the_one_that_launches_most_has_the_steps():
    t = GpuTrace(annotate_steps=False)
    for number in range(4):
        with t.thread(77, "worker"), t.annotate(f"step[DECODE bs={number}]"):
            products(t, 2)
        products(t, 3)
    trace = t.load()
    assert len(trace.steps) == 4
    assert trace.lanes["thread_name"][trace.main_lane] == "worker"


def test_a_training_that_generates_stays_a_training():
    t = GpuTrace(annotate_steps=False)
    for number in range(3):
        with t.annotate(f"execute_context_1(64)_generation_{number}({number})"):
            products(t, 2)
        t.op("autograd::engine::evaluate_function: MmBackward0", **MM).launch(GEMM, ms(1))
        optimizer(t)
    trace = t.load()
    found = purpose_of(trace)
    assert (found.work, found.engine) == (Work.TRAINING, "vLLM")
    assert "optimizer steps" in trace.step_source


def test_an_engine_that_fills_the_memory_does_what_it_should(judge):
    def run(engine: bool) -> set[str]:
        t = GpuTrace(memory_bytes=80 << 30, annotate_steps=False)
        t.memory(79 << 30)
        for number in range(4):
            with t.annotate(f"step[DECODE bs={number}]" if engine else "batch"):
                products(t, 2)
        t.sync()
        return {finding.id for finding in judge(t).findings}

    assert "memory-near-limit" in run(engine=False)
    assert "memory-near-limit" not in run(engine=True)


def test_an_engine_without_graphs_is_told_to_use_its_own(judge):
    t = GpuTrace(memory_bytes=80 << 30, annotate_steps=False)
    for number in range(6):
        with t.annotate(f"execute_context_0(0)_generation_{number}({number})"):
            _small_kernels(t, number)
    t.sync()
    advice = next(o for o in judge(t).findings if o.id == "launch-bound").advice
    assert "vLLM: without enforce_eager" in advice
    assert "in use" not in advice
