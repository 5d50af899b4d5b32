"""Chooses the run directory: the same on all ranks of a job, and never one that is in use."""

from __future__ import annotations

import datetime
import logging
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.steps.clock import Clock
from stepscope.capture.together.ranks import RankIdentity
from stepscope.run.layout import RunLayout, run_name

log = logging.getLogger("stepscope")

_AGREE_SECONDS = 10.0
_KEY = "stepscope/run_name"
_MOST_TRIES = 10_000


def choose_home(config: CaptureConfig, identity: RankIdentity, clock: Clock) -> RunLayout:
    """The layout of this run, with this rank's folder newly created.

    The name is that of the option, or else one that all ranks of the job arrive at: through the
    process group's store if it is up, or from what the launcher gave to every rank. In the store,
    the rank that comes first says the name. It need not be rank 0, for that may be waiting for
    another one in the training, as the first stage of a pipeline does for gradients. If a run of
    that name exists (a restart), the rank adds a number. If ranks cannot tell each other, each adds
    a number if its own folder exists. The path is absolute, because the training may change its
    working directory.

    Raises:
        OSError: The folder cannot be created.
    """
    root = Path(config.output_dir).absolute()
    name = config.run_name or run_name(clock.epoch_ns, os.getpid())
    if identity.world_size > 1:
        agreed = _agree(identity, partial(_free, root, name))
        name = agreed or config.run_name or _launcher_name()
    return _claim(root, name, identity)


def _free(root: Path, name: str) -> str:
    """The name, with a number if a run already has it."""
    tries = (name, *(f"{name}-{number}" for number in range(2, _MOST_TRIES)))
    return next(candidate for candidate in tries if not _is_taken(RunLayout(root / candidate)))


def _is_taken(layout: RunLayout) -> bool:
    return layout.run_file.exists() or any(layout.root.glob("rank*"))


def _claim(root: Path, name: str, identity: RankIdentity) -> RunLayout:
    """Create this rank's folder, under the first name for which it does not exist.

    Two processes that both believe to be this rank get different folders this way.
    """
    for number in range(1, _MOST_TRIES):
        layout = RunLayout(root / (name if number == 1 else f"{name}-{number}"))
        try:
            layout.rank(identity.rank).root.mkdir(parents=True)
        except FileExistsError:
            if not layout.rank(identity.rank).root.is_dir():
                raise
            continue
        return layout
    raise FileExistsError(f"{root / name}: too many runs have this name")


def _agree(identity: RankIdentity, propose: Callable[[], str]) -> str | None:
    """What the first rank to come proposed, through the process group's store; None without one.

    Nobody waits for a rank that has not come yet, only for the name of one that has.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
        # A process may capture several times: the first runs of all ranks belong together, and so
        # on.
        key = f"{_KEY}/{store.add(f'{_KEY}/asked/{identity.rank}', 1)}"
        if store.add(f"{key}/came", 1) == 1:
            proposal = propose()
            store.set(key, proposal)
            return proposal
        store.wait([key], datetime.timedelta(seconds=_AGREE_SECONDS))
        return str(store.get(key).decode())
    except Exception as error:  # noqa: BLE001 - a store can fail in many ways; none may stop the job
        log.warning(
            "stepscope: rank %d could not agree on the run's name with the other ranks (%s): "
            "give run_name to be sure that all write into one directory",
            identity.rank,
            error,
        )
        return None


def _launcher_name() -> str:
    """A name made from what the launcher gave to every rank of the job."""
    variables = os.environ
    run_id = variables.get("TORCHELASTIC_RUN_ID", "")
    if run_id and run_id != "none":
        restarts = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = f"torchrun-{run_id}" + (f"-restart{restarts}" if restarts != "0" else "")
    elif variables.get("SLURM_JOB_ID"):
        step = variables.get("SLURM_STEP_ID", "")
        name = f"slurm-{variables['SLURM_JOB_ID']}" + (f".{step}" if step else "")
    else:
        # The launcher is the parent process of all ranks of a node.
        port = variables.get("MASTER_PORT", "")
        name = "-".join(word for word in ("job", port, str(os.getppid())) if word)
    return re.sub(r"[^A-Za-z0-9._+=@-]", "_", name)
