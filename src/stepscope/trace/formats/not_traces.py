"""Known kinds of files that are not traces: what they are, and what to do with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_BEGINNING_BYTES = 4096
_WHOLE_BEGINNING = 1 << 16
_SPACE = rb"[\xef\xbb\xbf \t\r\n]*"
"""Before the content: white space, and the mark of UTF-8."""


@dataclass(frozen=True)
class NotATrace:
    """A kind of file that is recognised but is not a trace.

    Attributes:
        description: What such a file is. In messages, it follows the file name and a colon.
        recognises: Whether content that starts with these bytes is of this kind.
    """

    description: str
    remedy: str
    recognises: Callable[[bytes], bool]


def _like(pattern: bytes, within: int = _BEGINNING_BYTES) -> Callable[[bytes], bool]:
    """Recognises content whose first bytes match a pattern from their beginning on."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda beginning: compiled.match(beginning[:within]) is not None


def _compressed(with_what: str, magic: bytes) -> NotATrace:
    return NotATrace(
        f"compressed with {with_what}, which is not supported",
        "decompress it, or compress it with gzip or zstd",
        _like(re.escape(magic)),
    )


_SNAPSHOT_KEYS = (b'"device_traces"', b'"segments"', b'"total_size"', b'"allocator_settings"')


def is_memory_snapshot(beginning: bytes) -> bool:
    """Whether content that starts with these bytes is a snapshot of torch's memory recorder.

    Any pickle of protocol 2 to 5 is taken for one: nothing else that Stepscope reads is a pickle.
    """
    if len(beginning) > 1 and beginning[0] == 0x80:
        return 2 <= beginning[1] <= 5
    start = beginning[:_BEGINNING_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] in (b"{", b"[") and any(key in start for key in _SNAPSHOT_KEYS)


_TIMELINE = (
    rb'\s*\{\s*"format"\s*:\s*"stepscope-memory-timeline"'
    # torch.profiler's raw form: [[time, action, change in bytes, category], …]
    rb"|\s*\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]"
    # and its other one: [[times], [[bytes by category], …]]
    rb"|\s*\[\s*\[(?:\s*-?\d+\s*,)*\s*(?:-?\d*\s*$|-?\d+\s*\]\s*,\s*\[\s*\[)"
)
"""That of torch.profiler (`export_memory_timeline`) is nothing but lists of numbers."""
_XPLANE = (
    # Field 1, a plane: its id (field 1), if any, and its name (field 2).
    rb"\x0a[\x80-\xff]*[\x00-\x7f](?:\x08[\x80-\xff]*[\x00-\x7f])?\x12[\x01-\x7f]"
    rb"(?:/device:|/host:|Task Environment|Derived)"
)
_HTML = rb"(?i)" + _SPACE + rb"<(!doctype html|html)"
_ROCPD = rb"SQLite format 3\0.*rocpd_"


NOT_TRACES = (
    NotATrace(
        "a memory snapshot of torch's caching allocator, or another pickle, not a trace",
        "`stepscope memory FILE` shows a snapshot",
        is_memory_snapshot,
    ),
    NotATrace(
        "a memory timeline of torch.profiler, which is a picture in numbers and not a trace",
        "its HTML page shows it; a snapshot (memory_history=True) says which lines hold memory",
        _like(_TIMELINE, _WHOLE_BEGINNING),
    ),
    NotATrace(
        "records of NCCL Inspector, not a trace",
        "give the traces of the same job: `stepscope show collectives RUN`",
        _like(rb'\{.*"inspector_output_format_version"'),
    ),
    NotATrace(
        "a file of torch.save, such as a checkpoint, not a trace",
        "give the trace that the profiler exported",
        _like(rb"PK\x03\x04.*/data\.pkl"),  # an archive with NAME/data.pkl
    ),
    NotATrace(
        "a picture, not a trace",
        "open it in a viewer of pictures",
        _like(rb"\x89PNG|\xff\xd8\xff|GIF8"),
    ),
    NotATrace("a PDF, not a trace", "give the trace itself", _like(rb"%PDF-")),
    NotATrace(
        "a CPU profile of V8 (Node.js, Chrome), not a trace",
        "open it in Chrome's developer tools",
        _like(rb'\s*\{\s*"nodes"\s*:\s*\[\s*\{\s*"id"'),
    ),
    NotATrace(
        "a table of operators, not a trace",
        "any editor shows it; give the trace of the same window",
        # Of torch's `table()`, or a window's own key_averages.txt and key_averages.csv.
        _like(rb"(?:sorted by \w+\s+)?(?:-[- ]*\s+)? *Name +Self CPU %|kind,name,calls,"),
    ),
    NotATrace(
        "collapsed stacks with counts, not a trace",
        "speedscope shows them; give the trace of the same window, or let py-spy write one with "
        "--format chrometrace",
        _like(rb"[^\n{}\[\]]*;[^\n]*[^\n;] \d+\r?\n", _WHOLE_BEGINNING),
    ),
    NotATrace(
        "a recording of memray, not a trace",
        "`python -m memray flamegraph FILE` draws it",
        _like(rb".*memray\0", 64),  # in a frame of LZ4, or by itself
    ),
    NotATrace(
        "statistics or a table of memray, not a trace",
        "`python -m memray flamegraph FILE` draws the recording that they were made of",
        _like(
            rb'\s*\{.*"total_bytes_allocated"\s*:|\s*\[\s*\{(?=[^{}]*"n_allocations")'
            rb'(?=[^{}]*"stack_trace")[^{}]*"allocator"'
        ),
    ),
    NotATrace(
        "a report of Nsight Compute, not a trace",
        "it has counters of single kernels; `ncu --import FILE` shows it",
        _like(rb'NVR\0|(==PROF==[^\n]*\n)*"ID","Process ID","Process Name"'),
    ),
    NotATrace(
        "stacks of one moment by py-spy, not a trace",
        "record some seconds: `py-spy record --format chrometrace`, or `stepscope attach PID`",
        _like(rb"Process \d+: [^\n]*\nPython v\d"),
    ),
    NotATrace(
        "a tree of Triton Proton, which holds totals and no times",
        'record with proton.start(NAME, data="trace"), which writes a trace that opens',
        _like(rb'\s*\[(?!.*"ph")(?=.*"frame")(?=.*"metrics").*"children"'),
    ),
    NotATrace(
        "the JSON of rocprofv3, which is not read",
        "record with `rocprofv3 --output-format pftrace`, which writes a trace that opens",
        _like(rb'.*"rocprofiler-sdk-tool"'),
    ),
    NotATrace(
        "a database of ROCm's RPD, which is not read",
        "`rpd2tracing.py FILE trace.json` writes a trace that opens",
        _like(rb"SQLite format 3\0.*rocpd_api_ops", _WHOLE_BEGINNING),
    ),
    NotATrace(
        "a database of rocprofv3, which is not read",
        "record with `rocprofv3 --output-format pftrace`, which writes a trace that opens",
        _like(_ROCPD, _WHOLE_BEGINNING),
    ),
    NotATrace(
        "a profile of XProf (XPlane), which is not read",
        "the file *.trace.json.gz beside it opens",
        _like(_XPLANE),
    ),
    NotATrace("a web page, not a trace", "open it in a browser", _like(_HTML)),
    NotATrace("a program, not a trace", "give the trace that it wrote", _like(rb"\x7fELF")),
    NotATrace(
        "a Parquet file, not a trace",
        "query it with DuckDB or polars",
        _like(rb"PAR1"),
    ),
    NotATrace(
        "a tar archive, not a trace",
        "unpack it, and give the trace in it",
        _like(rb".{257}ustar"),
    ),
    _compressed("bzip2", b"BZh"),
    _compressed("xz", b"\xfd7zXZ"),
    _compressed("zip", b"PK\x03\x04"),
)
"""Tried in order; the first match is reported."""
