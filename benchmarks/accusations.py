"""How often reports accuse the right rank, and how often a healthy one: simulated jobs, diagnosed.

    python benchmarks/accusations.py --jobs 1000 --processes 2    # one table
    python benchmarks/accusations.py --show 17 --plant input      # one job in full
    python benchmarks/accusations.py --out a.jsonl                # goes on if interrupted
    python benchmarks/accusations.py --together a.jsonl b.jsonl   # one table of them all

Each seed is a job of 2 to 64 ranks (`tests.support.simulator.many_ranks`), healthy or with one
thing wrong, or one of 4 to 24 ranks in pipelines (`simulator.pipelines`), in which a stage is slow,
or one rank of it; the machines' clocks are apart. Its run directory (step records and a window of
each rank) or its folder of traces is diagnosed and compared rank by rank, as `report` and
`stragglers` do it, and the answers are compared with what was planted.

    report accuses     ranks that `late-rank` names, or a stage that `uneven-stages` does
    healthy accused    a healthy job, a late start or an imbalance in which any rank is named
    right rank         exactly the planted ranks are named; of an imbalance none, and it is found
    and cause          and the report says why: an input that is late, longer computation, ...
    same               `stragglers` names the same ranks as the report, and its gain differs by less
                       than a hundredth of the step
    gain               what the accusation saves is within 10 % of what the simulated step takes
                       less without what is wrong, or within 1 % of the step: over the recorded
                       steps where the windows are the evidence, else over the whole job
    symptom leads  the first finding is `exposed-communication`, and it promises more than
                   transfers that take no time would save: then it has waits for others in it

A planted job whose step is less than a twentieth shorter without it need not be accused.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.simulator.many_ranks import JobTimes, ManyRanks
    from tests.support.simulator.pipelines import PipelineJob, PipelineTimes

    from stepscope.advice.diagnosis import Diagnosis

ROOT = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "__mp_main__"):
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

CLOSE, CLOSE_OF_STEP = 0.10, 0.01
LEAST = 0.05
_UNITS = {"s": 1e9, "ms": 1e6, "µs": 1e3}
OF_PIPELINES = ("slow stage", "slow rank")
NOBODY = ("healthy", "imbalance", "late start")
"""What has no culprit that costs each step something."""
Work = tuple[int, str, int, bool]
"""Seed, plant, ranks, and whether there are just as many."""
_CAUSES = {
    "input": r"input",
    "compute": r"compute|forward|backward|kernels",
    "collector": r"garbage|collector|gc",
    "nth": r"every {every}\w\w step|every second step",
    "link": r"slow link|transfers are slow",
    "slow stage": r"stage",
    "slow rank": r"compute",
}


@dataclass
class Outcome:
    """One job, diagnosed. Times are shares of the steady step."""

    seed: int
    plant: str
    ranks: int
    on_gpu: bool
    has_record: bool
    planted: tuple[int, ...]
    stragglers: tuple[int, ...]
    has_cause: bool
    found: tuple[str, ...]
    true: float
    promised: float | None
    blamed: tuple[int, ...]
    blamed_for: str
    blamed_gain: float | None
    leads: str
    led_by: float | None  # what the first finding promises
    transfers: float | None  # what transfers that take no time save; unknown of pipelines
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether exactly the planted ranks are named."""
        if self.plant == "imbalance":
            return not self.stragglers and "imbalance" in self.found
        if self.plant in NOBODY:
            return not self.stragglers
        if not self.stragglers and self.true < LEAST:
            return True
        return set(self.stragglers) == set(self.planted)

    @property
    def is_explained(self) -> bool:
        """Whether that is so, and the report says why if it names anybody."""
        has_no_cause = self.plant in NOBODY or not self.stragglers
        return self.is_right and (self.has_cause or has_no_cause)

    @property
    def is_same(self) -> bool:
        """Whether the report and `stragglers` agree."""
        if set(self.stragglers) != set(self.blamed):
            return False
        return abs((self.promised or 0) - (self.blamed_gain or 0)) <= CLOSE_OF_STEP

    @property
    def is_close(self) -> bool | None:
        """Whether the gain is right; None where nothing was promised, or is not to be."""
        if self.promised is None or not self.is_right or self.plant in NOBODY:
            return None
        return abs(self.promised - self.true) <= max(CLOSE * self.true, CLOSE_OF_STEP)

    @property
    def symptom_leads(self) -> bool:
        """Whether the first finding is `exposed-communication`, with more than transfers take."""
        if self.leads != "exposed-communication" or not self.led_by:
            return False
        most = self.transfers or 0.0
        return self.led_by - most > max(CLOSE * most, CLOSE_OF_STEP)

    @property
    def is_wrong(self) -> bool:
        """Whether anything is."""
        return (
            not (self.is_explained and self.is_same) or self.is_close is False or self.symptom_leads
        )


def judge(
    seed: int, plant: str, ranks: int = 64, *, fixed: bool = False, verbose: bool = False
) -> Outcome:
    """Simulate, diagnose and compare one job, of at most as many ranks or of just as many."""
    from tests.support.simulator.many_ranks import JobTimes
    from tests.support.simulator.pipelines import PipelineJob

    from stepscope.fleet.job import read_job
    from stepscope.fleet.stragglers import stragglers_of_job
    from stepscope.skew.rank_skew import ARRIVALS, RECORDED_WAITS
    from stepscope.trace.paths import resolve_path

    began = time.process_time()
    times = simulated(seed, plant, ranks, fixed=fixed)
    job = times.job
    healed = simulate(job.healed)
    true = 1 - healed.step_ns / times.step_ns
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job"
        diagnosis = diagnosed(times, path)
        between = stragglers_of_job(read_job(resolve_path(str(path)).last_traces()))
    late = [one for one in diagnosis.findings if one.id == "late-rank"]
    late += [one for one in diagnosis.findings if one.id == "uneven-stages" and one.saving_ns]
    stragglers: tuple[int, ...] = ()
    promised = None
    for one in late:
        seen = {item.label: item.value for item in one.evidence}
        named = seen.get("who comes late") or seen["computes longest"]
        stragglers = ranks_in(str(named))
        promised = (one.saving_ns or 0) / times.step_ns
        basis = str(seen.get("taken from")).removeprefix("time in ")
        is_windows = basis in (ARRIVALS, RECORDED_WAITS)
        if is_windows and isinstance(times, JobTimes) and isinstance(healed, JobTimes):
            true = (_recorded_ns(times) - _recorded_ns(healed)) / times.step_ns
    words = " ".join(
        " ".join((one.id, one.title, *(str(item.value) for item in one.evidence),
                  *(item.label for item in one.evidence if item.label.startswith("'"))))
        for one in diagnosis.findings
        if one in late
        or one.id == "imbalance"
        or (one.rank in stragglers and one.severity.is_weighty)
    )  # fmt: skip
    pattern = _CAUSES.get(plant, "").format(every=job.plant.every)
    notable = between.causes.filter("is_notable")
    worst = notable.row(0, named=True) if len(notable) else None
    says = re.match(r"ranks? ([^m]*) makes? the others wait", between.verdict)
    blamed = ranks_in(says.group(1)) if says and "began late" not in between.verdict else ()
    saved = re.search(r"would take ([0-9.,]+) (\S+) less", between.verdict)
    outcome = Outcome(
        seed,
        plant,
        job.ranks,
        isinstance(job, PipelineJob) or job.on_gpu,
        not isinstance(job, PipelineJob) and job.has_record,
        job.plant.ranks,
        stragglers,
        bool(re.search(pattern, words, re.IGNORECASE)),
        tuple(dict.fromkeys(one.id for one in diagnosis.findings)),
        true,
        promised,
        blamed,
        "" if worst is None else worst["cause"],
        _UNITS[saved.group(2)] * float(saved.group(1)) / times.step_ns
        if saved and blamed
        else None,
        diagnosis.findings[0].id if diagnosis.findings else "",
        (diagnosis.findings[0].saving_ns or 0) / times.step_ns if diagnosis.findings else None,
        _of_transfers(times),
        time.process_time() - began,
    )
    if verbose:
        print(job)
        print(f"true gain {true:.1%}; {diagnosis.verdict}")
        for one in diagnosis.findings[:12]:
            print(
                f"  {(one.saving_ns or 0) / times.step_ns:6.1%} {one.id} ({one.rank}): {one.title}"
            )
        print(f"stragglers: {between.verdict}", *between.notes, sep="; ")
        print(outcome)
    return outcome


def simulated(
    seed: int, plant: str, ranks: int = 64, *, fixed: bool = False
) -> JobTimes | PipelineTimes:
    """What the ranks of a random job do; see `judge`."""
    from tests.support.simulator.many_ranks import random_job
    from tests.support.simulator.pipelines import random_pipeline

    if plant in OF_PIPELINES:
        return simulate(random_pipeline(seed, plant))
    return simulate(random_job(seed, plant, ranks, fixed=fixed))


def simulate(job: ManyRanks | PipelineJob) -> JobTimes | PipelineTimes:
    """What the ranks of a job do."""
    from tests.support.simulator.many_ranks import simulate_job
    from tests.support.simulator.pipelines import PipelineJob, simulate_pipeline

    return simulate_pipeline(job) if isinstance(job, PipelineJob) else simulate_job(job)


def diagnosed(times: JobTimes | PipelineTimes, folder: Path) -> Diagnosis:
    """The diagnosis of a simulated job, written to a folder."""
    from tests.support.simulator.many_ranks import JobTimes
    from tests.support.simulator.many_ranks_files import write_job_run
    from tests.support.simulator.pipelines import write_pipeline

    from stepscope.advice.diagnosis import diagnose
    from stepscope.opening.reader import open_run

    write = write_job_run if isinstance(times, JobTimes) else write_pipeline
    return diagnose(open_run(str(write(times, folder))))


def _recorded_ns(times: JobTimes) -> float:
    """The mean of the recorded steps."""
    first, ends = times.job.first, times.end.max(axis=1)
    recorded_ns = int(ends[first + times.job.active - 1] - ends[first - 1])
    return float(recorded_ns / times.job.active)


def _of_transfers(times: JobTimes | PipelineTimes) -> float | None:
    """What transfers that take no time save: in the recorded steps or in all, which is more."""
    from tests.support.simulator.many_ranks import JobTimes

    if not isinstance(times, JobTimes):
        return None
    free = simulate(replace(times.job, has_free_transfers=True))
    assert isinstance(free, JobTimes)
    recorded = 1 - _recorded_ns(free) / _recorded_ns(times)
    return float(max(recorded, 1 - free.step_ns / times.step_ns))


def ranks_in(words: str) -> tuple[int, ...]:
    """The ranks in words such as "ranks 1, 4 to 7"."""
    found = re.findall(r"(\d+)(?: to (\d+))?", words)
    return tuple(rank for a, b in found for rank in range(int(a), int(b or a) + 1))


def judge_all(works: Sequence[Work], processes: int = 1) -> Iterator[Outcome]:
    """Judge jobs, several at once; in no particular order."""
    from tests.support.in_pieces import at_once

    yield from at_once(_judge, works, processes)


def _judge(work: Work) -> Outcome:
    seed, plant, ranks, fixed = work
    return judge(seed, plant, ranks, fixed=fixed)


def read_outcomes(path: Path) -> list[Outcome]:
    """The jobs in a file that `--out` wrote."""
    from tests.support.in_pieces import read_lines

    found = []
    for line in read_lines(path):
        for name, value in line.items():
            line[name] = tuple(value) if isinstance(value, list) else value
        found.append(Outcome(**line))
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """The rates, a row per plant."""
    by_plant: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        by_plant[one.plant].append(one)
    lines = [
        (
            f"{'plant':12}{'jobs':>6}{'accused':>9}{'right rank':>12}{'and cause':>11}{'gain':>8}"
            f"{'stragglers':>12}{'same':>7}{'symptom leads':>15}"
        )
    ]
    for plant, these in by_plant.items():
        close = [one.is_close for one in these if one.is_close is not None]
        named = [
            one for one in these
            if (not one.blamed if plant in NOBODY else set(one.blamed) == set(one.planted))
        ]  # fmt: skip
        leads = [one for one in these if one.symptom_leads]
        lines.append(
            f"{plant:12}{len(these):6}{_share([bool(o.stragglers) for o in these]):>9}"
            f"{_share([o.is_right for o in these]):>12}"
            f"{_share([o.is_explained for o in these]):>11}"
            f"{_share(close):>8}{len(named) / len(these):>12.0%}"
            f"{_share([o.is_same for o in these]):>7}{len(leads) / len(these):>15.0%}"
        )
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """The rates over all kinds."""
    nobody = [one for one in outcomes if one.plant in ("healthy", "late start")]
    planted = [one for one in outcomes if one.plant not in ("healthy", "late start")]
    right = [one.is_explained for one in planted]
    close = [one.is_close for one in planted if one.is_close is not None]
    return (
        f"healthy accused {_share([bool(o.stragglers) for o in nobody])} (stragglers "
        f"{_share([bool(o.blamed) for o in nobody])}); right rank or group and cause "
        f"{_share(right)}; gain within 10% {_share(close)}; report and stragglers agree "
        f"{_share([one.is_same for one in outcomes])}; {len(outcomes)} jobs, "
        f"{sum(one.seconds for one in outcomes) / max(1, len(outcomes)):.1f} s of CPU each"
    )


def _share(those: Sequence[bool | None]) -> str:
    return f"{sum(map(bool, those)) / len(those):.0%}" if those else "-"


def main() -> None:
    """Command line."""
    from tests.support import in_pieces
    from tests.support.simulator.many_ranks import PLANTS as OF_ALL

    plants = (*OF_ALL, *OF_PIPELINES)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    in_pieces.add_options(parser, jobs=1000)
    parser.add_argument("--most-ranks", type=int, default=64, help="of a job; smaller is faster")
    parser.add_argument("--ranks", type=int, help="of each job")
    parser.add_argument("--plant", choices=plants, help="this one only")
    parser.add_argument("--wrong", action="store_true", help="list the jobs that are wrong")
    asked = parser.parse_args()
    size, is_fixed = asked.ranks or asked.most_ranks, bool(asked.ranks)

    def plant_of(seed: int) -> str:
        return str(asked.plant or plants[seed % len(plants)])

    with in_pieces.own_cache():
        if asked.show is not None:
            judge(asked.show, plant_of(asked.show), size, fixed=is_fixed, verbose=True)
            return
        if asked.together:
            outcomes = [one for path in asked.together for one in read_outcomes(path)]
        else:
            wanted = {seed: plant_of(seed) for seed in range(asked.seed, asked.seed + asked.jobs)}
            known = read_outcomes(asked.out) if asked.out else []
            outcomes = [one for one in known if wanted.get(one.seed) == one.plant]
            missing = sorted(set(wanted) - {one.seed for one in outcomes})
            works = [(seed, wanted[seed], size, is_fixed) for seed in missing]
            outcomes += in_pieces.append(judge_all(works, asked.processes), asked.out)
    outcomes.sort(key=lambda one: one.seed)
    if asked.wrong:
        print(*(one for one in outcomes if one.is_wrong), sep="\n")
    print(table(outcomes))
    print(summary(outcomes))


if __name__ == "__main__":
    main()
