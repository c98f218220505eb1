"""What a store's past compiles say of the next: only those of models alike, the newest, and none that is damaged."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from fake_toolchain import FAKE, write_recipe

from neuron_aot import estimates
from neuron_aot.estimates import DEFAULT_MEMORY_MB, estimate, memory_needs, read_samples
from neuron_aot.pipeline import compile_recipe, make_plan
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store


@pytest.fixture
def compiled(tmp_path, compiler):
    recipe = load_recipe(write_recipe(tmp_path))
    store = open_store(str(tmp_path / "store"))
    compile_recipe(recipe, store, FAKE)
    return make_plan(recipe, store, FAKE), store


def changed(layout, *, layers: float = 1, weights: float = 1):
    """``layout`` with that many times the layers and the weights."""
    params = [spec.model_copy(update={"shape": (round(spec.shape[0] * weights),)}) for spec in layout.params]
    cache = layout.kv_cache.model_copy(update={"num_layers": round(layout.kv_cache.num_layers * layers)})
    return replace(layout, params=tuple(params), kv_cache=cache)


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({}, True),
        ({"layers": 2}, True),
        ({"layers": 3}, False),
        ({"weights": 2}, True),
        ({"weights": 0.5}, True),
        ({"weights": 2.5}, False),
        ({"weights": 0.25}, False),
        ({"layers": 80, "weights": 500}, False),
    ],
)
def test_only_models_alike_are_learned_from(compiled, change, alike):
    plan, store = compiled
    layout = changed(plan.layout, **change)
    samples = read_samples(store, "cpu", layout)
    assert len(samples) == (len(plan.grid.programs) if alike else 0)
    needs = memory_needs(store, plan.grid.programs, "cpu", layout)
    assert (set(needs) == {DEFAULT_MEMORY_MB["cpu"]}) is not alike


def test_a_sample_is_what_the_record_says(compiled):
    plan, store = compiled
    samples = {(item.phase, item.bucket): item for item in read_samples(store, "cpu", plan.layout)}
    for program in plan.grid.programs:
        _, record = plan.found[program.name]
        found = samples[program.phase, program.bucket]
        made = record.provenance
        assert found.seconds == (made.lower_ms + made.generate_ms) / 1000
        assert (found.memory_mb, found.nbytes) == (made.peak_memory_mb, record.artifact.size)
        assert estimate(samples.values(), program.phase, program.bucket)


def test_another_targets_compiles_say_nothing(compiled):
    plan, store = compiled
    assert read_samples(store, "trn2", plan.layout) == []


def test_the_newest_records_are_read_and_damaged_ones_passed_over(compiled, monkeypatch):
    plan, store = compiled
    keys = [record.program_key for _, record in plan.found.values()]
    for age, key in enumerate(keys):
        os.utime(store.root / f"programs/{key}.json", (1000.0 - age, 1000.0 - age))
    monkeypatch.setattr(estimates, "_MOST_RECORDS", 2)
    newest = {(request.phase, request.bucket) for request, _ in list(plan.found.values())[:2]}
    assert {(item.phase, item.bucket) for item in read_samples(store, "cpu", plan.layout)} == newest
    (store.root / f"programs/{keys[0]}.json").write_text("{")
    os.utime(store.root / f"programs/{keys[0]}.json", (2000, 2000))
    assert len(read_samples(store, "cpu", plan.layout)) == 1
