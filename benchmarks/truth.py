"""How true the promises are: simulated trainings, diagnosed, against the same trainings fixed.

    python benchmarks/truth.py --jobs 1000 --processes 2     # one table in all, one per finding
    python benchmarks/truth.py --show 17                     # one training in full
    python benchmarks/truth.py --jobs 10000 --out a.jsonl    # interrupted, it goes on if run again
    python benchmarks/truth.py --together a.jsonl b.jsonl    # one table of them all

Each seed is a training with one cause planted, or two (`tests.support.simulator`). Its recorded
window is diagnosed; each finding's saving, and each answer of `show what-if`, is compared with what
the steady step of the simulated training takes less once exactly that is fixed. Errors are shares
of the steady step.

    within 5 %    share of the promises that are wrong by at most so much
    false         promises of more than 2 % for a fix that brings nothing (less than 0.5 %)
    first         where one finding's fix leads all others by 5 %: whether the first finding that
                  the product shows is about it, findings without a simulated fix apart

A finding on several ranks counts once, with its largest saving, and is fixed on all ranks. A
promise that says with what steps the loader must keep up is compared with a training whose does,
where that is closer; the last line but one counts those that only this makes right.
`input-bound` promises what the workers that it names bring, beyond what keeping the present ones
from epoch to epoch brings if its workers live on; where it names none, that batches are always
ready. `exposed-communication` has late ranks on time first where it says so. In a trace without
Python's frames, what-if answers "python" as time of unknown cause.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "__mp_main__"):
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

CLOSE, NEAR = 0.05, 0.10
NOTHING, FALSE = 0.005, 0.02
LEAD = 0.05
_SAME_FIX = {"rank-waiting": "late-rank"}
"""Findings whose saving is the fix of another's."""
_WORKERS_LABEL = "loader workers to begin with"
_LIVE_ON = "live on from epoch to epoch"
_CHEAPER = "batches cost so much less"
_NOT_RECORDED = "host, cause not recorded"


@dataclass
class Promise:
    """What was promised for one fix, and what it brings; shares of the steady step.

    Attributes:
        subject: The finding or question.
        promised: What it promised.
        true: What the fix brings, with a loader that keeps up where the promise assumes that.
        otherwise: What it brings if the loader stays as it is, where the promise assumes that it
            keeps up; None: it does not.
    """

    subject: str
    promised: float
    true: float
    otherwise: float | None = None

    @property
    def error(self) -> float:
        return self.promised - self.true

    @property
    def is_false(self) -> bool:
        return self.promised > FALSE and self.true < NOTHING

    @property
    def rests_on_batches(self) -> bool:
        """Whether it is right only if the loader keeps up."""
        is_near = self.otherwise is None or abs(self.promised - self.otherwise) <= CLOSE
        return not is_near and abs(self.error) <= CLOSE


@dataclass
class Job:
    """One training, diagnosed.

    Attributes:
        seed: Of the training.
        causes: What was planted.
        step_ns: The steady step.
        stated_step_ns: The step that the product states.
        start: The device at the window's beginning (`Recording.start`).
        has_record: Whether there is a step record.
        findings: What findings promise, and what their fixes bring.
        answers: The same of what-if.
        unknown: Findings whose saving has no simulated fix.
        stated: All findings, with a saving or without.
        best: The fix that brings the most.
        lead: By how much it leads; a share of the steady step.
        first: The finding that promises the most.
        truths: What each fix brings; shares of the steady step.
        seconds: What simulating and diagnosing took.
    """

    seed: int
    causes: tuple[str, ...]
    step_ns: float
    stated_step_ns: int
    start: str
    has_record: bool
    findings: list[Promise] = field(default_factory=list)
    answers: list[Promise] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    stated: tuple[str, ...] = ()
    best: str = ""
    lead: float = 0.0
    first: str = ""
    truths: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def decides(self) -> bool:
        """Whether one fix leads all others."""
        return self.lead >= LEAD

    @property
    def first_is_right(self) -> bool:
        return self.first == self.best


def judge(seed: int, *, with_answers: bool = True, verbose: bool = False) -> Job:
    """Simulate, diagnose and compare one training."""
    from tests.support.simulator import (
        fixes,
        on_time,
        questions,
        random_program,
        simulate,
        steady_step_ns,
        with_persistent_workers,
        with_workers,
        without_communication,
        without_input_wait,
        write_job,
        write_run,
        write_trace,
    )

    from stepscope.advice.diagnosis import diagnose
    from stepscope.advice.evidence.collectives import LATE_RANKS_FIRST
    from stepscope.advice.evidence.replayed import BATCHES_IN_TIME
    from stepscope.opening.reader import open_run

    began = time.perf_counter()
    program = random_program(seed)
    recording = program.recording
    as_recorded = not recording.has_record
    timeline = simulate(program)
    with tempfile.TemporaryDirectory() as folder:
        if recording.has_record:
            path = write_run(timeline, Path(folder) / "run")
        elif program.world_size > 1:
            path = write_job(timeline, Path(folder) / "job")
        else:
            path = write_trace(timeline, Path(folder) / "trace.pt.trace.json")
        diagnosis = diagnose(open_run(str(path)))
        asked: dict[str, float] = {}
        if with_answers and path.is_file():
            asked = _what_if(path)

    now_ns = steady_step_ns(program, is_recorded=as_recorded)

    def gain(before: Any, after: Any) -> float:
        if after == before:
            return 0.0
        least_ns = steady_step_ns(after, is_recorded=as_recorded)
        before_ns = now_ns if before is program else steady_step_ns(before, is_recorded=as_recorded)
        return float((before_ns - least_ns) / now_ns)

    whole = fixes(program)
    truths = {name: gain(*pair) for name, pair in whole.items()}
    job = Job(
        seed,
        program.causes,
        now_ns,
        max((rank.step_ns or 0 for rank in diagnosis.ranks), default=0),
        recording.start,
        recording.has_record,
        truths=truths,
        stated=tuple(sorted({_SAME_FIX.get(one.id, one.id) for one in diagnosis.findings})),
    )
    largest: dict[str, Any] = {}
    for one in diagnosis.findings:
        name = _SAME_FIX.get(one.id, one.id)
        if one.saving_ns is None or name not in truths:
            if one.saving_ns is not None:
                job.unknown.append(one.id)
            continue
        if one.is_of_whole_file:  # without steps, nothing is per step
            job.unknown.append(f"{one.id} of the whole file")
            continue
        if name not in largest or largest[name].saving_ns < one.saving_ns:
            largest[name] = one
    for name, one in largest.items():
        true, promised, otherwise = truths[name], one.saving_ns / now_ns, None
        if name == "late-rank":
            true = gain(program, on_time(program, _late_rank(one)))
        if name == "exposed-communication" and LATE_RANKS_FIRST not in one.assumption:
            true = gain(program, without_communication(program))
        if name == "input-bound":
            seen = {item.label: item.value for item in one.evidence}
            if _CHEAPER in one.assumption:
                pass  # it assumes that batches cost less, not that there are more workers
            elif _WORKERS_LABEL in seen:
                kept = with_persistent_workers(program) if _LIVE_ON in one.assumption else program
                true = gain(kept, with_workers(program, int(seen[_WORKERS_LABEL])))
        elif BATCHES_IN_TIME in one.assumption and name != "late-rank":
            in_time, otherwise = gain(*map(without_input_wait, whole[name])), true
            true = min(true, in_time, key=lambda one: abs(one - promised))
        job.findings.append(Promise(name, promised, true, otherwise))
    job.findings.sort(key=lambda one: -one.promised)
    shown = (_SAME_FIX.get(one.id, one.id) for one in diagnosis.findings if one.saving_ns)
    job.first = next((name for name in shown if name in largest), "")
    ordered = sorted(truths.items(), key=lambda one: -one[1])
    job.best, best = ordered[0]
    job.lead = best - (ordered[1][1] if len(ordered) > 1 else 0.0)
    for name, fixed in (questions(program) if asked else {}).items():
        promised = asked.get(_NOT_RECORDED if name == "python" else name, asked.get(name, 0.0))
        job.answers.append(Promise(name, promised, gain(program, fixed)))
    job.seconds = time.perf_counter() - began
    if verbose:
        _show(job, program, diagnosis)
    return job


def _late_rank(one: Any) -> int | None:
    """The rank that a finding calls late; None: it names none."""
    rank: int | None = one.rank if one.id == "late-rank" else one.waits_for
    return rank


def _what_if(path: Path) -> dict[str, float]:
    import stepscope
    from stepscope.analysis.graph.build import build_step_graph
    from stepscope.analysis.graph.kinds import NodeKind
    from stepscope.analysis.graph.replay import replay, unchanged
    from stepscope.analysis.what_if import what_if_table

    trace = stepscope.load(path)
    graph = build_step_graph(trace)
    half = replay(unchanged(graph).scale_work(graph.kind == NodeKind.COMPUTE, 0.5))
    asked = dict(what_if_table(trace).causes.select("without", "saving_share").iter_rows())
    return asked | {"half of the computation": half.saving_ns / max(1, graph.mean_step_ns)}


def _show(job: Job, program: Any, diagnosis: Any) -> None:
    print(f"seed {job.seed}: {' and '.join(job.causes) or 'healthy'}")
    for name, value in vars(program).items():
        if name != "body":
            print(f"  {name}: {value}")
    print("  body")
    for op in program.body:
        print(f"    {op}")
    print(f"steady step {job.step_ns / 1e6:.3f} ms, stated {job.stated_step_ns / 1e6:.3f} ms")
    print("true savings of fixes:")
    for fix, gained in sorted(job.truths.items(), key=lambda one: -one[1]):
        print(f"  {gained:7.1%}  {fix}")
    print(f"verdict: {diagnosis.verdict}")
    print("findings:")
    for one in diagnosis.findings:
        share = "      -" if one.saving_ns is None else f"{one.saving_ns / job.step_ns:7.1%}"
        print(f"  {share}  {one.id} (rank {one.rank}): {one.title}; assumes {one.assumption}")
        for item in one.evidence:
            value = f"{item.value / 1e6:.3f} ms" if item.unit == "ns" else str(item.value)
            print(f"             {item.label}: {value}")
    for title, promises in (("findings", job.findings), ("what-if", job.answers)):
        print(f"{title}: promised, true, error")
        for one in promises:
            mark = " false" if one.is_false else " <--" if abs(one.error) > CLOSE else ""
            print(f"  {one.promised:7.1%} {one.true:7.1%} {one.error:+7.1%}  {one.subject}{mark}")
    if job.decides:
        print(f"first: {job.first or 'nothing'}; best: {job.best}, by {job.lead:.1%}")


def judge_all(
    seeds: Sequence[int], processes: int = 1, *, with_answers: bool = True
) -> Iterator[Job]:
    """Judge trainings, several at once; in no particular order."""
    from tests.support.in_pieces import at_once

    yield from at_once(partial(judge, with_answers=with_answers), seeds, processes)


@dataclass(frozen=True)
class Rates:
    """How true some promises are."""

    jobs: int
    promises: int
    within_close: float
    within_near: float
    false: int
    decided: int
    first_right: float
    worst: float
    worst_seed: int

    @staticmethod
    def of(jobs: Sequence[Job], promises: Iterable[tuple[Job, Promise]]) -> Rates:
        pairs = list(promises)
        errors = [abs(one.error) for _, one in pairs]
        worst = max(range(len(errors)), key=errors.__getitem__, default=-1)
        decided = [job for job in jobs if job.decides]
        return Rates(
            jobs=len(jobs),
            promises=len(pairs),
            within_close=_share(error <= CLOSE for error in errors),
            within_near=_share(error <= NEAR for error in errors),
            false=sum(one.is_false for _, one in pairs),
            decided=len(decided),
            first_right=_share(job.first_is_right for job in decided),
            worst=pairs[worst][1].error if pairs else 0.0,
            worst_seed=pairs[worst][0].seed if pairs else -1,
        )


def _share(truths: Iterable[bool]) -> float:
    found = list(truths)
    return sum(found) / len(found) if found else 1.0


def findings_of(jobs: Iterable[Job]) -> list[tuple[Job, Promise]]:
    """All promises of findings."""
    return [(job, one) for job in jobs for one in job.findings]


def answers_of(jobs: Iterable[Job]) -> list[tuple[Job, Promise]]:
    """All answers of what-if."""
    return [(job, one) for job in jobs for one in job.answers]


_HEAD = (
    f"{'':24}{'jobs':>6}{'promises':>10}{'within 5%':>11}{'within 10%':>12}{'false':>7}"
    f"{'decided':>9}{'first':>8}{'worst':>9}{'seed':>7}"
)


def _line(name: str, rates: Rates) -> str:
    first = f"{rates.first_right:8.1%}" if rates.decided else f"{'-':>8}"
    return (
        f"{name:24}{rates.jobs:6}{rates.promises:10}{rates.within_close:11.1%}"
        f"{rates.within_near:12.1%}{rates.false:7}{rates.decided:9}{first}{rates.worst:+9.1%}"
        f"{rates.worst_seed:7}"
    )


def tables(jobs: Sequence[Job]) -> str:
    """The results as text: in all, by planted cause, by finding, and by what-if question."""
    lines = ["By planted cause (findings)", _HEAD]
    by_cause: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        for cause in job.causes or ("none",):
            by_cause[cause].append(job)
    for cause, those in by_cause.items():
        lines.append(_line(cause, Rates.of(those, findings_of(those))))
    lines += [_line("in all", Rates.of(jobs, findings_of(jobs))), "", "By finding", _HEAD]
    lines += _by_subject(findings_of(jobs))
    if any(job.answers for job in jobs):
        lines += ["", "By question of what-if", _HEAD, *_by_subject(answers_of(jobs))]
        lines.append(_line("in all", Rates.of([], answers_of(jobs))))
    unknown: dict[str, int] = defaultdict(int)
    for job in jobs:
        for name in job.unknown:
            unknown[name] += 1
    if unknown:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(unknown.items()))
        lines += ["", f"Savings without a simulated fix: {counts}"]
    wrong: dict[tuple[str, str], list[int]] = defaultdict(list)
    for job in jobs:
        if job.decides and not job.first_is_right:
            wrong[(job.best, job.first or "nothing")].append(job.seed)
    if wrong:
        lines += ["", "Best fix, and the first finding instead"]
        for (best, first), seeds in sorted(wrong.items(), key=lambda one: -len(one[1])):
            lines.append(f"{len(seeds):5}  {best} / {first}: {seeds[:6]}")
    return "\n".join(lines)


def _by_subject(promises: list[tuple[Job, Promise]]) -> list[str]:
    by_subject: dict[str, list[tuple[Job, Promise]]] = defaultdict(list)
    for job, one in promises:
        by_subject[one.subject].append((job, one))
    return [
        _line(name, Rates.of([], those))
        for name, those in sorted(by_subject.items(), key=lambda one: -len(one[1]))
    ]


def goals(jobs: Sequence[Job]) -> str:
    """The rates of findings in one line, against what they are to reach."""
    rates = Rates.of(jobs, findings_of(jobs))
    rest = sum(one.rests_on_batches for _, one in findings_of(jobs))
    return (
        f"{rest} promises are right only if the loader keeps up, as they say\n"
        f"{rates.jobs} trainings, {rates.promises} promises: "
        f"within 5% {rates.within_close:.1%} (goal 95%), "
        f"within 10% {rates.within_near:.1%} (goal 99%), "
        f"false {rates.false} (goal 0), "
        f"first finding right {rates.first_right:.1%} of {rates.decided} (goal 95%)"
    )


def read_jobs(path: Path) -> list[Job]:
    """The trainings in a file that `--out` wrote."""
    from tests.support.in_pieces import read_lines

    found = []
    for line in read_lines(path):
        job = Job(**line)
        job.causes, job.stated = tuple(job.causes), tuple(job.stated)
        job.findings = [Promise(**one) for one in job.findings]  # type: ignore[arg-type]
        job.answers = [Promise(**one) for one in job.answers]  # type: ignore[arg-type]
        found.append(job)
    return found


def main() -> None:
    from tests.support import in_pieces

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    in_pieces.add_options(parser, jobs=200)
    parser.add_argument("--without-what-if", action="store_true", help="findings alone")
    given = parser.parse_args()
    with in_pieces.own_cache():
        if given.show is not None:
            judge(given.show, verbose=True)
            return
        if given.together:
            jobs = [job for path in given.together for job in read_jobs(path)]
        else:
            wanted = range(given.seed, given.seed + given.jobs)
            jobs = [job for job in read_jobs(given.out) if job.seed in wanted] if given.out else []
            seeds = sorted(set(wanted) - {job.seed for job in jobs})
            judged = judge_all(seeds, given.processes, with_answers=not given.without_what_if)
            jobs += in_pieces.append(judged, given.out)
    jobs.sort(key=lambda job: job.seed)
    print(tables(jobs), "", goals(jobs), sep="\n")


if __name__ == "__main__":
    main()
