"""NVML's GPU Performance Monitoring on Hopper and later: means between two samples."""

from __future__ import annotations

import contextlib
from typing import Any

from stepscope.monitor.columns import Value
from stepscope.monitor.visible import Found

_MIB_IN_MB = 1.048576
_METRICS = {
    "gpm.graphics": ("GRAPHICS_UTIL", 1.0),
    "gpm.sm": ("SM_UTIL", 1.0),
    "gpm.occupancy": ("SM_OCCUPANCY", 1.0),
    "gpm.tensor": ("ANY_TENSOR_UTIL", 1.0),
    "gpm.dram": ("DRAM_BW_UTIL", 1.0),
    "gpm.fp64": ("FP64_UTIL", 1.0),
    "gpm.fp32": ("FP32_UTIL", 1.0),
    "gpm.fp16": ("FP16_UTIL", 1.0),
    "pcie.tx": ("PCIE_TX_PER_SEC", _MIB_IN_MB),
    "pcie.rx": ("PCIE_RX_PER_SEC", _MIB_IN_MB),
    "nvlink.tx": ("NVLINK_TOTAL_TX_PER_SEC", _MIB_IN_MB),
    "nvlink.rx": ("NVLINK_TOTAL_RX_PER_SEC", _MIB_IN_MB),
}
"""Column to NVML's metric and the factor to the column's unit."""
GPM_COLUMNS = tuple(_METRICS)


class Gpm:
    """The metrics of one GPU, or of one MIG device.

    Raises:
        NVMLError: The GPU or its driver has no such metrics.
    """

    def __init__(self, nvml: Any, gpu: Found) -> None:
        self._nvml = nvml
        self._gpu = gpu
        if not nvml.nvmlGpmQueryDeviceSupport(gpu.physical).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._instance = nvml.nvmlDeviceGetGpuInstanceId(gpu.handle) if gpu.is_mig else None
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._has_first = False
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_METRICS)
        for index, (name, _) in enumerate(_METRICS.values()):
            self._request.metrics[index].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")

    def read(self) -> dict[str, Value]:
        """Means since the last call by column; all None at the first call.

        A metric that the GPU does not have is left out.
        """
        before, now = self._samples
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._gpu.physical, now)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._gpu.physical, self._instance, now)
        self._samples = [now, before]
        if not self._has_first:
            self._has_first = True
            return dict.fromkeys(_METRICS)
        self._request.sample1, self._request.sample2 = before, now
        self._nvml.nvmlGpmMetricsGet(self._request)
        found: dict[str, Value] = {}
        for index, (column, (_, factor)) in enumerate(_METRICS.items()):
            metric = self._request.metrics[index]
            # NVML returns NaN if nothing was measured.
            if metric.nvmlReturn == 0 and metric.value == metric.value:
                found[column] = float(metric.value) * factor
        return found

    def close(self) -> None:
        """Release the samples."""
        for sample in self._samples:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []
