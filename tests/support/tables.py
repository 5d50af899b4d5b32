"""Tables written by hand: a few events with everything else filled in."""

import json

import polars as pl

from stepscope.trace.classify import classify_names
from stepscope.trace.schema import TABLES, Category
from stepscope.trace.tables import Tables


class TableBuilder:
    """Collects events, instants and flows; `build` gives the tables that a reader would."""

    def __init__(self):
        self._events = []
        self._args = []
        self._instants = []
        self._flows = []
        self._names = {}
        self._lanes = {}
        self._metadata = []
        self._problems = []

    def _name(self, name, category, raw_category):
        key = (name, raw_category or category, category)
        return self._names.setdefault(key, len(self._names))

    def _lane(self, pid, tid, device=None, stream=None):
        return self._lanes.setdefault((str(pid), str(tid), device, stream), len(self._lanes))

    def host(
        self,
        name,
        start,
        dur,
        *,
        category="cpu_op",
        thread=1,
        correlation=None,
        external_id=None,
        args=None,
        raw_category=None,
    ):
        """Adds an event of a CPU thread; returns its number."""
        lane = self._lane(100, thread)
        return self._add(
            name,
            category,
            raw_category,
            lane,
            start,
            dur,
            correlation,
            external_id,
            None,
            None,
            None,
            args,
        )

    def gpu(
        self,
        name,
        start,
        dur,
        *,
        category="kernel",
        device=0,
        stream=7,
        correlation=None,
        external_id=None,
        size=None,
        args=None,
    ):
        """Adds an event of a GPU stream; returns its number."""
        lane = self._lane(device, stream, device, stream)
        return self._add(
            name,
            category,
            None,
            lane,
            start,
            dur,
            correlation,
            external_id,
            device,
            stream,
            size,
            args,
        )

    def _add(
        self,
        name,
        category,
        raw_category,
        lane,
        start,
        dur,
        correlation,
        external_id,
        device,
        stream,
        size,
        args,
    ):
        category = Category(category).value
        number = len(self._events)
        name_id = self._name(name, category, raw_category)
        self._events.append(
            (
                number,
                name_id,
                category,
                lane,
                start,
                dur,
                correlation,
                external_id,
                device,
                stream,
                size,
            )
        )
        self._args.append((number, None if args is None else json.dumps(args)))
        return number

    def step(self, number, start, dur, thread=1):
        """Adds ProfilerStep#N."""
        return self.host(
            f"ProfilerStep#{number}", start, dur, category="user_annotation", thread=thread
        )

    def launch(
        self,
        start,
        dur,
        gpu_start,
        gpu_dur,
        *,
        thread=1,
        device=0,
        stream=7,
        name="volta_sgemm_128x32_nn",
        category="kernel",
        call="cudaLaunchKernel",
        args=None,
    ):
        """Adds a call and the GPU work that it launches; returns the numbers of both."""
        correlation = len(self._events) + 1
        first = self.host(
            call, start, dur, category="runtime", thread=thread, correlation=correlation
        )
        second = self.gpu(
            name,
            gpu_start,
            gpu_dur,
            category=category,
            device=device,
            stream=stream,
            correlation=correlation,
            args=args,
        )
        return first, second

    def instant(self, name, time, args, thread=1):
        """Adds a moment without duration."""
        name_id = self._name(name, "other", "cpu_instant_event")
        self._instants.append((name_id, self._lane(100, thread), time, json.dumps(args)))

    def flow(self, number, name, time, phase, thread=1):
        """Adds one end of an arrow."""
        name_id = self._name(name, "other", name)
        self._flows.append((number, name_id, self._lane(100, thread), time, phase, None))

    def metadata(self, key, value):
        """Adds a top-level key of the file."""
        self._metadata.append((key, json.dumps(value)))

    def problem(self, word):
        """Notes a problem that the reader had."""
        self._problems.append((word, 1, None, word))

    def build(self):
        rows = {
            "events": self._events,
            "args": self._args,
            "names": [(i, n, raw, cat, None, None) for (n, raw, cat), i in self._names.items()],
            "lanes": [
                (i, pid, tid, device is not None, device, stream, None, None)
                for (pid, tid, device, stream), i in self._lanes.items()
            ],
            "instants": self._instants,
            "flows": self._flows,
            "metadata": self._metadata,
            "problems": self._problems,
        }
        frames = {
            table: pl.DataFrame(rows[table], schema=TABLES[table], orient="row") for table in rows
        }
        return Tables.shaped({**frames, "names": classify_names(frames["names"])})
