"""Model FLOPs utilisation: what of a device's peak the model's own arithmetic makes use of.

Definitions
    MFU: FLOPs that the model needs for a step / (step time · peak of all devices). Recomputation is
    not needed, so it does not count. HFU, hardware FLOPs utilisation, counts it.
    PaLM (Chowdhery et al. 2022, appendix B): 6N + 12·L·H·Q·T FLOPs per token, forward and
    backward, of a decoder with N parameters, L layers, H heads of width Q, and T tokens in a
    sequence; causal masks are not taken advantage of.
    Megatron-LM (Narayanan et al. 2021, section 5.1, without its recomputation):
    72·B·s·L·h²·(1 + s/(6h) + V/(12·L·h)) FLOPs per step, of B sequences of s tokens, with L layers
    of hidden size h and a vocabulary of V.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.errors import UsageError

PALM = "PaLM: 6N + 12·L·H·Q·T per token"
MEGATRON = "Megatron-LM: 72·B·s·L·h²·(1 + s/6h + V/12Lh) per step"
COUNTED = "counted from the operators' shapes, without recomputation"


@dataclass(frozen=True)
class Utilisation:
    """A utilisation and what it was computed from.

    Attributes:
        share: From 0 to 1, or above where the formula or the peak does not fit.
        formula: Which FLOPs were counted, and how.
        flops: FLOPs of a step, on all devices.
        peak_flops_per_s: Peak of all devices together.
    """

    share: float
    formula: str
    flops: int
    step_ns: int
    peak_flops_per_s: float


def utilisation(
    flops: int, step_ns: int, peak_flops_per_s: float, *, formula: str, devices: int = 1
) -> Utilisation:
    """FLOPs of a step against what the devices could have done in its time.

    Args:
        peak_flops_per_s: Peak of one device.
        formula: What the FLOPs were counted by, for the reader.

    Raises:
        UsageError: The time, the peak or the number of devices is not positive.
    """
    if step_ns <= 0 or peak_flops_per_s <= 0 or devices < 1:
        raise UsageError(
            f"utilisation needs a positive time, peak and number of devices, not {step_ns} ns,"
            f" {peak_flops_per_s:g} FLOP/s and {devices}"
        )
    whole = peak_flops_per_s * devices
    return Utilisation(flops / (step_ns / 1e9 * whole), formula, flops, step_ns, whole)


def palm_flops_per_token(
    parameters: int, layers: int, heads: int, head_width: int, sequence: int
) -> int:
    """FLOPs of forward and backward per token: 6N + 12·L·H·Q·T (PaLM, appendix B)."""
    return 6 * parameters + 12 * layers * heads * head_width * sequence


def megatron_flops_per_step(
    batch: int, sequence: int, layers: int, hidden: int, vocabulary: int
) -> int:
    """FLOPs of forward and backward of a step (Megatron-LM, without recomputation)."""
    # 72·B·s·L·h²·(1 + s/6h + V/12Lh), multiplied out so that it stays in whole numbers.
    tokens = batch * sequence
    return (
        72 * tokens * layers * hidden * hidden
        + 12 * tokens * layers * hidden * sequence
        + 6 * tokens * hidden * vocabulary
    )
