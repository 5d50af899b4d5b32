"""Opens a run, from its directory and manifests or from loose trace files."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from stepscope.errors import NothingFoundError, UnreadableInputError
from stepscope.opening.discover import (
    TRACE_NAMES,
    TraceFile,
    are_of_one_run,
    find_traces,
    has_wildcard,
    newest,
    ranks_in_headers,
)
from stepscope.opening.fetching import fetch_run
from stepscope.opening.remote import is_url, redacted
from stepscope.opening.trials import TrialsRecord
from stepscope.run.files import exists, kind_of
from stepscope.run.layout import MANIFEST_FILE, PY_SPY_TRACES, WINDOW_FILE, RankLayout, RunLayout
from stepscope.run.manifest import (
    ExternalRecord,
    FinishedRecord,
    JobRecord,
    RankManifest,
    WindowRecord,
    merge_finished,
    read_record,
)
from stepscope.run.step_record import StepRecord, read_steps

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Window:
    """A window of one rank, as found on disk.

    Attributes:
        index: Its index in the rank, from 0.
        trace_path: Its trace file, or None if the trace is missing or known to be bad.
        record: Its record in the manifest; None for loose trace files.
    """

    rank: int
    index: int
    trace_path: Path | None
    record: WindowRecord | None = None


@dataclass(frozen=True)
class RankRun:
    """One rank of a run.

    Attributes:
        rank: Its global rank; for loose traces without one, their position.
        manifest: What it recorded, and how it ended, with what is known by now of windows that
            were still being made when it was written; None for loose trace files.
    """

    rank: int
    directory: Path
    manifest: RankManifest | None
    windows: tuple[Window, ...]

    @functools.cached_property
    def steps(self) -> tuple[StepRecord, ...]:
        """The step records, in the order of the file; empty for loose trace files."""
        return tuple(self._steps_and_problems[0])

    @functools.cached_property
    def step_problems(self) -> tuple[str, ...]:
        """Lines of the step record that were skipped."""
        return tuple(self._steps_and_problems[1])

    @property
    def step_record_path(self) -> Path | None:
        """Its `steps.jsonl`, which may be missing; None for loose trace files."""
        return None if self.manifest is None else RankLayout(self.directory).steps

    @property
    def memory_log_path(self) -> Path | None:
        """Its `memory.log`; None if it has none."""
        path = RankLayout(self.directory).memory_log
        return path if self.manifest is not None and path.is_file() else None

    @property
    def metrics_path(self) -> Path | None:
        """The metrics that the rank's monitor sampled; None if there are none."""
        path = RankLayout(self.directory).metrics
        return path if self.manifest is not None and path.is_file() else None

    @functools.cached_property
    def _steps_and_problems(self) -> tuple[list[StepRecord], list[str]]:
        path = self.step_record_path
        return ([], []) if path is None else read_steps(path)


@dataclass(frozen=True)
class ExternalRecording:
    """Another tool's recording of the job."""

    directory: Path
    record: ExternalRecord

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that exist."""
        found = (_file_inside(self.directory, item.path) for item in self.record.artifacts)
        return tuple(path for path in found if path is not None)


@dataclass(frozen=True)
class Run:
    """One observed training job.

    Attributes:
        path: The run directory, or what was opened as a run.
        job: The content of `run.json`; None if there is none.
        ranks: The ranks that left files, by rank.
        problems: What could not be read.
        external: Other tools' recordings of it.
        source: URL that it was fetched from; empty for a local run.
        unrelated: If its traces are not known to be ranks of one run: how many there are. 0 if
            they are.
        trials: What trials of fixes brought, if it records a script that `stepscope try` tried
            them on.
        others: How many older runs are in the folder that was opened.
        empty: How many newer ones there have ended and recorded nothing: they are left out.
    """

    path: Path
    job: JobRecord | None
    ranks: tuple[RankRun, ...]
    problems: tuple[str, ...] = ()
    external: tuple[ExternalRecording, ...] = ()
    source: str = ""
    unrelated: int = 0
    trials: TrialsRecord | None = None
    others: int = 0
    empty: int = 0

    @property
    def sampled(self) -> tuple[Path, ...]:
        """What py-spy recorded of it as a trace."""
        files = (path for recording in self.external for path in recording.files)
        return tuple(path for path in files if path.name in PY_SPY_TRACES)

    @property
    def location(self) -> str:
        """Where it was opened from, for display."""
        return self.source or str(self.path)

    @property
    def windows(self) -> tuple[Window, ...]:
        """All windows of all ranks."""
        return tuple(window for rank in self.ranks for window in rank.windows)

    def artifacts(self, kind: str) -> tuple[Path, ...]:
        """Paths of the windows' artifacts of one kind, such as "python_memory"."""
        return tuple(
            RunLayout(self.path).rank(window.rank).root / artifact.path
            for window in self.windows
            if window.record is not None
            for artifact in window.record.artifacts
            if artifact.kind == kind
        )


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run directory, a directory of traces, a single trace file, or a glob of them.

    For a run at an fsspec URL (`s3://bucket/profiles/RUN`), manifests, step records and traces are
    fetched to the user's cache directory, which STEPSCOPE_CACHE overrides.

    A directory of several runs opens as its newest one, without those that have ended and recorded
    nothing (`Run.empty`), unless all have. Trace files outside a run directory (other
    tools' layouts, TensorBoard log directories) become the windows of their ranks, which are
    determined from their names, or from the traces' headers. Traces for which neither tells the
    rank are unrelated: each gets a number of its own, and `Run.unrelated` says how many there are.

    Raises:
        UnreadableInputError: There is no run and no trace at `path`; the message says what was
            searched for.
    """
    if is_url(str(path)):
        return replace(open_run(fetch_run(str(path))), source=redacted(str(path)))
    root = Path(path)
    if not exists(root):
        if has_wildcard(str(path)):
            return _open_loose(root)
        if str(root) == "-":
            raise UnreadableInputError(
                "-: standard input cannot be read here: save it to a file, and give its name"
            )
        raise UnreadableInputError(f"{root}: no such file or directory")
    if root.is_file():
        return _open_loose(root)
    if not root.is_dir():
        raise UnreadableInputError(
            f"{root}: {kind_of(root.stat().st_mode)}, not a file or directory; "
            "save what it delivers to a file, and give its name"
        )
    try:
        home, others, empty = _find_run(root)
    except OSError as error:
        raise UnreadableInputError(
            f"{root}: cannot be listed: {error.strerror or error}"
        ) from error
    if home is None:
        return _open_loose(root)
    return replace(_open_home(home), others=others, empty=empty)


def open_window(path: str | os.PathLike[str]) -> Run | None:
    """The run that a trace file is a window of, with that window of each rank; None if it is none.

    What the run knows beside the trace, such as its step record and the other ranks, is known of
    the window as well.
    """
    file = Path(path)
    if is_url(str(path)) or len(file.absolute().parents) < _DEPTH or not file.is_file():
        return None
    home = file.absolute().parents[_DEPTH - 1]
    try:
        run = _open_home(home) if _is_run(home) else None
        mine = [
            window
            for window in (() if run is None else run.windows)
            if window.trace_path is not None and window.trace_path.samefile(file)
        ]
    except OSError:
        return None
    if run is None or not mine:
        return None
    ranks = (
        replace(rank, windows=tuple(one for one in rank.windows if one.index == mine[0].index))
        for rank in run.ranks
    )
    return replace(run, ranks=tuple(ranks))


_DEPTH = 3
"""How many folders of a run a window's trace lies in, the run itself included."""


@contextmanager
def naming_its_location(run: Run) -> Iterator[None]:
    """Let errors about the files of a run name where it was opened from, not the copy of it."""
    try:
        yield
    except UnreadableInputError as error:
        raise UnreadableInputError(str(error).replace(str(run.path), run.location)) from error


def one_job(run: Run) -> Run:
    """The run itself, or of unrelated traces the newest, which can be judged alone."""
    if not run.unrelated or not run.windows:
        return run
    rank_of = {window.trace_path: rank for rank in run.ranks for window in rank.windows}
    path = newest([path for path in rank_of if path is not None])
    rank = rank_of[path]
    window = Window(rank.rank, 0, path)
    chosen = replace(rank, directory=path.parent, windows=(window,))
    return replace(run, ranks=(chosen,))


def _find_run(root: Path) -> tuple[Path | None, int, int]:
    """`root` itself, the run that contains it, or the newest in it that has recorded anything.

    Returns:
        The run; how many older ones there are, and how many newer ones that are empty.
    """
    for candidate in (root, root.parent, root.parent.parent):
        if _is_run(candidate):
            return candidate, 0, 0
    runs = [child for child in root.iterdir() if child.is_dir() and _is_run(child)]
    runs.sort(key=_age_key, reverse=True)
    empty = next((place for place, run in enumerate(runs) if not _is_empty(run)), 0)
    return (runs[empty] if runs else None), max(len(runs) - 1 - empty, 0), empty


def _is_empty(run: Path) -> bool:
    """Whether a run has ended and recorded nothing that can be judged.

    One that still runs is not: its first step may be under way.
    """
    layout = RunLayout(run)
    ranks = [RankLayout(one) for one in run.iterdir() if RunLayout.rank_of(one.name) is not None]
    if not ranks or layout.trials.exists() or layout.external.exists():
        return False
    for rank in ranks:
        try:
            state = read_record(rank.manifest, RankManifest).state
        except UnreadableInputError:
            return False  # it opens, and says what is wrong with it
        is_judged = rank.steps.is_file() and rank.steps.stat().st_size > 0
        kept = (rank.ring, rank.snapshots, *rank.censuses, *rank.root.glob("window-*"))
        if state == "running" or is_judged or any(path.exists() for path in kept):
            return False
    return True


def _is_run(directory: Path) -> bool:
    layout = RunLayout(directory)
    if layout.run_file.is_file():
        return True
    return any(
        RunLayout.rank_of(child.parent.name) is not None
        for child in directory.glob("rank*/manifest.json")
    )


def _age_key(run: Path) -> tuple[int, str]:
    layout = RunLayout(run)
    try:
        created_ns = read_record(layout.run_file, JobRecord).created_ns
    except UnreadableInputError:
        created_ns = run.stat().st_mtime_ns
    return created_ns, run.name


def _open_home(home: Path) -> Run:
    layout = RunLayout(home)
    problems: list[str] = []
    job = _read(layout.run_file, JobRecord, problems)
    if not layout.run_file.is_file():
        problems.append(f"{layout.run_file}: missing, so the job's description is unknown")
    ranks: list[RankRun] = []
    for directory in sorted(home.iterdir()):
        rank = RunLayout.rank_of(directory.name)
        if rank is None or not directory.is_dir():
            continue
        path = layout.rank(rank).manifest
        manifest = _read(path, RankManifest, problems, is_needed=True) or RankManifest(
            # The steps can be read all the same.
            rank=rank,
            state="unknown",
            ended="the manifest is missing",
        )
        completed = tuple(_completed(window, directory) for window in manifest.windows)
        manifest = replace(manifest, windows=completed)
        ranks.append(RankRun(rank, directory, manifest, _windows_of(rank, directory, manifest)))
    external = tuple(
        ExternalRecording(path.parent, record)
        for path in sorted(layout.external.glob(f"*/{MANIFEST_FILE}"))
        if (record := _read(path, ExternalRecord, problems, is_needed=True)) is not None
    )
    trials = _read(layout.trials, TrialsRecord, problems)
    return Run(home, job, tuple(ranks), tuple(problems), external, trials=trials)


def _read(
    path: Path, kind: type[_Record], problems: list[str], *, is_needed: bool = False
) -> _Record | None:
    """A record; None if there is none, with a problem if it is unreadable, or needed."""
    if is_needed or path.is_file():
        try:
            return read_record(path, kind)
        except UnreadableInputError as error:
            problems.append(str(error))
    return None


def _windows_of(rank: int, directory: Path, manifest: RankManifest) -> tuple[Window, ...]:
    windows = []
    for record in manifest.windows:
        path: Path | None = None
        for artifact in record.artifacts:
            if artifact.kind == "trace" and not artifact.problem:
                path = _file_inside(directory, artifact.path)
        windows.append(Window(rank, record.index, path, record))
    return tuple(windows)


def _completed(record: WindowRecord, directory: Path) -> WindowRecord:
    """A window whose files were still being made when its process last wrote the manifest.

    The finishing process left its own record next to them, which is all there is if the training
    was killed meanwhile.
    """
    if record.state != "saving":
        return record
    window = RankLayout(directory).window(record.index)
    try:
        return merge_finished(record, read_record(window / WINDOW_FILE, FinishedRecord))
    except UnreadableInputError:
        return record


def _file_inside(directory: Path, relative: str) -> Path | None:
    """The file that a manifest names, or None if it does not exist or is elsewhere.

    A manifest is untrusted: it may not point outside its rank's directory.
    """
    candidate = directory / relative
    try:
        inside = candidate.resolve().is_relative_to(directory.resolve())
        return candidate if inside and candidate.is_file() else None
    except (OSError, ValueError, RuntimeError):  # not a path, or a loop of links
        return None


def open_files(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """Open trace files as one run, as a glob that matches them would."""
    files = [file for path in paths for file in _traces_at(Path(path))]
    return _loose_run(Path(os.path.commonpath([file.path.absolute() for file in files])), files)


def _open_loose(root: Path) -> Run:
    return _loose_run(root, _traces_at(root))


def _traces_at(root: Path) -> list[TraceFile]:
    files = find_traces(root)
    if not files and has_wildcard(str(root)) and not exists(root):
        remedy = ""
        if root.suffix in (".pickle", ".pkl"):
            remedy = "; give memory snapshots by their names, or their directory"
        raise NothingFoundError(f"{root}: matches no run and no trace ({TRACE_NAMES}){remedy}")
    if not files:
        raise NothingFoundError(
            f"{root}: found no run (run.json, rank*/manifest.json) and no trace ({TRACE_NAMES}); "
            "`stepscope run -- python train.py` records a run"
        )
    return files


def _loose_run(root: Path, files: list[TraceFile]) -> Run:
    unrelated = 0
    if len(files) > 1 and not are_of_one_run(files):
        ranks_found = ranks_in_headers(files)
        unrelated = len(files) if ranks_found is None else 0
        numbers = range(len(files)) if ranks_found is None else ranks_found
        files = [replace(file, rank=rank) for file, rank in zip(files, numbers, strict=True)]
    by_rank: dict[int, list[TraceFile]] = {}
    for file in files:
        by_rank.setdefault(file.rank or 0, []).append(file)
    ranks = []
    for rank in sorted(by_rank):
        members = by_rank[rank]
        windows = tuple(Window(rank, index, file.path) for index, file in enumerate(members))
        ranks.append(RankRun(rank, members[0].path.parent, None, windows))
    return Run(root, None, tuple(ranks), unrelated=unrelated)
