"""Stands in for the processes of an experiment: attempts that take no time."""

from __future__ import annotations

import math
import pickle

import numpy as np

from stepscope.opening.trials import HUNG
from stepscope.run.layout import RunLayout
from stepscope.trial.attempts import Attempt, Narration
from stepscope.trial.measure import steps_of
from tests.support.step_records import step_records, write_run

GC_MS, STEP_MS = 8.0, 20.0
CURVE = (3.0, 2.0, 1.5, 1.2)


class Machine:
    """Stands in for the processes: each variant has a step, with noise, and may fail.

    Args:
        steps_ms: Variant to its step; others take as long as the script as it is.
        noise: Relative spread of steps and of processes.
        failures: Variant, or name of an attempt, to how it fails.
        losses: Variant to its losses.
        wall_s: How long each attempt takes.
        seed: Seed of the noise.
        slow: Name of an attempt to how long it takes instead.
        allocator: Makes the GPU's allocator after the script, with the settings of a variant (None:
            as it is); None: there is no GPU.
        busy: Shares of the CPUs that others use, one for each attempt; afterwards the last.
    """

    def __init__(
        self,
        steps_ms,
        noise=0.003,
        failures=None,
        losses=None,
        wall_s=1.0,
        seed=3,
        slow=None,
        allocator=None,
        busy=(0.02,),
    ):
        self.steps_ms = steps_ms
        self.noise = noise
        self.failures = failures or {}
        self.losses = losses or {}
        self.wall_s = wall_s
        self.slow = slow or {}
        self.allocator = allocator
        self.busy = list(busy)
        self.names = []
        self.limits = []
        self.now = 0.0
        self.rng = np.random.default_rng(seed)

    def attempt(
        self,
        bench,
        variant,
        name,
        most_s,
        window_at=None,
        *,
        hung_s=math.inf,
        with_memory=False,
        alternation=None,
    ):
        self.names.append(name)
        most_s = min(most_s, hung_s)
        self.limits.append(most_s)
        wall_s = self.slow.get(name, self.wall_s)
        self.now += min(wall_s, most_s)
        mean = self.steps_ms.get(variant.name, STEP_MS)
        mean *= 1 + self.noise * self.rng.standard_normal()
        durations = mean * (1 + self.noise * self.rng.standard_normal(bench.steps))
        records = step_records(list(durations), gc_ms=GC_MS)
        run = write_run(bench.folder, {0: records}, name)
        gpu = self._gpu(variant)
        if with_memory:
            snapshots = RunLayout(run).rank(0).snapshots
            snapshots.mkdir()
            (snapshots / "host_rank0.pickle").write_bytes(pickle.dumps(gpu.snapshot()))
        problem = self.failures.get(variant.name, "") or self.failures.get(name, "")
        problem = HUNG if wall_s > most_s else problem
        return Attempt(
            problem,
            "because" if problem else "",
            None if problem else steps_of(records, bench.warm_up),
            run,
            self.losses.get(variant.name, CURVE),
            tuple(variant.plans),
            (),
            {"threads": 8, "cpus": 2, "uses_gpu": gpu is not None, "is_distributed": False},
            100,
            0 if gpu is None else max(held[1] for held in gpu.curve),
            0 if gpu is None else max(held[3] for held in gpu.curve),
            0 if gpu is None else gpu.retries,
            min(wall_s, most_s),
            self.busy.pop(0) if len(self.busy) > 1 else self.busy[0],
        )

    def _gpu(self, variant):
        if self.allocator is None:
            return None
        plan = variant.plans.get("allocator-settings")
        return self.allocator(None if plan is None else plan.value)


SILENT = Narration(lambda _line: None)
"""Tells nobody."""
