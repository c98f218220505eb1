"""Lowering: model definition -> FX graph of ATen operators -> StableHLO -> normalised ``HloModuleProto``."""

from __future__ import annotations

from neuron_aot_runtime.contract.manifest import TensorSpec

from ..program import LoweredProgram, ModelLayout, ProgramPlan
from ..targets import CPU


def lower_program(plan: ProgramPlan, definition, layout: ModelLayout, *, origins: bool = False) -> LoweredProgram:
    """Lower one program. ``definition`` is what ``Family.program`` returned for ``plan``.

    With ``origins`` the result also says which model line each instruction comes from. No weight is allocated: a
    70B-shaped model takes a few hundred MB. Raises LoweringError naming the operator and the model line.
    """
    from .hlo import lower_to_hlo
    from .interpret import jax_function, model_line
    from .neff_names import name_tensors
    from .replicas import spell_groups
    from .rules import rules_for
    from .trace import trace

    function, inputs, outputs = definition
    graph, output_names = trace(function, layout, inputs)
    assert output_names == tuple(spec.name for spec in outputs), (output_names, outputs)
    compute = jax_function(graph, rules_for(plan.model.target), program=plan.name)
    arguments: tuple[TensorSpec, ...] = (*layout.params, *layout.states, *inputs)
    aliases = {len(layout.params) + index: len(outputs) + index for index in range(len(layout.states))}
    hlo, scopes = lower_to_hlo(compute, arguments, aliases, origins=origins)
    if plan.model.world_size > 1:
        hlo = spell_groups(hlo)
    if plan.model.target != CPU:
        results = (*outputs, *layout.states)
        hlo = name_tensors(hlo, [spec.name for spec in arguments], [spec.name for spec in results])
    lines = {node.name: model_line(node) for node in graph.graph.nodes} if origins else {}
    return LoweredProgram(
        hlo=hlo,
        inputs=inputs,
        outputs=outputs,
        origins={number: lines[scope] for number, scope in scopes.items() if scope in lines},
    )
