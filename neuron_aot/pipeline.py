"""The main path: recipe -> plan -> keys -> misses -> compile -> bundle.

With nothing to do it answers in about a second: keys need no tracing, and only workers import torch and jax.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from neuron_aot_runtime.contract.canonical import canonical_json
from neuron_aot_runtime.contract.errors import BundleMissError
from neuron_aot_runtime.contract.facts import read_facts
from neuron_aot_runtime.contract.layout import ref_path
from neuron_aot_runtime.contract.manifest import Manifest, MemoryBudget, Program
from neuron_aot_runtime.store import ProgramRecord, RefRecord, RequestRecord

from . import __version__, keys
from .compiling import Progress, RunOptions, compile_misses
from .make import Toolchain
from .plan import Grid, ReasonedDrop, check_budget, memory_budget, plan_programs
from .program import ModelLayout, ModelPlan, ProgramPlan
from .recipe import Recipe
from .schedule.shards import Shard
from .settings import read_settings
from .store import Store
from .targets import CPU, neuron_target


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What a recipe asks for, sized: ``recipe``'s serving has the final number of KV blocks. ``memory``: not on cpu."""

    recipe: Recipe
    model: ModelPlan
    layout: ModelLayout
    grid: Grid
    memory: MemoryBudget | None


@dataclass(frozen=True, kw_only=True)
class Plan(Shapes):
    """What a recipe asks for, and what of it the store has."""

    lowering: dict
    request_keys: dict[str, str]
    found: dict[str, tuple[RequestRecord, ProgramRecord]]

    @property
    def misses(self) -> list[ProgramPlan]:
        """Programs to make, the largest first so that no worker is left with a long one at the end."""
        missing = [program for program in self.grid.programs if program.name not in self.found]
        return sorted(missing, key=lambda program: (program.bucket.size, program.bucket.context), reverse=True)

    def only(self, shard: Shard) -> Plan:
        """The plan of that share of the programs. It depends on the recipe alone, not on what the store has by now."""
        order = sorted(self.grid.programs, key=lambda item: (item.bucket.size, item.bucket.context, item.name))
        programs = tuple(shard.share(order))
        names = {program.name for program in programs}
        return replace(
            self,
            grid=replace(self.grid, programs=programs),
            found={name: hit for name, hit in self.found.items() if name in names},
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a compile did. ``adopted``: programs whose compiler gave other bytes than the writer who was first.

    ``bundle``: None of a shard, which publishes none.
    """

    bundle: str | None
    ref: str | None
    programs: int
    compiled: int
    hits: int
    seconds: float
    dropped: tuple[ReasonedDrop, ...] = ()
    adopted: tuple[str, ...] = ()


def plan_shapes(recipe: Recipe, toolchain: Toolchain, *, check_memory: bool = True) -> Shapes:
    """Plan a recipe's programs, and size its KV cache where the target's memory decides that.

    Raises RecipeError, UsageError (target); without ``check_memory`` not for a model that no device can hold.
    """
    family = toolchain.family(recipe.architecture)
    model = model_plan(recipe, toolchain)
    layout = family.layout(model)  # refuses a configuration that the family cannot compute
    memory = None
    if recipe.target != CPU:
        target, settings = neuron_target(recipe.target), read_settings()
        core_size = int(toolchain.code_generator(recipe.target, recipe.options).requires()["logical_core_size"])
        memory = memory_budget(
            recipe.serving,
            layout,
            device_bytes=target.memory[core_size],
            blocks_given=recipe.blocks_given,
            kv_cap=settings.kv_cap,
        )
        if check_memory:
            check_budget(memory, recipe.serving, min_kv_gib=settings.min_kv_gib)
            serving = recipe.serving.model_copy(update={"num_gpu_blocks_override": memory.num_blocks})
            recipe = replace(recipe, serving=serving)
            model = model_plan(recipe, toolchain)
            layout = family.layout(model)
    grid = plan_programs(recipe.serving, model)
    return Shapes(recipe=recipe, model=model, layout=layout, grid=grid, memory=memory)


def model_plan(recipe: Recipe, toolchain: Toolchain) -> ModelPlan:
    """What all programs of a recipe have in common. Raises RecipeError for an unknown architecture."""
    serving = recipe.serving
    return ModelPlan(
        target=recipe.target,
        architecture=recipe.architecture,
        facts=read_facts(toolchain.family(recipe.architecture).FACTS, recipe.model_config),
        dtype=serving.dtype,
        kv_dtype=serving.kv_dtype,
        block_size=serving.block_size,
        num_blocks=serving.num_blocks,
        world_size=serving.tensor_parallel_size,
        greedy=serving.greedy,
        sequence_parallel=serving.sequence_parallel,
    )


def make_plan(recipe: Recipe, store: Store, toolchain: Toolchain) -> Plan:
    """Plan a recipe's programs, key them and look them up. Writes nothing.

    Raises RecipeError, UsageError (target), StoreError.
    """
    shapes = plan_shapes(recipe, toolchain)
    generator = toolchain.code_generator(recipe.target, recipe.options)
    identity, lowering = generator.identity(), toolchain.lowering_identity()
    request_keys = {program.name: keys.request_key(program, identity, lowering) for program in shapes.grid.programs}
    hits = store.find_all(request_keys.values())
    found = {name: hits[key] for name, key in request_keys.items() if key in hits}
    return Plan(
        recipe=shapes.recipe,
        model=shapes.model,
        layout=shapes.layout,
        grid=shapes.grid,
        memory=shapes.memory,
        lowering=lowering,
        request_keys=request_keys,
        found=found,
    )


def compile_recipe(
    recipe: Recipe,
    store: Store,
    toolchain: Toolchain,
    *,
    ref: str | None = None,
    progress: Progress | None = None,
    **options,
) -> Report:
    """Compile what the store does not have and publish the bundle; with a ``shard`` that part of the programs, and no
    bundle. ``options`` are those of ``RunOptions``.

    A program that fails does not stop the others; then no bundle is published, and the error lists the failures. It
    has the type of the first of them: RecipeError, LoweringError, CompileError, StoreError. A program that its compiler
    is known to refuse fails without asking it again, unless ``retry_failed``. Raises Interrupted.
    """
    started = time.monotonic()
    run = RunOptions(**options)
    if ref is not None:
        ref_path(ref)  # a bad name is refused before an hour's work, not after
    plan = make_plan(recipe, store, toolchain)
    if run.shard is not None:
        plan = plan.only(run.shard)
    records = [record for _, record in plan.found.values()]
    with store.leased([item.program_key for item in records], [blob.digest for item in records for blob in item.blobs]):
        made = compile_misses(plan, store, toolchain, run, progress or Progress())
        programs = plan.found | {name: (item.request, item.record) for name, item in made.items()}
        bundle = None if run.shard is not None else _publish(plan, programs, store, toolchain, ref)
    compiled = sum(item.compiled for item in made.values())
    return Report(
        bundle=bundle,
        ref=ref,
        programs=len(programs),
        compiled=compiled,
        hits=len(programs) - compiled,
        seconds=time.monotonic() - started,
        dropped=plan.grid.dropped,
        adopted=tuple(name for name, item in made.items() if item.adopted),
    )


def assemble(recipe: Recipe, store: Store, toolchain: Toolchain, *, ref: str | None, again: str) -> Report:
    """Publish the bundle of programs that are all in the store, as shards leave them; makes none.

    ``again``: the command that would make them. Raises BundleMissError naming what is missing.
    """
    started = time.monotonic()
    if ref is not None:
        ref_path(ref)
    plan = make_plan(recipe, store, toolchain)
    if missing := [program.name for program in plan.misses]:
        raise BundleMissError(
            f"{len(missing)} of {len(plan.grid.programs)} programs are not in the store {store.location}; "
            "no bundle was published",
            wanted=f"programs of {canonical_json(toolchain.code_generator(recipe.target, recipe.options).identity()).decode()}",
            details=[f"program {name}: not in the store" for name in missing],
            next_command=again,
        )
    bundle = _publish(plan, plan.found, store, toolchain, ref)
    count = len(plan.found)
    return Report(
        bundle=bundle, ref=ref, programs=count, compiled=0, hits=count, seconds=time.monotonic() - started,
        dropped=plan.grid.dropped,
    )  # fmt: skip


def _publish(plan: Plan, programs, store: Store, toolchain: Toolchain, ref: str | None) -> str:
    requests = [request.request_key for request, _ in programs.values()]
    manifest = bundle_manifest(plan, programs, toolchain)
    with store.leased(bundles=[manifest.bundle_id]):  # it may be there already, and old enough for a gc
        bundle = store.publish(manifest, requests)
        if ref is not None:
            store.set_ref(ref, RefRecord(bundle=bundle, model=str(plan.recipe.model)))
    return bundle


def bundle_manifest(
    plan: Plan, programs: dict[str, tuple[RequestRecord, ProgramRecord]], toolchain: Toolchain
) -> Manifest:
    """The manifest of a plan whose programs are all there."""
    layout = plan.layout
    generator = toolchain.code_generator(plan.model.target, plan.recipe.options)
    entries = []
    for item in plan.grid.programs:
        request, record = programs[item.name]
        entries.append(
            Program(
                name=item.name,
                phase=item.phase,
                bucket=item.bucket,
                program_key=record.program_key,
                artifact=record.artifact,
                inputs=request.inputs,
                outputs=request.outputs,
            )
        )
    return Manifest(
        target=plan.model.target,
        world_size=plan.model.world_size,
        model=layout.spec,
        serving=plan.recipe.serving.as_manifest_serving(),
        kv_cache=layout.kv_cache,
        params=layout.params,
        states=layout.states,
        weight_map=layout.weight_map,
        programs=tuple(entries),
        requires=generator.requires(),
        toolchain={"neuron-aot": __version__, "code_generator": generator.name, **keys.library_versions()},
        memory=plan.memory,
    )
