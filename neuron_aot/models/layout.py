"""Builds a model's layout, of one rank: params with their weight map, KV states; no tensor is made."""

from __future__ import annotations

from neuron_aot_runtime.contract.manifest import KVCacheSpec, ModelSpec, TensorSpec, WeightEntry, WeightSource

from ..program import ModelLayout, ModelPlan
from .sharding import Division


class LayoutBuilder:
    """Collects params in the order of the calling convention. ``ours`` names are the program's, ``theirs`` the
    checkpoint's."""

    def __init__(self, plan: ModelPlan) -> None:
        self._plan = plan
        self._params: list[TensorSpec] = []
        self._weight_map: list[WeightEntry] = []

    def param(self, ours: str, *sources: WeightSource) -> None:
        """One param: the concatenation of the ranks' parts of checkpoint tensors along axis 0."""
        shapes = []
        for source in sources:
            shape = list(source.shape)
            if source.shard is not None:
                shape[source.shard.axis] = source.shard.size
            shapes.append(shape)
        shape = (sum(first for first, *_ in shapes), *shapes[0][1:])
        self._params.append(TensorSpec(name=ours, role="param", shape=shape, dtype=self._plan.dtype))
        self._weight_map.append(WeightEntry(param=ours, sources=sources))

    def whole(self, ours: str, tensor: str, shape: tuple[int, ...]) -> None:
        """One param that every rank has all of."""
        self.param(ours, WeightSource(tensor=tensor, shape=shape))

    def table(self, ours: str, tensor: str, rows: Division, width: int) -> None:
        """One [rows, width] param, divided by rows."""
        self.param(ours, WeightSource(tensor=tensor, shape=(rows.length, width), shard=rows.shard(0)))

    def column_parallel(
        self, ours: str, module: str, parts: tuple[tuple[str, Division], ...], width: int, *, bias: bool
    ) -> None:
        """One weight [sum of rows, width] of the projections ``parts`` (name, rows) of ``module``, and its bias; what
        they give is divided."""
        kinds = {"weight": (width,)} | ({"bias": ()} if bias else {})
        for kind, rest in kinds.items():
            sources = (
                WeightSource(tensor=f"{module}.{name}.{kind}", shape=(rows.length, *rest), shard=rows.shard(0))
                for name, rows in parts
            )
            self.param(f"{ours}.{kind}", *sources)

    def row_parallel(self, ours: str, module: str, rows: int, width: Division, *, bias: bool) -> None:
        """One weight [rows, width] of the projection ``module``, and its bias; what it takes is divided."""
        weight = WeightSource(tensor=f"{module}.weight", shape=(rows, width.length), shard=width.shard(1))
        self.param(f"{ours}.weight", weight)
        if bias:
            self.whole(f"{ours}.bias", f"{module}.bias", (rows,))

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
