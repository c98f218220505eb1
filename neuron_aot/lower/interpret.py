"""FX graph -> a JAX function: every node through its rule, every result checked against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from neuron_aot_runtime.contract.errors import LoweringError
from torch.fx import GraphModule, Node

from .rules import Rules
from .rules.dtypes import jax_dtype

_KV_OPERATORS = ("neuron_aot.kv_write.default",)  # their result is the cache as the target stores it


def jax_function(graph: GraphModule, rules: Rules, *, program: str) -> Callable:
    """A function of flat JAX arrays that computes ``graph``.

    Raises LoweringError at once, naming every operator without a rule, and the model line that uses it first.
    """
    _check_operators(graph, rules, program)
    constants = {
        node.target: jnp.asarray(getattr(graph, node.target).numpy())
        for node in graph.graph.nodes
        if node.op == "get_attr"
    }

    def run(*arguments):
        feed = iter(arguments)
        values: dict[Node, object] = {}

        def value(argument):
            return torch.fx.node.map_arg(argument, values.__getitem__)

        for node in graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(feed)
            elif node.op == "get_attr":
                values[node] = constants[node.target]
            elif node.op == "output":
                return tuple(value(node.args[0]))
            else:
                with jax.named_scope(node.name):  # leads from an instruction back to the model's line
                    result = rules[operator_name(node)](*value(node.args), **value(node.kwargs))
                _check_result(node, result, program)
                values[node] = result
        raise AssertionError("a graph without an output")

    return run


def operator_name(node: Node) -> str:
    """``aten.mul.Tensor``, ``neuron_aot.linear.default``, ``_operator.getitem``."""
    target = node.target
    return str(target) if isinstance(target, torch._ops.OpOverload) else f"{target.__module__}.{target.__name__}"


def model_line(node: Node) -> str:
    """The line of the model definition that made ``node``: ``file:line in forward: code``."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").strip().splitlines()]
    if len(lines) < 2:
        return "an unknown line"
    where, code = lines[-2:]
    return f"{where.removeprefix('File ').replace(', line ', ':').replace(', in ', ' in ')}: {code}"


def _check_operators(graph: GraphModule, rules: Rules, program: str) -> None:
    unknown: dict[str, Node] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and operator_name(node) not in rules:
            unknown.setdefault(operator_name(node), node)
    if unknown:
        raise LoweringError(
            f"{program}: {len(unknown)} operator(s) of the model have no lowering rule",
            details=[f"{name} at {model_line(node)}" for name, node in unknown.items()],
            next_command="write the model line with operators that have a rule, or add a rule to neuron_aot/lower/rules",
        )


def _check_result(node: Node, result, program: str) -> None:
    expected = node.meta.get("val")
    if not isinstance(expected, torch.Tensor) or operator_name(node) in _KV_OPERATORS:
        return
    wanted = (tuple(expected.shape), jax_dtype(expected.dtype))
    found = (tuple(result.shape), result.dtype)
    if wanted != found:
        raise LoweringError(
            f"{program}: the rule of {operator_name(node)} differs from PyTorch at {model_line(node)}",
            wanted=f"{wanted[1]} {list(wanted[0])}",
            found=f"{found[1]} {list(found[0])}",
        )
