"""Known kinds of files that are not traces: what they are, and what to do with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


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


def _compressed(with_what: str, magic: bytes) -> NotATrace:
    return NotATrace(
        f"compressed with {with_what}, which is not supported",
        "decompress it, or compress it with gzip or zstd",
        lambda beginning: beginning.startswith(magic),
    )


_BEGINNING_BYTES = 4096
_SNAPSHOT_KEYS = (b'"device_traces"', b'"segments"', b'"total_size"', b'"allocator_settings"')


def is_memory_snapshot(beginning: bytes) -> bool:
    """Whether content that starts with these bytes is a snapshot of torch's memory recorder.

    Any pickle of protocol 2 to 5 is taken for one: nothing else that Stepscope reads is a pickle.
    """
    if len(beginning) > 1 and beginning[0] == 0x80:
        return 2 <= beginning[1] <= 5
    start = beginning[:_BEGINNING_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] in (b"{", b"[") and any(key in start for key in _SNAPSHOT_KEYS)


_TIMELINES = tuple(
    re.compile(form)
    for form in (
        rb'^\s*\{\s*"format"\s*:\s*"stepscope-memory-timeline"',
        # torch.profiler's raw form: [[time, action, change in bytes, category], …]
        rb"^\s*\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]",
        # and its other one: [[times], [[bytes by category], …]]
        rb"^\s*\[\s*\[(?:\s*-?\d+\s*,)*\s*(?:-?\d*\s*$|-?\d+\s*\]\s*,\s*\[\s*\[)",
    )
)


def is_memory_timeline(beginning: bytes) -> bool:
    """Whether content that starts with these bytes is a memory timeline.

    That of torch.profiler (`export_memory_timeline`) is nothing but lists of numbers.
    """
    return any(form.match(beginning) for form in _TIMELINES)


def _is_inspector_output(beginning: bytes) -> bool:
    start = beginning[:_BEGINNING_BYTES]
    return start.startswith(b"{") and b'"inspector_output_format_version"' in start


def _begins_with(*magic: bytes) -> Callable[[bytes], bool]:
    return lambda beginning: beginning.startswith(magic)


def _is_torch_file(beginning: bytes) -> bool:
    """Whether torch.save wrote the content: a zip archive with `NAME/data.pkl`."""
    return beginning.startswith(b"PK\x03\x04") and b"/data.pkl" in beginning[:_BEGINNING_BYTES]


def _is_html(beginning: bytes) -> bool:
    start = beginning[:_BEGINNING_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return start.startswith((b"<!doctype html", b"<html"))


def _is_speedscope(beginning: bytes) -> bool:
    start = beginning[:_BEGINNING_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    return start.startswith(b"{") and b"speedscope.app/file-format-schema" in start


_XPLANE = re.compile(
    # Field 1, a plane: its id (field 1), if any, and its name (field 2).
    rb"^\x0a[\x80-\xff]*[\x00-\x7f](?:\x08[\x80-\xff]*[\x00-\x7f])?\x12[\x01-\x7f]"
    rb"(?:/device:|/host:|Task Environment|Derived)"
)


def _is_proton_tree(beginning: bytes) -> bool:
    """Whether the content is a tree of frames with metrics, and no list of events."""
    start = beginning[:_BEGINNING_BYTES].lstrip()
    words = (b'"frame"', b'"metrics"', b'"children"')
    return start.startswith(b"[") and b'"ph"' not in start and all(w in start for w in words)


def _is_rocpd(beginning: bytes) -> bool:
    return beginning.startswith(b"SQLite format 3\0") and b"rocpd_" in beginning


def _is_rpd(beginning: bytes) -> bool:
    """Whether the content is a database of RPD, whose tables have no suffix."""
    return _is_rocpd(beginning) and b"rocpd_api_ops" in beginning


_CPU_PROFILE = re.compile(rb'^\s*\{\s*"nodes"\s*:\s*\[\s*\{\s*"id"')
_COLLAPSED = re.compile(rb"^[^\n{}\[\]]*;[^\n]*[^\n;] \d+\r?\n")


NOT_TRACES = (
    NotATrace(
        "a memory snapshot of torch's caching allocator, or another pickle, not a trace",
        "`stepscope memory FILE` shows a snapshot",
        is_memory_snapshot,
    ),
    NotATrace(
        "a memory timeline of torch.profiler, which is a picture in numbers and not a trace",
        "its HTML page shows it; a snapshot (memory_history=True) says which lines hold memory",
        is_memory_timeline,
    ),
    NotATrace(
        "records of NCCL Inspector, not a trace",
        "give the traces of the same job: `stepscope show collectives RUN`",
        _is_inspector_output,
    ),
    NotATrace(
        "a file of torch.save, such as a checkpoint, not a trace",
        "give the trace that the profiler exported",
        _is_torch_file,
    ),
    NotATrace(
        "a picture, not a trace",
        "open it in a viewer of pictures",
        _begins_with(b"\x89PNG", b"\xff\xd8\xff", b"GIF8"),
    ),
    NotATrace("a PDF, not a trace", "give the trace itself", _begins_with(b"%PDF-")),
    NotATrace(
        "a profile of speedscope, not a trace",
        "speedscope shows it; py-spy writes a trace with --format chrometrace",
        _is_speedscope,
    ),
    NotATrace(
        "a CPU profile of V8 (Node.js, Chrome), not a trace",
        "open it in Chrome's developer tools",
        lambda beginning: _CPU_PROFILE.match(beginning) is not None,
    ),
    NotATrace(
        "collapsed stacks with counts, not a trace",
        "speedscope shows them; py-spy writes a trace with --format chrometrace",
        lambda beginning: _COLLAPSED.match(beginning) is not None,
    ),
    NotATrace(
        "a recording of memray, not a trace",
        "`python -m memray flamegraph FILE` draws it",
        lambda beginning: b"memray\0" in beginning[:64],  # in a frame of LZ4, or by itself
    ),
    NotATrace(
        "a tree of Triton Proton, which holds totals and no times",
        'record with proton.start(NAME, data="trace"), which writes a trace that opens',
        _is_proton_tree,
    ),
    NotATrace(
        "the JSON of rocprofv3, which is not read",
        "record with `rocprofv3 --output-format pftrace`, which writes a trace that opens",
        lambda beginning: b'"rocprofiler-sdk-tool"' in beginning[:_BEGINNING_BYTES],
    ),
    NotATrace(
        "a database of ROCm's RPD, which is not read",
        "`rpd2tracing.py FILE trace.json` writes a trace that opens",
        _is_rpd,
    ),
    NotATrace(
        "a database of rocprofv3, which is not read",
        "record with `rocprofv3 --output-format pftrace`, which writes a trace that opens",
        _is_rocpd,
    ),
    NotATrace(
        "a profile of XProf (XPlane), which is not read",
        "the file *.trace.json.gz beside it opens",
        lambda beginning: _XPLANE.match(beginning) is not None,
    ),
    NotATrace("a web page, not a trace", "open it in a browser", _is_html),
    NotATrace("a program, not a trace", "give the trace that it wrote", _begins_with(b"\x7fELF")),
    NotATrace(
        "a Parquet file, not a trace",
        "query it with DuckDB or polars",
        _begins_with(b"PAR1"),
    ),
    NotATrace(
        "a tar archive, not a trace",
        "unpack it, and give the trace in it",
        lambda beginning: beginning[257:262] == b"ustar",
    ),
    _compressed("bzip2", b"BZh"),
    _compressed("xz", b"\xfd7zXZ"),
    _compressed("zip", b"PK\x03\x04"),
)
"""Tried in order; the first match is reported."""
