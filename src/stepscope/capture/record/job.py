"""Describes the job for `run.json`: command, versions, machine. Secrets are left out."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Sequence
from typing import Any

from stepscope._version import __version__
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.steps.clock import Clock
from stepscope.capture.together.ranks import RankIdentity
from stepscope.run.manifest import JobRecord
from stepscope.system.usage import allowed_cpus

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
        working_directory=_working_directory(),
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


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd() says the same and also raises
    except OSError:
        return ""


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
