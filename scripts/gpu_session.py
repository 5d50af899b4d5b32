"""A session on one GPU: everything about Stepscope that only a GPU can show, in twelve minutes.

    python scripts/gpu_session.py --out DIR [--minutes 12] [--bundle] [--only NAME,…] [--dry-run]

Needs no network. Runs each part in a process of its own with a time limit, skips what no time is
left for, and writes `results.json` and `table.md` after each, so that a session that is cut off
leaves what it has. A part that fails becomes a row that says why. Parts are the names that
`--dry-run` prints; `--only` also takes their groups, such as `training` or `snapshot`. With
`--bundle`, DIR holds at most eight files of at most 15 MiB: the table, the results, the log, and
archives of the traces and snapshots.

`--only report --out DIR` judges the recordings of an earlier session anew (unpack its archives in
DIR first), for which no GPU is needed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
MIB = 1 << 20
ARCHIVE_BYTES = 15 * MIB
TRACE_ARCHIVES = 3
RESERVE_S = 15.0
"""Kept back for the archives and the table."""
TOLERANCE = 0.1
"""A prediction is right if it is within this share of the step before."""
HEALTHY_SHARE = 0.05
"""Of a healthy training, no more than this share of the step may be promised to be saved."""

TRAININGS = (
    "launch-bound",
    "pageable-copies",
    "synchronisation",
    "unfused-attention",
    "fp32-matmuls",
    "small-batch",
    "starved-loader",
    "starved-loader-cpu",
    "full-queue",
    "allocator-retries",
    "cuda-graphs",
    "compiled",
    "out-of-memory",
    "input-in-the-step",
    "restarted-workers",
    "collected-garbage",
    "python-in-the-step",
    "zeroed-gradients",
    "cross-entropy",
    "image-layout",
    "odd-sizes",
    "noise-on-the-cpu",
    "recomputation",
    "small-copies",
    "healthy",
)
ALSO_ON_CPU = frozenset(
    {
        "measure:machine",
        "measure:cost",
        "measure:window",
        "measure:after",
        "training:unfused-attention",
        "training:small-batch",
        "training:starved-loader",
        "report",
    }
)
"""Parts that run without a GPU, so that the script itself can be tested."""
SNAPSHOTS = (
    "leak",
    "logits",
    "transformer",
    "oom-fragmented",
    "oom-full",
    "oom-too-large",
    "oom-training",
    "private-pool",
    "two-streams",
    "expandable",
    "no-history",
)


@dataclass(frozen=True)
class Part:
    """One part of the session.

    Attributes:
        name: Group and name, as in `training:launch-bound`.
        expected_s: Seconds that it takes on an H100.
        limit_s: Seconds after which it is ended.
    """

    name: str
    expected_s: float
    limit_s: float

    @property
    def group(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]

    @property
    def item(self) -> str:
        """The part of the name after the colon."""
        return self.name.partition(":")[2] or self.name


def plan() -> list[Part]:
    """All parts, the most important first."""
    return [
        Part("measure:machine", 17, 90),  # the first import of torch reads it from the disk
        Part("measure:queue", 19, 45),
        # Most of it is torch's import and the profiler's first start, 4 s each.
        *(Part(f"training:{name}", 21 if name == "compiled" else 14, 60) for name in TRAININGS),
        Part("measure:calls", 7, 30),
        Part("measure:cost", 55, 110),
        Part("measure:window", 10, 60),
        Part("measure:after", 15, 45),
        *(Part(f"snapshot:{name}", 9, 30) for name in SNAPSHOTS),
        Part("pytest", 22, 120),
        Part("report", 30, 600),
    ]


class Session:
    """Runs parts, and keeps their results."""

    def __init__(self, out: Path, work: Path, seconds: float) -> None:
        self.out, self.work = out, work
        self._ends = time.monotonic() + seconds - RESERVE_S
        self._began = time.monotonic()
        self.results: dict[str, Any] = {}
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "PYTHONUNBUFFERED": "1",
            "STEPSCOPE_CACHE": str(work / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
            "TRITON_CACHE_DIR": str(work / "triton"),
        }

    @property
    def left_s(self) -> float:
        """Seconds that parts may still take."""
        return self._ends - time.monotonic()

    @property
    def has_gpu(self) -> bool:
        """Whether torch found a GPU; unknown counts as yes."""
        machine: dict[str, Any] = self.results.get("measure:machine", {})
        return bool(machine.get("device") != "no GPU")

    def say(self, text: str) -> None:
        """Print a line and keep it in the log."""
        line = f"{time.monotonic() - self._began:6.1f} s  {text}"
        print(line, flush=True)
        self._log(line)

    def _log(self, text: str) -> None:
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(text + "\n")

    def run(self, part: Part) -> None:
        """Run one part, whatever becomes of it, and save the results."""
        limit = min(part.limit_s, self.left_s)
        if part.name not in ALSO_ON_CPU and not self.has_gpu:
            self.results[part.name] = {"skipped": "torch finds no GPU"}
        elif limit < min(part.expected_s / 2, 10):
            self.results[part.name] = {"not_run": f"no time was left ({max(0, limit):.0f} s)"}
            self.say(f"{part.name}: not run, no time left")
        else:
            began = time.monotonic()
            try:
                found = self._found(part, limit)
            except Exception as error:  # noqa: BLE001 - no part may end the session
                found = {"failed": f"{type(error).__name__}: {error}"}
            found["seconds"] = round(time.monotonic() - began, 1)
            self.results[part.name] = found
            words = found.get("failed") or found.get("skipped") or "done"
            self.say(f"{part.name}: {words} ({found['seconds']} s)")
        self.save()

    def _found(self, part: Part, limit: float) -> dict[str, Any]:
        if part.name == "report":
            return self._report(limit)
        if part.name == "pytest":
            return self._pytest(limit)
        script = {"training": "gpu_trainings", "measure": "gpu_measurements"}.get(
            part.group, "gpu_snapshots"
        )
        folder = {"training": "traces", "measure": "measured"}.get(part.group, "snapshots")
        result = self.work / f"{part.group}-{part.item}.json"
        result.unlink(missing_ok=True)
        command = [str(SCRIPTS / f"{script}.py"), part.item, "--out", str(self.work / folder)]
        problem = self._process([*command, "--result", str(result)], limit)[1]
        values = json.loads(result.read_text()) if result.exists() else {}
        if problem:
            values["failed"] = problem
        return values

    def _process(self, arguments: list[str], limit: float) -> tuple[str, str]:
        """Output of a Python process, and what went wrong with it, with the end of its stderr."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        problem = ""
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # Workers of a loader and the like end with it.
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            problem = f"ended after {limit:.0f} s"
        if not problem and process.returncode:
            problem = f"exit status {process.returncode}"
        name = " ".join(Path(argument).name for argument in arguments[:3])
        self._log(f"--- {name}\n{output[-20_000:]}{errors[-20_000:]}")
        # Kineto writes a line for each start and stop of the profiler.
        lines = [line for line in errors.strip().splitlines() if "profiler_st" not in line]
        if problem and lines:
            problem += ": " + " | ".join(lines[-3:])[-600:]
        return output, problem

    # -- reports -----------------------------------------------------------------------------------

    def _report(self, limit: float) -> dict[str, Any]:
        """The report of every recording, and of every snapshot."""
        traces = sorted(path for path in (self.work / "traces").glob("*") if path.is_dir())
        snapshots = sorted((self.work / "snapshots").glob("*.pickle.gz"))
        self.environment["POLARS_MAX_THREADS"] = "4"
        ends = time.monotonic() + limit

        def ask(path: Path) -> tuple[str, dict[str, Any]]:
            arguments = ["-m", "stepscope", "report", str(path), "--format", "json"]
            left = ends - time.monotonic()
            if left < 1:
                return path.name, {"failed": "no time was left"}
            output, problem = self._process(arguments, left)
            try:
                return path.name, {"report": json.loads(output)}
            except ValueError:
                return path.name, {"failed": problem or "the report is no JSON"}

        workers = max(1, min(6, len(os.sched_getaffinity(0)) // 2))
        with ThreadPoolExecutor(workers) as pool:
            found = dict(pool.map(ask, [*traces, *snapshots]))
        folder = self.work / "reports"
        folder.mkdir(exist_ok=True)
        brief = {}
        for name, answer in found.items():
            if "report" in answer:
                packed = gzip.compress(json.dumps(answer["report"]).encode())
                (folder / f"{name}.json.gz").write_bytes(packed)
                brief[name] = in_brief(answer["report"])
            else:
                brief[name] = answer
        failures = [f"{name}: {one['failed']}" for name, one in brief.items() if "failed" in one]
        outcome: dict[str, Any] = {"reports": brief}
        if failures:
            outcome["failed"] = (
                f"{len(failures)} of {len(brief)} reports failed: {'; '.join(failures)}"
            )
        return outcome

    # -- pytest ------------------------------------------------------------------------------------

    def _pytest(self, limit: float) -> dict[str, Any]:
        """The tests marked `gpu`; only their files, as collecting all takes a minute."""
        files = sorted(
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "tests").rglob("test_*.py")
            if "mark.gpu" in path.read_text(encoding="utf-8")
        )
        options = ["-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--timeout=60"]
        output, problem = self._process([*options, "--color=no", *files], limit)
        (self.out / "pytest.txt").write_text(output[-200_000:])
        lines = output.strip().splitlines()
        kept = [line for line in lines if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
        values: dict[str, Any] = {"summary": lines[-1] if lines else "", "lines": kept[:40]}
        if problem:
            values["failed"] = f"{values['summary'] or problem}"[:600]
        return values

    # -- files -------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the results and the table as they stand."""
        for name, text in (
            ("results.json", json.dumps(self.results, indent=1, ensure_ascii=False)),
            ("table.md", "\n".join(table(self.results)) + "\n"),
        ):
            temporary = self.work / f"{name}.tmp"
            temporary.write_text(text, encoding="utf-8")
            shutil.copyfile(temporary, self.out / name)

    def bundle(self) -> None:
        """Put traces and snapshots into archives in the output directory."""
        left_out = []
        traces = [path for folder in ("traces", "reports") for path in _files(self.work / folder)]
        snapshots = _files(self.work / "snapshots")
        bins = _archives(traces, TRACE_ARCHIVES)
        for number, paths in enumerate(bins[:-1], 1):
            self._pack(f"traces-{number}.tar.gz", paths)
        left_out += bins[-1]
        bins = _archives(snapshots, 1)
        self._pack("snapshots.tar.gz", bins[0])
        left_out += bins[-1]
        for path in left_out:
            self.say(f"left out of the archives: {path.name}, {path.stat().st_size} bytes")

    def _pack(self, name: str, paths: list[Path]) -> None:
        if not paths:
            return
        with tarfile.open(self.out / name, "w:gz", compresslevel=6) as archive:
            for path in paths:
                archive.add(path, arcname=str(path.relative_to(self.work)))


def _files(folder: Path) -> list[Path]:
    """Files worth keeping: no text that the trace has anyway."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in files if path.name not in {"key_averages.csv", "stacks.txt"}]


def _archives(paths: list[Path], count: int) -> list[list[Path]]:
    """Files in order for each archive, and in the last list those that fit in none."""
    bins: list[list[Path]] = [[] for _ in range(count + 1)]
    sizes = [0] * count
    for path in paths:
        size = path.stat().st_size + 2048
        fits = (number for number in range(count) if sizes[number] + size < ARCHIVE_BYTES)
        number = next(fits, count)
        bins[number].append(path)
        if number < count:
            sizes[number] += size
    return bins


def in_brief(report: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a report."""
    ranks = report.get("ranks") or [{}]
    findings = [
        {
            key: finding.get(key)
            for key in (
                "id",
                "title",
                "saving_ns",
                "predicted_step_ns",
                "is_upper_bound",
                "severity",
                "saving_reason",
            )
        }
        for finding in report.get("findings", [])
    ]
    return {
        "verdict": report.get("verdict"),
        "step_ns": ranks[0].get("step_ns"),
        "findings": findings,
    }


# -- the table -------------------------------------------------------------------------------------


MACHINE = (
    "{device}; torch {torch}, CUDA {cuda}, Python {python}, {cpus} CPUs; nsys: {nsys}; "
    "packages missing: {missing}"
)
NOTE = (
    "Step times are unrecorded unless said. Promise: the step that the finding predicts, as a "
    "share of the step in the report, applied to the step before. Error: promise minus "
    "measured, in per cent of the step before."
)
COLUMNS = [
    "training",
    "step before",
    "step in the report",
    "promised step",
    "step with the fix",
    "fix",
    "error",
    "first findings",
    "right?",
    "verdict with the fix",
]


def table(results: dict[str, Any]) -> list[str]:
    """The results in Markdown."""
    machine = results.get("measure:machine", {})
    lines = [
        "# GPU session",
        "",
        MACHINE.format(
            missing=", ".join(machine.get("missing", [])) or "none",
            **{
                name: machine.get(name)
                for name in ("device", "torch", "cuda", "python", "cpus", "nsys")
            },
        ),
        "",
        "## Planted trainings",
        "",
        NOTE,
        "",
        _row(COLUMNS),
        _row(["---"] * len(COLUMNS)),
    ]
    reports = results.get("report", {}).get("reports", {})
    for name in TRAININGS:
        if f"training:{name}" in results:
            cells = judged(name, results[f"training:{name}"], reports)
            if machine.get("device") == "no GPU" and not _why_not(results[f"training:{name}"]):
                cells[8] = "not judged: no GPU"
            lines.append(_row(cells))
    lines += [
        "",
        "## Snapshots",
        "",
        "| snapshot | bytes | verdict | problem |",
        "|---|---|---|---|",
    ]
    for name in SNAPSHOTS:
        found = results.get(f"snapshot:{name}")
        if found is None:
            continue
        report = reports.get(f"{name}.pickle.gz", {})
        verdict = report.get("verdict") or ("none" if report else "")
        problem = found.get("problem") or report.get("failed") or _why_not(found)
        lines.append(_row([name, found.get("bytes", ""), verdict, problem]))
    lines += _measured(results)
    lines += ["", "## Not done", ""]
    reasons: dict[str, list[str]] = {}
    for name, found in results.items():
        if _why_not(found):
            reasons.setdefault(_why_not(found), []).append(name)
    left_out = [f"- {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [*lines, *(left_out or ["- nothing was left out"])]


def _row(cells: list[Any]) -> str:
    texts = (str("" if cell is None else cell).replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(text.replace("\n", " ") for text in texts) + " |"


def _why_not(found: dict[str, Any]) -> str:
    for key in ("failed", "skipped", "not_run"):
        if found.get(key):
            return str(found[key])
    return ""


def _ms(value_ns: float | None) -> str:
    return "" if value_ns is None else f"{value_ns / 1e6:.2f} ms"


def _promised(findings: list[dict[str, Any]], step_ns: float | None) -> list[str]:
    """Findings that say for sure that much of the step can be saved."""
    return [
        finding["id"]
        for finding in findings
        if not finding["is_upper_bound"]
        and (finding.get("saving_ns") or 0) > HEALTHY_SHARE * (step_ns or 0)
    ]


def judged(name: str, found: dict[str, Any], reports: dict[str, Any]) -> list[Any]:
    """The cells of a planted training."""
    before, fixed = found.get("before", {}), found.get("fixed", {})
    cells: dict[str, Any] = dict.fromkeys(
        ("before", "reported", "promised", "fixed", "error", "first", "right", "after"), ""
    )
    step_ns = before.get("step_ns")
    cells["before"] = _ms(step_ns)
    fixed_ns = None
    if fixed.get("step_ns"):
        fixed_ns = fixed["step_ns"] * before["samples"] / fixed["samples"]
        cells["fixed"] = _ms(fixed_ns)
    report = reports.get(f"{name}-before", {})
    findings = report.get("findings", [])
    expected = found.get("expected", [])
    if findings or report.get("verdict"):
        cells["reported"] = _ms(report.get("step_ns"))
        cells["first"] = ", ".join(finding["id"] for finding in findings[:3])
        if expected:
            is_first = bool(findings) and findings[0]["id"] in expected
            right = "cause right" if is_first else "CAUSE WRONG"
        else:
            promised = _promised(findings, report.get("step_ns"))
            right = f"{', '.join(promised)} PROMISED TOO MUCH" if promised else "nothing promised"
        wrong = {finding["id"] for finding in findings} & set(found.get("forbidden", []))
        right += f", {', '.join(sorted(wrong))} WRONG" if wrong else ""
        promise = next((one for one in findings if one["id"] in expected), None)
        if promise and promise.get("predicted_step_ns") and report.get("step_ns") and fixed_ns:
            share = promise["predicted_step_ns"] / report["step_ns"]
            promised_ns = share * step_ns
            error = (promised_ns - fixed_ns) / step_ns
            is_bound = bool(promise["is_upper_bound"])
            cells["promised"] = ("at best " if is_bound else "") + _ms(promised_ns)
            cells["error"] = f"{100 * error:+.1f} %"
            is_near = abs(error) <= TOLERANCE or (is_bound and error <= TOLERANCE)
            if not found.get("is_promised", True):
                cells["error"] += " (another change than the fix)"
            else:
                right += ", saving right" if is_near else ", SAVING WRONG"
        cells["right"] = right
    if _why_not(found):
        cells["right"] = _why_not(found)
    elif report.get("failed"):
        cells["right"] = report["failed"]
    cells["after"] = reports.get(f"{name}-fixed", {}).get("verdict", "")
    return [
        name,
        *(cells[key] for key in ("before", "reported", "promised", "fixed")),
        found.get("fix", ""),
        *(cells[key] for key in ("error", "first", "right", "after")),
    ]


def _measured(results: dict[str, Any]) -> Iterator[str]:
    cost = results.get("measure:cost", {}).get("table", {})
    if cost:
        yield from ("", "## Cost of recording", "")
        yield "| recording | step | ratio to the bare loop | each round | end of the run |"
        yield "|---|---|---|---|---|"
        for name, row in cost.items():
            yield _row(
                [
                    name,
                    _ms(row["step_ns"]),
                    row["ratio"],
                    _figure("", row["ratios"]),
                    f"{row['end_s']} s",
                ]
            )
    for part, title in (
        ("queue", "Launch queue"),
        ("calls", "Cost of single calls"),
        ("window", "A window after CUDA's start"),
        ("after", "Steps around a window of torch's profiler"),
    ):
        found = results.get(f"measure:{part}", {})
        if found and not found.get("skipped"):
            yield from ("", f"## {title}", "")
            yield from _rows({name: one for name, one in found.items() if name != "seconds"})
    tests = results.get("pytest")
    if tests and not tests.get("skipped"):
        yield from ("", "## pytest -m gpu", "", tests.get("summary", ""), "")
        yield from (f"- {line}" for line in tests.get("lines", []))


def _rows(found: dict[str, Any]) -> Iterator[str]:
    """One row for each measurement, with a column for each of its figures where all have the same.

    Long lists are in `results.json` alone.
    """
    figures = [tuple(value) for value in found.values() if isinstance(value, dict)]
    is_uniform = len(figures) == len(found) and len(set(figures)) == 1
    names = [name for name in figures[0] if not _is_long(found, name)] if is_uniform else []
    yield _row(["what", *(_label(name) for name in names)] if is_uniform else ["what", "found"])
    yield _row(["---"] * (len(names) + 1 if is_uniform else 2))
    for what, value in found.items():
        if is_uniform:
            yield _row([what, *(_figure(name, value[name]) for name in names)])
        elif isinstance(value, dict):
            shown = {name: one for name, one in value.items() if not _is_long(found, name)}
            words = [f"{_label(name)}: {_figure(name, one)}" for name, one in shown.items()]
            yield _row([what, "; ".join(words)])
        else:
            yield _row([what, _figure(what, value)])


def _is_long(found: dict[str, Any], name: str) -> bool:
    lists = (value.get(name) for value in found.values() if isinstance(value, dict))
    return any(isinstance(one, list) and len(one) > 20 for one in lists)


def _label(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_ms").replace("_", " ")


def _figure(name: str, value: Any) -> str:
    """A value with the unit that its name ends with."""
    if isinstance(value, dict):
        return ", ".join(f"{_label(key)} {_figure(key, one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(_figure(name, one) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value or "–"
    if name.endswith("_ns"):
        return f"{value / 1e6:.2f} ms" if value >= 1e6 else f"{value / 1e3:.1f} µs"
    return f"{value:g} ms" if name.endswith("_ms") else f"{value:g}"


# -- the command -----------------------------------------------------------------------------------


def chosen(parts: list[Part], only: str) -> list[Part]:
    """Those whose name, item or group was asked for.

    Raises:
        SystemExit: A name matches no part.
    """
    if not only:
        return parts
    names = only.split(",")
    known = {word for part in parts for word in (part.name, part.group, part.item)}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no such part: {', '.join(unknown)}; --dry-run lists them")
    return [part for part in parts if {part.name, part.group, part.item} & set(names)]


def main() -> None:
    """Run the session."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-session")
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--only", default="", metavar="NAME,…")
    parser.add_argument("--bundle", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    parts = chosen(plan(), options.only)
    if options.dry_run:
        for part in parts:
            print(f"{part.name:28}{part.expected_s:5.0f} s, at most {part.limit_s:.0f} s")
        total = sum(part.expected_s for part in parts)
        print(f"{len(parts)} parts, {total:.0f} s of {60 * options.minutes - RESERVE_S:.0f} s")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-session-") as temporary:
        work = Path(temporary) if options.bundle else options.out
        session = Session(options.out, work, 60 * options.minutes)
        earlier = options.out / "results.json"
        if options.only and earlier.exists():
            session.results.update(json.loads(earlier.read_text(encoding="utf-8")))
        if "measure:machine" not in session.results and parts[0].name != "measure:machine":
            session.run(plan()[0])
        for number, part in enumerate(parts):
            session.run(part)
            is_last = number + 1 == len(parts) or parts[number + 1].group != part.group
            if options.bundle and is_last and part.group in {"training", "snapshot", "report"}:
                session.bundle()
        print("\n".join(table(session.results)))


if __name__ == "__main__":
    main()
