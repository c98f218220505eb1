"""Statuses of the Neuron runtime: what they mean, and what to do. Source: ``nrt/nrt_status.h``."""

from __future__ import annotations

import re

_STATUS = re.compile(r"\bNRT_[A-Z_]+\b")
_HARDWARE = "restart the server on other cores or another host; `neuron-top` and `dmesg` show the device's state"
_REBUILD = "build the bundle again with `neuron-aot compile`; report it if it persists"

#: status -> (meaning, what to do)
STATUSES = {
    "NRT_INVALID": ("the runtime refuses the artifact or an argument", _REBUILD),
    "NRT_INVALID_HANDLE": ("the runtime does not know the program", _REBUILD),
    "NRT_RESOURCE": (
        "device memory is exhausted",
        "compile with fewer KV blocks (num_gpu_blocks_override) or fewer buckets, or stop what else uses these cores",
    ),
    "NRT_TIMEOUT": ("the device did not answer in time", _HARDWARE),
    "NRT_HW_ERROR": ("the device failed", _HARDWARE),
    "NRT_QUEUE_FULL": ("the device's queue is full", "send fewer requests at once"),
    "NRT_LOAD_NOT_ENOUGH_NC": (
        "there are not enough free cores",
        "free the cores, or set NEURON_RT_VISIBLE_CORES to as many as tensor_parallel_size",
    ),
    "NRT_UNSUPPORTED_NEFF_VERSION": (
        "the artifact is of a version that this runtime does not know",
        "install the Neuron runtime of the compiler's SDK release, or compile with this host's release",
    ),
    "NRT_FAIL_HOST_MEM_ALLOC": ("host memory is exhausted", "give the host more memory, or stop what else uses it"),
    "NRT_UNINITIALIZED": ("the runtime could not be started", "check that the Neuron driver is loaded: `neuron-ls`"),
    "NRT_CLOSED": ("the runtime was shut down", "start the server again"),
    "NRT_EXEC_BAD_INPUT": ("the program was given other tensors than it takes", _REBUILD),
    "NRT_EXEC_COMPLETED_WITH_NUM_ERR": ("the program produced numbers that are not finite", "check the checkpoint"),
    "NRT_EXEC_COMPLETED_WITH_ERR": ("the program ended with errors", _HARDWARE),
    "NRT_EXEC_NC_BUSY": ("the core is in use by another process", "stop it, or set NEURON_RT_VISIBLE_CORES"),
    "NRT_EXEC_OOB": ("the program read or wrote outside a tensor", _REBUILD),
    "NRT_EXEC_HW_ERR_COLLECTIVES": ("a collective failed: a rank may have died", "look at the other ranks' logs"),
    "NRT_EXEC_HW_ERR_HBM_UE": ("the device's memory has an uncorrectable error", _HARDWARE),
    "NRT_EXEC_HW_ERR_NC_UE": ("the core has an uncorrectable error", _HARDWARE),
    "NRT_EXEC_HW_ERR_DMA_ABORT": ("a transfer was aborted", _HARDWARE),
}


def explain(error: Exception) -> tuple[str, str]:
    """(meaning, what to do) of what nrtpy raised."""
    for status in _STATUS.findall(str(error)):
        if status in STATUSES:
            meaning, change = STATUSES[status]
            return f"{meaning} ({status})", change
    return "the Neuron runtime failed", "`neuron-ls` shows whether the devices are there; report it if they are"
