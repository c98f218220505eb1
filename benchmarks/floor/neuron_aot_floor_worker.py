"""The floor's worker; see neuron_aot_floor.py."""

from __future__ import annotations

import torch
from neuron_aot_floor import TOKEN
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase


class FloorWorker(WorkerBase):
    def init_device(self) -> None:
        self.device = torch.device("cpu")

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        pass

    def get_kv_cache_spec(self):
        block_size = self.cache_config.block_size
        return {"layer": FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBHNC"]

    def determine_available_memory(self) -> int:
        return 1 << 28

    def initialize_from_config(self, kv_cache_config) -> None:
        pass

    def compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def execute_model(self, scheduler_output) -> ModelRunnerOutput:
        requests = list(scheduler_output.num_scheduled_tokens)
        if not requests:
            return EMPTY_MODEL_RUNNER_OUTPUT
        return ModelRunnerOutput(
            req_ids=requests,
            req_id_to_index={request: index for index, request in enumerate(requests)},
            sampled_token_ids=[[TOKEN] for _ in requests],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
