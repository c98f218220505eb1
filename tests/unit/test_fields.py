"""No configuration field escapes: each is in the key, or declared irrelevant, or refused."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from neuron_aot_runtime.contract import fields
from neuron_aot_runtime.contract.serving import NeuronConfig, ServingConfig


def vllm_engine_arguments() -> set[str]:
    """Read from vLLM's source: importing it takes ten seconds."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    tree = ast.parse((Path(spec.origin).parent / "engine" / "arg_utils.py").read_text())
    classes = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in ("EngineArgs", "AsyncEngineArgs")
    ]
    assert len(classes) == 2
    found = [item for node in classes for item in node.body if isinstance(item, ast.AnnAssign)]
    return {item.target.id for item in found if "ClassVar" not in ast.unparse(item.annotation)}


def test_every_engine_argument_of_vllm_is_listed_and_none_that_is_gone():
    found, listed = vllm_engine_arguments(), set(fields.ENGINE)
    assert found - listed == set(), "new in vLLM: say in contract/fields.py whether a key depends on it"
    assert listed - found == set(), "gone from vLLM: remove it from contract/fields.py"


def test_every_option_of_ours_is_listed():
    assert set(NeuronConfig.model_fields) == {name for name, field in fields.NEURON.items() if field.kind == "key"}
    own = set(ServingConfig.model_fields) - {"neuron_config", "engine_extras"}
    assert own <= set(fields.ENGINE)
    assert {name for name in own if fields.ENGINE[name].kind != "key"} == {"enable_prefix_caching"}


def test_every_field_has_its_reason():
    for table, _ in fields.LEVELS.values():
        for name, field in table.items():
            assert field.why.strip(), name
            assert not field.allowed or field.kind == "refused", name


@pytest.mark.parametrize("name", [name for name, field in fields.ENGINE.items() if field.kind == "refused"])
def test_a_refused_argument_is_refused_unless_at_its_default(name):
    allowed = fields.ENGINE[name].allowed
    assert fields.check_engine_values({name: None}) == []
    for value in allowed:
        assert fields.check_engine_values({name: value}) == []
    assert fields.check_engine_values({name: "something else"})


@pytest.mark.e2e
def test_the_defaults_of_refused_arguments_are_vllms():
    import dataclasses

    from vllm.engine.arg_utils import AsyncEngineArgs

    for field in dataclasses.fields(AsyncEngineArgs):
        ours = fields.ENGINE[field.name]
        if ours.kind == "refused" and ours.allowed and field.default not in (None, dataclasses.MISSING):
            assert field.default in ours.allowed, field.name


def test_additional_config_is_checked_like_the_rest():
    assert fields.check_additional_config({"neuron_config": {}, "mm_language_model_only": False}) == []
    assert "multimodal" in fields.check_additional_config({"mm_language_model_only": True})[0]
    assert "under neuron_config" in fields.check_additional_config({"num_seqs_buckets": [1]})[0]
    assert "nearest valid name is neuron_config" in fields.check_additional_config({"neuron_cfg": {}})[0]
