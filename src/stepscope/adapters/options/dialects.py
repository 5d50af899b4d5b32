"""The dialects, as tables: no code knows a framework's option by name.

Names, defaults and rules are those of the profiling guides of fsdp-qlora, of a widely used recipe
for `torch.profiler`, of the SFM framework, of a Megatron-LM with torch's profiler, and of training
scripts on the Hugging Face Trainer; and those of Megatron-LM itself.
"""

from __future__ import annotations

from stepscope.adapters.options.dialect import (
    BOTH,
    LIST,
    OPTIONS,
    SWITCH,
    VALUE,
    WORD,
    Dialect,
    Flag,
    Rule,
)
from stepscope.errors import UsageError
from stepscope.run.step_record import MICRO_BATCH, OPTIMIZER_STEP


def _own_flags() -> tuple[Flag, ...]:
    """Our own flags: one for each option, named after it."""
    styles = {"bool": BOTH, "ranks": LIST, "words": LIST}
    names = {name: "profile-" + name.removeprefix("profile_").replace("_", "-") for name in OPTIONS}
    names["enabled"] = "profile"
    return tuple(
        Flag((f"--{names[option.name]}",), option.name, styles.get(option.kind, VALUE))
        for option in OPTIONS.values()
    )


_NEEDS_MEMORY = Rule(
    "memory_timeline",
    "off",
    (("profile_memory", True), ("record_shapes", True), ("with_stack", True)),
    "the memory timeline needs it",
)

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("native", "Stepscope's own", _own_flags()),
        Dialect(
            "fsdp-qlora",
            "fsdp-qlora's train.py",
            (
                Flag(("--profile",), "enabled", WORD),
                Flag(("--profiling_outputs", "--profiling_output"), "output_dir"),
                Flag(("--export_trace",), "export_trace", WORD),
                Flag(
                    ("--export_memory_timeline",),
                    "memory_timeline",
                    WORD,
                    on="torch",
                    off="off",
                    about="Draw memory by category over time. Implies stacks and shapes.",
                ),
                Flag(("--with_stack",), "with_stack", WORD),
                Flag(("--with_shapes",), "record_shapes", WORD),
                Flag(
                    ("--wait_steps",),
                    "wait",
                    about="Steps at the start of each cycle that are not recorded; with "
                    "--repeat 0, --profiling_frequency sets them.",
                ),
                Flag(("--warmup_steps",), "warmup"),
                Flag(("--active_steps",), "active"),
                Flag(("--repeat",), "repeat"),
                Flag(("--profiling_frequency",), "cycle_length"),
                Flag(
                    ("--max_steps",),
                    "max_steps",
                    is_shared=True,
                    about="Batches after which each epoch ends, raised to one cycle; -1 for no "
                    "limit.",
                ),
            ),
            {
                "output_dir": "profiling_outputs",
                "wait": 7,
                "active": 1,
                "repeat": 0,
                "cycle_length": 10,
                "key_averages_by": "recorded",
                "max_steps_per_loop": True,
                "step_unit": MICRO_BATCH,
            },
            rules=(_NEEDS_MEMORY,),
            layout="fsdp-qlora",
            files=(
                "{model_name}_{train_type}-{local_rank}/{model_name}-{train_type}-*:",
                "chrome-trace.json.gz, key_averages.txt, memory-timeline.html, stacks.txt",
            ),
            raises_max_steps=True,
        ),
        Dialect(
            "recipe",
            "the torch.profiler recipe, with our flags",
            _own_flags(),
            {"wait": 1, "warmup": 1, "active": 5, "repeat": 0, "trace_format": "json"},
            layout="recipe",
            printed_rows=10,
            files=(
                "trace.json (rank 0)",
                "trace-rank{rank}.json (others)",
                "{host}_{time}.pickle (memory snapshots)",
            ),
        ),
        Dialect(
            "sfm",
            "SFM (A4SFramework)",
            (
                Flag(("--profiling",), "enabled", SWITCH),
                Flag(("--ptensorboard",), "tensorboard", SWITCH),
                Flag(("--prof_dir",), "output_dir"),
                Flag(("--skip_first",), "skip_first"),
                Flag(("--wait",), "wait"),
                Flag(("--warmup",), "warmup"),
                Flag(("--active",), "active"),
                Flag(("--repeat",), "repeat"),
                Flag(("--debug",), "deepspeed_memory", SWITCH, is_shared=True),
            ),
            {
                "deepspeed_flops": True,
                "output_dir": "prof",
                "record_shapes": True,
                "profile_memory": True,
                "with_stack": True,
                "with_flops": True,
                "with_modules": True,
                "trace_format": "json",
                "key_averages_rows": -1,
            },
            layout="sfm",
            printed_rows=20,
            files=(
                "profiler_list.dat",
                "trace-rank{rank}-window{index}.json",
                "tensorboard/*.pt.trace.json",
                "profiler_ds.txt (where a DeepSpeed engine is followed, as with --strategy=Zero)",
            ),
        ),
        Dialect(
            "megatron",
            "Megatron-LM with --torch-profile",
            (
                Flag(("--torch-profile",), "enabled", SWITCH),
                Flag(("--tensorboard-dir",), "output_dir", is_shared=True),
                Flag(("--torch-profile-skip-first",), "skip_first"),
                Flag(("--torch-profile-wait",), "wait"),
                Flag(("--torch-profile-warmup",), "warmup"),
                Flag(("--torch-profile-active",), "active"),
                Flag(("--torch-profile-repeat",), "repeat"),
                Flag(("--torch-profile-ranks",), "ranks", LIST),
                Flag(("--torch-profile-record-shapes",), "record_shapes", SWITCH),
                Flag(("--torch-profile-profile-memory",), "profile_memory", SWITCH),
                Flag(("--torch-profile-with-stack",), "with_stack", SWITCH),
                Flag(("--torch-profile-with-flops",), "with_flops", SWITCH),
                Flag(("--torch-profile-with-modules",), "with_modules", SWITCH),
            ),
            {
                "skip_first": 1,
                "wait": 0,
                "warmup": 1,
                "active": 1,
                "ranks": (0,),
                "tensorboard": True,
                "tensorboard_worker": "{host}_{pid}",
            },
            tensorboard_folder=".",
            files=("{host}_{pid}.{ns}.pt.trace.json.gz",),
        ),
        Dialect(
            "megatron-lm",
            "Megatron-LM's own --profile --use-pytorch-profiler",
            (
                Flag(("--use-pytorch-profiler",), "enabled", SWITCH, is_shared=True),
                Flag(("--profile-step-start",), "start_step", is_shared=True),
                Flag(("--profile-step-end",), "end_step", is_shared=True),
                Flag(("--profile-ranks",), "ranks", LIST, is_shared=True),
                Flag(("--tensorboard-dir",), "output_dir", is_shared=True),
                Flag(
                    ("--pytorch-profiler-collect-shapes",), "record_shapes", SWITCH, is_shared=True
                ),
                Flag(
                    ("--pytorch-profiler-collect-callstack",), "with_stack", SWITCH, is_shared=True
                ),
                Flag(("--record-memory-history",), "memory_history", SWITCH, is_shared=True),
                Flag(("--memory-snapshot-path",), "memory_snapshot_path", is_shared=True),
            ),
            {
                "start_step": 10,
                "end_step": 12,
                "warmup": 1,
                "ranks": (0,),
                "tensorboard": True,
                "tensorboard_worker": "{host}_{pid}",
                "memory_snapshot_path": "snapshot.pickle",
            },
            rules=(
                Rule(
                    "memory_history",
                    False,
                    (("memory_snapshot_at_end", True),),
                    "the history should be written",
                ),
            ),
            tensorboard_folder=".",
            files=(
                "{host}_{pid}.{ns}.pt.trace.json.gz",
                "the file of --memory-snapshot-path; -rank{rank} is added on other ranks",
            ),
            needs=("profile",),
            known_by=("use_pytorch_profiler", "profile_step_start"),
        ),
        Dialect(
            "hf",
            "scripts on the Hugging Face Trainer",
            (
                Flag(("--enable-profiling",), "enabled", SWITCH),
                Flag(
                    ("--enable-memory-logging",),
                    "memory_log",
                    SWITCH,
                    about="Print the memory of each GPU, or the process's on the host without one, "
                    "every --memory-log-steps steps.",
                ),
                Flag(("--profiler-output-dir",), "output_dir"),
                Flag(("--profiler-wait-steps",), "wait"),
                Flag(("--profiler-warmup-steps",), "warmup"),
                Flag(("--profiler-active-steps",), "active"),
                Flag(("--profiler-repeat",), "repeat"),
                Flag(("--memory-log-steps",), "memory_log_steps"),
                Flag(("--max-steps",), "max_steps", is_shared=True),
            ),
            {
                "output_dir": "profiler_traces",
                "ranks": "node-first",
                "step_unit": OPTIMIZER_STEP,
                "record_shapes": True,
                "profile_memory": True,
                "with_stack": True,
                "with_flops": True,
                "tensorboard": True,
            },
            tensorboard_folder=".",
            files=(
                "rank{rank}_{host}_{pid}.{ns}.pt.trace.json.gz",
                "the line [Step {n}] GPU {i}: Allocated: x.xxGB, Reserved: x.xxGB, Peak: x.xxGB",
            ),
        ),
    )
}
"""Name to dialect."""


def find_dialect(name: str) -> Dialect:
    """Find a dialect by its name."""
    try:
        return DIALECTS[name]
    except (KeyError, TypeError):
        known = ", ".join(DIALECTS)
        raise UsageError(f"dialect={name!r} is unknown: the dialects are {known}") from None
