"""Coverage: complete, and each way to miss; by the command line, with exit codes for CI."""

from __future__ import annotations

import json
import time

import pytest
from commands import answer, invoke
from fake_toolchain import CONFIG, FAKE, FakeFamily, write_recipe
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.store import RefRecord, open_bundle

from neuron_aot.compiling import job_of
from neuron_aot.make import Toolchain, make_program
from neuron_aot.models import llama
from neuron_aot.pipeline import bundle_manifest, make_plan
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store

SERVED = "--max-model-len 256 --max-num-batched-tokens 128 --max-num-seqs 2 --block-size 32 --dtype bfloat16"


def build(tmp_path, ref: str, toolchain: Toolchain = FAKE) -> str:
    """Compile the recipe in this process and publish it."""
    store = open_store(str(tmp_path / "store"))
    plan = make_plan(load_recipe(tmp_path / "recipe.yaml"), store, toolchain)
    made = {item.name: make_program(job_of(plan, item, store, toolchain), lambda note: None) for item in plan.misses}
    programs = {name: (item.request, item.record) for name, item in made.items()}
    bundle = store.publish(bundle_manifest(plan, plan.found | programs, toolchain))
    store.set_ref(ref, RefRecord(bundle=bundle))
    return bundle


@pytest.fixture
def run(monkeypatch, tmp_path, compiler):
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
    build(tmp_path, "fake/demo")

    def cover(flags: str = "", *, code: int, reference: str = "store@fake/demo", model: str = "model"):
        return answer(invoke("coverage", reference, "--json", "--", "vllm", "serve", model, *flags.split(), code=code))

    return cover


@pytest.mark.parametrize("flags", ["", SERVED, "--port 8000 --served-model-name x", "--dtype auto --max-num-seqs 2"])
def test_complete(run, flags):
    data = run(flags, code=0)
    assert data["complete"] and data["held"] == data["reached"] == 4 and data["missing"] == data["differences"] == []


@pytest.mark.parametrize(
    ("flags", "field", "missing"),
    [
        ("--max-num-seqs 4", "max_num_seqs", ["decode_b4_c256"]),
        ("--max-model-len 512", "max_model_len", ["prefill_s128_c512", "decode_b1_c512", "decode_b2_c512"]),
        ("--max-num-batched-tokens 256", "max_num_batched_tokens", ["prefill_s256_c256"]),
        ("--tensor-parallel-size 8", "tensor_parallel_size", []),
        ("--dtype float32", "dtype", []),
        ("--block-size 16", "block_size", []),
        ("--num-gpu-blocks-override 99", "num_gpu_blocks_override", []),
        ("--kv-cache-dtype fp8", "kv_cache_dtype", []),
        ("--enable-lora", "enable_lora", []),
        ("--async-scheduling", "async_scheduling", []),
        (
            '--additional-config {"neuron_config":{"decode_context_length_buckets":[128]}}',
            "neuron_config.decode_context_length_buckets",
            ["decode_b1_c128", "decode_b2_c128"],
        ),
        (
            '--additional-config {"neuron_config":{"on_device_sampling_config":{"all_greedy":true}}}',
            "neuron_config.on_device_sampling_config",
            [],
        ),
    ],
)
def test_each_option_that_differs_is_a_miss(run, flags, field, missing):
    data = run(flags, code=3)
    assert field in {item["field"] for item in data["differences"]} and not data["complete"]
    assert data["missing"] == missing


def test_another_model_is_a_miss(run, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(CONFIG | {"width": 9, "architectures": ["Other"]}))
    fields = {item["field"] for item in run(code=3, model="other")["differences"]}
    assert {"architecture", "config.json width"} <= fields


def test_a_lost_program_and_a_lost_artifact_are_misses(run, tmp_path):
    bundle = open_bundle("store@fake/demo")
    blob = tmp_path / "store" / blob_path(bundle.manifest.program("decode_b2_c256").artifact.digest)
    content = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(content[:-1])
    assert run(code=3)["missing"] == ["decode_b2_c256"]
    blob.unlink()
    data = run(code=3)
    assert data["missing"] == ["decode_b2_c256"] and data["programs"][-1]["state"] == "no artifact"
    kept = tuple(program for program in bundle.manifest.programs if program.name != "decode_b2_c256")
    store = open_store("store")
    short = store.publish(bundle.manifest.model_copy(update={"programs": kept}))
    data = run(code=3, reference=f"store@{short}")
    assert data["programs"][-1]["state"] == "no program"


def test_a_command_that_breaks_a_rule_of_its_own(run):
    data = run('--additional-config {"neuron_config":{"num_seqs_bucket":[2]}}', code=2)
    assert data["misuse"] and not data["differences"]
    assert "num_seqs_buckets" in data["misuse"][0]


def test_a_store_alone_means_its_nearest_bundle(run, tmp_path):
    write_recipe(tmp_path, engine={"max_num_seqs": 4})
    larger = build(tmp_path, "fake/larger")
    assert run("--max-num-seqs 4", code=0, reference="store")["bundle"] == larger
    assert run(code=0, reference="store")["complete"]
    assert run("--max-num-seqs 8", code=3, reference="store")["missing"]


@pytest.mark.parametrize(("reference", "code"), [("store@absent", 4), ("nowhere", 4), ("@x", 2)])
def test_a_reference_that_leads_nowhere_is_not_a_miss(run, reference, code):
    assert run(code=code, reference=reference)["exit_code"] == code


LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
}  # fmt: skip


class Shell(FakeFamily):
    """The tensors of a real model, the programs of the fake one."""

    FACTS = llama.FACTS

    def layout(self, plan):
        return llama.layout(plan)


def test_a_full_grid_of_70b_is_compared_within_seconds(run, tmp_path):
    write_recipe(
        tmp_path,
        config=LLAMA_70B,
        engine={"max_model_len": 131072, "max_num_batched_tokens": 8192, "max_num_seqs": 64, "dtype": "bfloat16"},
    )
    document = json.loads((tmp_path / "recipe.yaml").read_text())
    contexts = [1024 << power for power in range(7)]
    document["neuron_config"] = {
        "decode_context_length_buckets": contexts,
        "prefill_context_length_buckets": contexts,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(document))
    build(tmp_path, "llama-70b/prod", Toolchain(**(vars(FAKE) | {"family": lambda architecture: Shell()})))
    started = time.monotonic()
    data = run(code=0, reference="store@llama-70b/prod")
    assert data["reached"] > 100 and time.monotonic() - started < 5
