"""Devices: what runs artifacts. One module each; ``open_device`` imports on demand."""

from __future__ import annotations

from .base import ALONE, Device, Place

__all__ = ["Device", "Place", "core_of", "open_device"]


def open_device(target: str, place: Place = ALONE) -> Device:
    """The device for a bundle's target, as the rank that ``place`` says.

    Raises IncompatibleArtifactError for a target this host cannot be.
    """
    from ..contract.errors import IncompatibleArtifactError

    if target == "cpu":
        from .cpu import CpuDevice

        return CpuDevice(place)
    from .neuron import TARGETS, NeuronDevice

    if target in TARGETS:
        return NeuronDevice(target, place)
    raise IncompatibleArtifactError(
        f"this runtime has no device for target {target!r}",
        wanted=target,
        found=", ".join(("cpu", *TARGETS)),
        next_command="compile the recipe with --target cpu, or serve this bundle on a host of its target",
    )


def core_of(target: str, index: int) -> int:
    """The core of a host's ``index``-th rank, over all replicas. Raises ConfigError where a Neuron target has fewer."""
    if target == "cpu":
        return index
    from .neuron import visible_core

    return visible_core(index)
