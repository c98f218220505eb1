"""Builds a model's layout: params with their weight map, KV states; no tensor is made."""

from __future__ import annotations

from neuron_aot_runtime.contract.manifest import KVCacheSpec, ModelSpec, TensorSpec, WeightEntry, WeightSource

from ..program import ModelLayout, ModelPlan


class LayoutBuilder:
    """Collects params in the order of the calling convention. ``ours`` names are the program's, ``theirs`` the
    checkpoint's."""

    def __init__(self, plan: ModelPlan) -> None:
        self._plan = plan
        self._params: list[TensorSpec] = []
        self._weight_map: list[WeightEntry] = []

    def param(self, ours: str, *sources: tuple[str, tuple[int, ...]]) -> None:
        """One param: the concatenation of checkpoint tensors (name, shape) along axis 0."""
        shapes = [shape for _, shape in sources]
        shape = (sum(first for first, *_ in shapes), *shapes[0][1:])
        self._params.append(TensorSpec(name=ours, role="param", shape=shape, dtype=self._plan.dtype))
        self._weight_map.append(
            WeightEntry(param=ours, sources=tuple(WeightSource(tensor=name, shape=shape) for name, shape in sources))
        )

    def linear(self, ours: str, module: str, parts: tuple[tuple[str, int], ...], width: int, *, bias: bool) -> None:
        """One weight [sum of rows, width] of the projections ``parts`` (name, rows) of ``module``, and its bias."""
        self.param(f"{ours}.weight", *((f"{module}.{name}.weight", (rows, width)) for name, rows in parts))
        if bias:
            self.param(f"{ours}.bias", *((f"{module}.{name}.bias", (rows,)) for name, rows in parts))

    def layout(
        self, *, vocab_size: int, hidden_size: int, num_layers: int, num_kv_heads: int, head_size: int
    ) -> ModelLayout:
        plan = self._plan
        cache = KVCacheSpec(
            num_layers=num_layers,
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            dtype=plan.kv_dtype,
        )
        shape = (cache.num_blocks, num_kv_heads, cache.block_size, head_size)
        dtype = state_dtype(plan.target, plan.kv_dtype)
        names = [f"layers.{index}.{part}" for index in range(num_layers) for part in "kv"]
        return ModelLayout(
            spec=ModelSpec(
                architecture=plan.architecture, facts=plan.facts, vocab_size=vocab_size, hidden_size=hidden_size
            ),
            params=tuple(self._params),
            states=tuple(TensorSpec(name=name, role="state", shape=shape, dtype=dtype) for name in names),
            weight_map=tuple(self._weight_map),
            kv_cache=cache,
        )


def state_dtype(target: str, kv_dtype: str) -> str:
    """How a cache of ``kv_dtype`` elements enters and leaves a program.

    As raw bits on cpu: XLA:CPU turns each scatter into a bfloat16 buffer into a float32 pass over all of it.
    """
    return "uint16" if target == "cpu" and kv_dtype == "bfloat16" else kv_dtype
