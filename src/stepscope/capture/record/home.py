"""Where a run lies and what its job is: the directory, the clock, and `run.json`.

The run directory is the same on all ranks of a job, and never one that is in use. Secrets in the
command are left out of `run.json`.
"""

from __future__ import annotations

import datetime
import logging
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepscope._version import __version__
from stepscope.capture.messages import working_directory
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.run.files import numbered
from stepscope.run.layout import RunLayout, run_name
from stepscope.run.manifest import JobRecord
from stepscope.system import allowed_cpus

log = logging.getLogger("stepscope")

_AGREE_SECONDS = 10.0
_KEY = "stepscope/run_name"


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
    layouts = map(RunLayout, numbered(root / name))
    free = (one for one in layouts if not one.run_file.exists() and not any(one.root.glob("rank*")))
    return next(free).root.name


def _claim(root: Path, name: str, identity: RankIdentity) -> RunLayout:
    """Create this rank's folder, under the first name for which it does not exist.

    Two processes that both believe to be this rank get different folders this way.
    """
    for layout in map(RunLayout, numbered(root / name)):
        folder = layout.rank(identity.rank).root
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            if not folder.is_dir():
                raise
    return layout


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


@dataclass(frozen=True)
class Clock:
    """One clock per rank: epoch time, read once and advanced by the monotonic clock."""

    epoch_ns: int
    monotonic_ns: int

    @classmethod
    def start(cls) -> Clock:
        """Read both clocks now."""
        return cls(time.time_ns(), time.perf_counter_ns())

    def epoch(self, monotonic_ns: int) -> int:
        """Epoch nanoseconds of a time of the monotonic clock."""
        return self.epoch_ns + monotonic_ns - self.monotonic_ns


_SECRET_NAME = re.compile(
    r"(api|access|auth|private|secret|hf|wandb)[-_]?(key|token)|token$|passw|secret|credential",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"^(hf_|sk-|ghp_|github_pat_|xox[bap]-|AKIA)[A-Za-z0-9_-]{8,}")
_LOGIN_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_HIDDEN = "(hidden)"


def describe_job(
    config: CaptureConfig, identity: RankIdentity, clock: Clock, name: str
) -> JobRecord:
    """Describe the job for `run.json`."""
    return JobRecord(
        name=name,
        created_ns=clock.epoch_ns,
        command=hide_secrets([sys.executable, *sys.argv]),
        working_directory=str(working_directory() or ""),
        host=socket.gethostname(),
        versions=_versions(),
        platform=platform.platform(),
        cpu_count=allowed_cpus(),
        devices=_devices(),
        world_size=identity.world_size,
        options=config.options(),
    )


def hide_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """Replace the values of arguments that look like tokens, keys, passwords or logins."""
    result: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_option = argument.startswith("-")
        if hide_next and not is_option:
            result.append(_HIDDEN)
        elif equals and (_SECRET_NAME.search(name) or _SECRET_VALUE.match(value)):
            result.append(f"{name}={_HIDDEN}")
        elif _SECRET_VALUE.match(argument):
            result.append(_HIDDEN)
        else:
            result.append(_LOGIN_IN_ADDRESS.sub(_HIDDEN, argument))
        hide_next = is_option and not equals and bool(_SECRET_NAME.search(name))
    return tuple(result)


def _versions() -> dict[str, str]:
    import torch

    versions: dict[str, Any] = {
        "stepscope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
    }
    for package in ("transformers", "accelerate", "lightning", "deepspeed"):
        module = sys.modules.get(package)
        if module is not None:
            versions[package] = getattr(module, "__version__", "unknown")
    return {name: str(version) for name, version in versions.items() if version}


def _devices() -> tuple[str, ...]:
    import torch

    # Asking for names would initialise CUDA in a process that may not want it yet.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return tuple(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )
    return ()
