"""The floor's platform; see neuron_aot_floor.py."""

from __future__ import annotations

from vllm.platforms.interface import Platform, PlatformEnum


class FloorPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "floor"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    simple_compile_backend = "eager"

    @classmethod
    def pre_register_and_update(cls, parser=None) -> None:
        if parser is None:
            from neuron_aot_runtime.vllm.platform import _freeze_imports

            _freeze_imports()

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config) -> None:
        from vllm.config import CompilationMode
        from vllm.config.vllm import OptimizationLevel

        vllm_config.optimization_level = OptimizationLevel.O0
        vllm_config.compilation_config.mode = CompilationMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        vllm_config.parallel_config.worker_cls = "neuron_aot_floor_worker.FloorWorker"
        vllm_config.scheduler_config.async_scheduling = False

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def set_device(cls, device) -> None:
        pass

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 0

    @classmethod
    def discover_numa_topology(cls) -> list[list[int]]:
        return []

    @classmethod
    def import_ir_kernels(cls) -> None:
        pass

    @classmethod
    def import_kernels(cls) -> None:
        pass
