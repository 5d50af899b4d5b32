"""Choosing the run's directory: the same for all ranks of a job, and never one that is in use."""

from __future__ import annotations

import datetime
import logging
import os
import re
from pathlib import Path

from stepscope.capture.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.steps import Clock
from stepscope.run.layout import RunLayout

log = logging.getLogger("stepscope")

_AGREE_SECONDS = 30.0
_STORE_KEY = "stepscope/run_name"


def choose_home(config: CaptureConfig, identity: RankIdentity, clock: Clock) -> RunLayout:
    """The layout of this run. Nothing is written yet.

    The name is the option's, else one that all ranks of the job arrive at: over the process
    group's store where it is up, else from what the launcher gave to every rank. Where the rank
    has already left a manifest under that name (a restart), a number is added.
    """
    root = Path(config.output_dir)
    name = config.run_name or _shared_name(identity, clock)
    candidate = RunLayout(root / name)
    number = 2
    while candidate.rank(identity.rank).manifest.exists():
        candidate = RunLayout(root / f"{name}-{number}")
        number += 1
    return candidate


def _shared_name(identity: RankIdentity, clock: Clock) -> str:
    moment = datetime.datetime.fromtimestamp(clock.epoch_ns / 1e9, tz=datetime.timezone.utc)
    own = f"{moment:%Y%m%dT%H%M%SZ}-{os.getpid()}"
    if identity.world_size == 1:
        return own
    return _agree(identity, own) or _launcher_name()


def _agree(identity: RankIdentity, own: str) -> str | None:
    """Rank 0's proposal, passed over the process group's store; None if that cannot be."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
        # A job may record several runs one after the other: each has a name of its own, and a rank
        # that is early must not take the last one's.
        number = store.add(f"{_STORE_KEY}/asked/{identity.rank}", 1)
        key = f"{_STORE_KEY}/{number}"
        if identity.rank == 0:
            store.set(key, own)
            return own
        store.wait([key], datetime.timedelta(seconds=_AGREE_SECONDS))
        return str(store.get(key).decode())
    except Exception as error:  # noqa: BLE001 - a store can fail in many ways; none may stop the job
        log.warning(
            "stepscope: rank %d could not agree on the run's name with rank 0 (%s): "
            "give run_name to be sure that all ranks write into one directory",
            identity.rank,
            error,
        )
        return None


def _launcher_name() -> str:
    """A name made of what the launcher gave to every rank of the job."""
    variables = os.environ
    run_id = variables.get("TORCHELASTIC_RUN_ID", "")
    if run_id and run_id != "none":
        restarts = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = f"torchrun-{run_id}" + (f"-restart{restarts}" if restarts != "0" else "")
    elif variables.get("SLURM_JOB_ID"):
        step = variables.get("SLURM_STEP_ID", "")
        name = f"slurm-{variables['SLURM_JOB_ID']}" + (f".{step}" if step else "")
    else:
        # The launcher is the parent of all ranks of a node.
        port = variables.get("MASTER_PORT", "")
        name = "-".join(word for word in ("job", port, str(os.getppid())) if word)
    return re.sub(r"[^A-Za-z0-9._+=@-]", "_", name)
