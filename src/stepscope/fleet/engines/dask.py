"""Runs a function on many items on a Dask cluster: of this machine, or one that is already there.

Dask's scheduler executes whatever anybody sends it who can reach it. So the cluster that is started
here listens on the loopback interface only, and a scheduler elsewhere is talked to over TLS only
(`tls://host:port`, with certificates from Dask's own configuration).
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stepscope.errors import UsageError
from stepscope.fleet.engines import worker
from stepscope.fleet.engines.outcome import (
    ATTEMPTS,
    Failure,
    Item,
    Outcome,
    ProgressReport,
    Value,
    outcome_of,
)

_ASK_S = 0.2


@dataclass(frozen=True)
class DaskEngine:
    """A Dask cluster.

    Attributes:
        scheduler: `tcp://127.0.0.1:port` or `tls://host:port`; None starts a cluster here.
        workers: Processes of a cluster that is started here; None leaves it to Dask.
    """

    scheduler: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        """Checks the scheduler's address."""
        if self.scheduler is not None:
            check_address(self.scheduler)

    def run(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        *,
        progress: ProgressReport | None = None,
    ) -> Outcome[Value]:
        """See `Engine.run`."""
        if not items:
            return Outcome({})
        with self._client() as client:
            return _Run(client, function, items).finished(progress)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        try:
            import distributed
        except ImportError:
            raise UsageError(
                "the engine 'dask' needs Dask: pip install 'stepscope[fleet]'"
            ) from None
        if self.scheduler is None:
            with (
                distributed.LocalCluster(
                    n_workers=self.workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address=None,
                ) as cluster,
                distributed.Client(cluster) as client,
            ):
                yield client
            return
        try:
            client = distributed.Client(self.scheduler, timeout="20s")
        except (OSError, TimeoutError) as error:
            raise UsageError(
                f"the Dask scheduler {self.scheduler} cannot be reached: {error}"
            ) from error
        with client:
            yield client


def check_address(address: str) -> None:
    """Checks that a scheduler is on this machine or behind TLS."""
    parts = urlsplit(address)
    if parts.scheme not in {"tcp", "tls"} or not parts.hostname:
        raise UsageError(
            f"the scheduler {address!r} is no address: write tls://host:port, or "
            "tcp://127.0.0.1:port for one on this machine"
        )
    if parts.scheme == "tls" or parts.hostname == "localhost":
        return
    try:
        is_here = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        is_here = False
    if not is_here:
        raise UsageError(
            f"the scheduler {address} is elsewhere and not encrypted: anyone who can reach it runs "
            "code on its workers and reads what they send. Use tls:// with certificates in Dask's "
            "configuration (distributed.comm.tls), or a tunnel that ends at tcp://127.0.0.1"
        )


class _Run:
    def __init__(
        self,
        client: Any,
        function: Callable[[Any], Any],
        items: Sequence[Any],
    ) -> None:
        self._items = len(items)
        # Impure: two equal items are two items.
        leaves = client.map(_tried, [function] * len(items), items, pure=False)
        self._waiting = {leaf: index for index, leaf in enumerate(leaves)}
        self._values: dict[int, Any] = {}
        self._failures: dict[int, Failure] = {}

    def finished(self, progress: ProgressReport | None) -> Outcome[Any]:
        import distributed

        while self._waiting:
            with contextlib.suppress(distributed.TimeoutError):
                distributed.wait(list(self._waiting), timeout=_ASK_S, return_when="FIRST_COMPLETED")
            for leaf in [leaf for leaf in self._waiting if leaf.done()]:
                self._settle(self._waiting.pop(leaf), leaf)
                if progress is not None:
                    progress(self._items - len(self._waiting), self._items)
        return outcome_of(self._values, self._failures)

    def _settle(self, index: int, leaf: Any) -> None:
        if leaf.status == "finished":
            self._values[index] = leaf.result()
            return
        error = leaf.exception()
        reason, attempts = str(error).split("\n")[0], ATTEMPTS
        if isinstance(error, _GaveUpError):
            reason, attempts = error.args
        self._failures[index] = Failure(index, reason, attempts)


class _GaveUpError(Exception):
    """An item that gave nothing: the reason, and how often it was tried."""


def _tried(function: Callable[[Any], Any], item: Any) -> Any:
    """What a function makes of an item, tried several times where that may help.

    Where a worker is killed, Dask itself tries again.
    """
    for attempt in range(1, ATTEMPTS + 1):
        kind, content = worker.answer(function, item)
        if kind == worker.DONE:
            return content
        if kind == worker.REFUSED or attempt == ATTEMPTS:
            raise _GaveUpError(content, attempt)
    raise AssertionError("unreachable")
