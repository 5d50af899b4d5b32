"""Advice for inference, where a rule's own is for a training.

Whether a rank trains is decided in one place (`find_purpose`). Rules measure the same in both; here
their findings get the advice of inference, and findings that mean nothing there are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stepscope.advice.evidence.compiled_code import (
    graphs_to_launch,
    runs_compiled_code,
    runs_graphs,
    what_is_left_out,
)
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Finding
from stepscope.advice.rules.host.cpu_bound_python import is_about_sleep, is_of_small_steps
from stepscope.run.figures import sentence

_GRAPHS_OF_ENGINES = {
    "vLLM": "the engine's CUDA graphs (vLLM: without enforce_eager)",
    "SGLang": "the engine's CUDA graphs (SGLang: without --disable-cuda-graph)",
    "TensorRT-LLM": "the engine's CUDA graphs (TensorRT-LLM: cuda_graph_config)",
}
_PIPELINE = "transformers' pipeline"
_SENTENCES = "sentence-transformers"
_COMMUNICATION = (
    "Use fewer GPUs per replica (a smaller tensor-parallel size), the engine's own all-reduce for "
    "small messages, and larger batches, so that communication is a smaller share; check whether "
    "a rank comes late or the bus bandwidth is far below the link's."
)


def for_purpose(findings: Sequence[Finding], subject: Subject) -> list[Finding]:
    """The findings of a rule, with the advice that fits what the rank does."""
    if not findings or not subject.purpose.is_inference:
        return list(findings)
    found = []
    for finding in findings:
        advise = _ADVICE.get(finding.id, finding.advice)
        advice = advise(finding, subject) if callable(advise) else advise
        if advice is not None:
            found.append(
                replace(
                    finding,
                    title=_neutral(finding.title),
                    assumption=_neutral(finding.assumption),
                    saving_reason=_neutral(finding.saving_reason),
                    advice=_neutral(advice),
                )
            )
    return found


def _neutral(text: str) -> str:
    """The same of a loop that trains nothing."""
    for of_training, of_inference in _WORDS:
        text = text.replace(of_training, of_inference)
    return text


_WORDS = (
    ("the training thread", "the main thread"),
    ("beside the training", "beside the main thread"),
    ("the training itself", "the loop itself"),
    ("the training's own work", "the loop's own work"),
    ("the training CPUs of its own", "the program CPUs of its own"),
    ("what is trained", "what is computed"),
    ("a longer training", "a longer run"),
    ("a rollout, evaluation, saving", "longer inputs, a prefill, saving"),
    ("(an asynchronous checkpoint, another thread)", "(in another thread)"),
    ("the training process", "the main process"),
)
"""What the findings of all rules say of a training, and what is said of inference instead."""


def _launch_bound(_finding: Finding, subject: Subject) -> str:
    window, engine = subject.window, subject.purpose.engine
    graphs = "CUDA graphs" if window is None else graphs_to_launch(window)
    more = "" if window is None else what_is_left_out(window)
    cache = (
        " For generation, graphs need a KV cache of fixed size (transformers: "
        "cache_implementation='static', if the model supports it)."
    )
    return (
        f"Give the host less to launch: {_GRAPHS_OF_ENGINES.get(engine, graphs)}, fused operators, "
        f"or more work per launch (a larger batch, more requests at once).{'' if engine else cache}"
        f"{more}"
    )


def _many_small_kernels(_finding: Finding, subject: Subject) -> str:
    window, engine = subject.window, subject.purpose.engine
    is_compiled = window is not None and runs_compiled_code(window)
    has_graphs = window is not None and runs_graphs(window)
    own = f"a CUDA graph of {'more of ' if has_graphs else ''}the forward pass"
    graphs = _GRAPHS_OF_ENGINES.get(engine, own)
    return (
        f"Fuse them: {'' if is_compiled else 'torch.compile, '}fused normalisations, rotary "
        f"embeddings and activations; or launch them by {graphs}; or give each kernel more work "
        f"with a larger batch.{'' if window is None else what_is_left_out(window)}"
    )


def _cpu_bound_python(finding: Finding, subject: Subject) -> str:
    graphs = _GRAPHS_OF_ENGINES.get(subject.purpose.engine)
    if is_of_small_steps(finding):
        if graphs is None:
            return finding.advice
        return (
            f"Give each step more work, with more requests at once, and check that it runs in "
            f"{graphs}. If the step is short enough for you, nothing is wrong."
        )
    stacks = (
        " Record with stacks to see the lines." if "Record with stacks" in finding.advice else ""
    )
    if is_about_sleep(finding):
        return f"{_of_a_sleeping_thread(subject)}{stacks}"
    return f"{_beside_the_model(subject)}{stacks}"


def _of_a_sleeping_thread(subject: Subject) -> str:
    if subject.purpose.engine:
        return (
            "If no request was waiting, nothing is wrong. Else see what the engine's loop waits "
            "for: the tokeniser, another rank, or the client's answers."
        )
    return (
        "Take sleeps and polling out of the loop, and have what it waits for ready in time: read "
        "the next inputs in another thread or process while the model computes. If it waits for "
        "requests and none is there, nothing is wrong."
    )


def _beside_the_model(subject: Subject) -> str:
    """How inputs get ready while the model computes others."""
    purpose = subject.purpose
    if purpose.engine:
        return (
            "Take that Python off the engine's loop: tokenise, detokenise and post-process in "
            "other processes, and let the engine schedule the next step while the model computes "
            "(asynchronous scheduling)."
        )
    if purpose.library == _PIPELINE:
        return (
            "Prepare inputs while the model computes: call the pipeline on a dataset or generator, "
            "with its own arguments num_workers=... and batch_size=..., so that its loader's "
            "workers do the preprocessing of the next batches. Decode and resize ahead of time "
            "what repeats."
        )
    if purpose.library == _SENTENCES:
        return (
            "Prepare inputs while the model computes: pass many sentences to one "
            "encode(batch_size=...), or tokenise them ahead of time."
        )
    return (
        "Prepare the next inputs and handle the last results in another thread or process while "
        "the model computes, and send inputs in batches instead of one by one."
    )


def _synchronisation(_finding: Finding, subject: Subject) -> str:
    if subject.purpose.engine:
        return (
            "Let the engine schedule and launch the next step before the host reads this one's "
            "tokens (asynchronous scheduling), and keep sampling on the GPU."
        )
    return (
        "Keep results on the GPU: read tokens, scores and stop conditions (.item(), .cpu(), print, "
        "if on a tensor, nonzero) once for several passes, or copy them with non_blocking=True and "
        "read them while the next pass runs; and drop torch.cuda.synchronize()."
    )


def _input_bound(finding: Finding, subject: Subject) -> str:
    if subject.purpose.library in (_PIPELINE, _SENTENCES) or subject.purpose.engine:
        return _beside_the_model(subject)
    return finding.advice.replace("the training needs one", "the main thread needs one")


def _pageable_copies(finding: Finding, subject: Subject) -> str:
    if "DataLoader" not in finding.advice:
        return finding.advice
    if subject.purpose.library == _PIPELINE:
        return (
            "Give the pipeline device=..., so that it moves whole batches (batch_size=...), and "
            "keep tensors that do not change on the GPU."
        )
    return (
        "Pin the inputs (tensor.pin_memory(), or DataLoader(pin_memory=True) if the loop has one) "
        "and copy them with non_blocking=True; keep tensors that do not change on the GPU."
    )


def _full_precision(finding: Finding, _subject: Subject) -> str:
    type_ = "float16" if "float16" in finding.advice else "bfloat16"
    load = f"run the model in half precision (dtype=torch.{type_} where it is loaded, or autocast)"
    if "Allow TF32" in finding.advice:
        allow, _, _ = finding.advice.partition(", or ")
        return f"{allow}, or {load}."
    return f"{sentence(load)}."


def _memory_near_limit(_finding: Finding, subject: Subject) -> str | None:
    if subject.purpose.engine:
        return None  # engines reserve what is left for their KV cache, by design
    return (
        "Leave a tenth free: a smaller batch or shorter sequences, weights or a KV cache in fewer "
        "bits, or the model spread over more GPUs. Run it under torch.inference_mode(), which "
        "keeps no activations. If far more is reserved than allocated, it is fragmented: set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )


def _memory_far_below(_finding: Finding, subject: Subject) -> str:
    if subject.purpose.engine:
        return (
            "Let the engine run more requests at once (vLLM: max_num_seqs and "
            "gpu_memory_utilization; SGLang: --max-running-requests and --mem-fraction-static), "
            "and compare tokens per second."
        )
    if subject.purpose.library == _PIPELINE:
        return "Try a larger batch (the pipeline's batch_size=...), and compare samples per second."
    return "Try a larger batch, and compare samples per second."


def _uneven(finding: Finding, subject: Subject) -> str:
    if not subject.purpose.engine:
        return finding.advice
    return (
        "Steps that prefill prompts take longer than steps that decode: judge them apart "
        "(--steps). If prefills hold up the decoding of other requests, limit the tokens per step "
        "(chunked prefill), or serve the two on different GPUs."
    )


_ADVICE: Mapping[str, Callable[[Finding, Subject], str | None] | str | None] = {
    "launch-bound": _launch_bound,
    "many-small-kernels": _many_small_kernels,
    "cpu-bound-python": _cpu_bound_python,
    "synchronisation": _synchronisation,
    "input-bound": _input_bound,
    "pageable-copies": _pageable_copies,
    "full-precision-matmuls": _full_precision,
    "memory-near-limit": _memory_near_limit,
    "memory-far-below-limit": _memory_far_below,
    "activations-dominate": (
        "Run the model under torch.inference_mode(), which keeps no activations for a backward "
        "pass; then use a smaller batch, or shorter pieces of a long input."
    ),
    "exposed-communication": _COMMUNICATION,
    "poor-overlap": _COMMUNICATION,
    "many-small-collectives": _COMMUNICATION,
    "uneven-steps": _uneven,
    "unfused-optimizer": None,
}
"""By rule: the advice for inference; None where the finding means nothing there."""
