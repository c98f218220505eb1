"""A bundle and a device without a compiler: programs are Python, and the KV cache is one integer a slot.

The fake reads every position of every sequence through its block table at each step, and derives the logits from
all of them. So a wrong block, a stale slot, a wrong position or a lost token anywhere changes the tokens, which
``expected`` computes from the plain list of tokens.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from neuron_aot_runtime.contract.buckets import program_name
from neuron_aot_runtime.contract.errors import NotFoundError
from neuron_aot_runtime.contract.facts import fact, read_facts
from neuron_aot_runtime.contract.manifest import (
    Artifact,
    KVCacheSpec,
    Manifest,
    ModelSpec,
    Program,
    TensorSpec,
    WeightEntry,
    WeightSource,
)  # fmt: skip
from neuron_aot_runtime.contract.serving import resolve_serving
from neuron_aot_runtime.store import Reference

VOCAB = 199
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-05,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "block_size": 16,
    "num_gpu_blocks_override": 30,
}
NEURON = {"num_batched_tokens_buckets": [16, 64], "num_seqs_buckets": [1, 4], "decode_context_length_buckets": [128]}


def logits_of(tokens) -> np.ndarray:
    """[vocab] float32 that depend on every token and its position."""
    seed = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(VOCAB).astype(np.float32)


def expected(prompt, count) -> list[int]:
    """The greedy continuation."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(tokens).argmax()))
    return tokens[len(prompt) :]


def make_model(directory: Path) -> Path:
    """A checkpoint directory with a config.json and one tensor."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    header = json.dumps({"scale": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    data = np.ones(16, np.float32).tobytes()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return directory


def make_manifest(*, engine=(), neuron=(), greedy=False) -> Manifest:
    """The manifest of a bundle for the fake device; ``engine`` and ``neuron`` override the defaults above."""
    neuron = {**NEURON, **dict(neuron)}
    if greedy:
        neuron["on_device_sampling_config"] = {"all_greedy": True}
    serving = resolve_serving({**ENGINE, **dict(engine)}, neuron, model_config=CONFIG)
    programs = [_program("prefill", bucket, serving, greedy) for bucket in serving.prefill_buckets()]
    programs += [_program("decode", bucket, serving, greedy) for bucket in serving.decode_buckets()]
    facts = (fact("vocab_size"), fact("hidden_size"), fact("rms_norm_eps"), fact("num_hidden_layers"))
    return Manifest(
        target="fake",
        world_size=1,
        model=ModelSpec(
            architecture="LlamaForCausalLM", facts=read_facts(facts, CONFIG), vocab_size=VOCAB, hidden_size=64
        ),
        serving=serving.as_manifest_serving(),
        kv_cache=KVCacheSpec(
            num_layers=2, num_blocks=serving.num_blocks, block_size=serving.block_size, num_kv_heads=2, head_size=16,
            dtype=serving.kv_dtype,
        ),
        params=[TensorSpec(name="scale", role="param", shape=(16,), dtype="float32")],
        states=[TensorSpec(name="kv", role="state", shape=(serving.num_blocks * serving.block_size,), dtype="int32")],
        weight_map=[WeightEntry(param="scale", sources=[WeightSource(tensor="scale", shape=(16,))])],
        programs=programs,
        requires={"fake": "1"},
        toolchain={},
    )  # fmt: skip


def _program(phase, bucket, serving, greedy) -> Program:
    rows = 1 if phase == "prefill" else bucket.size
    table = bucket.context // serving.block_size
    shapes = (
        {"token_ids": (bucket.size,), "num_computed_tokens": (1,), "num_tokens": (1,), "block_table": (table,)}
        if phase == "prefill"
        else {"token_ids": (rows,), "positions": (rows,), "block_tables": (rows, table)}
    )
    output = {"tokens": ((rows,), "int32")} if greedy else {"logits": ((rows, VOCAB), "float32")}
    return Program(
        name=program_name(phase, bucket),
        phase=phase,
        bucket=bucket,
        program_key="0" * 64,
        artifact=Artifact(format="fake", digest="sha256:" + "0" * 64, size=0),
        inputs=[TensorSpec(name=name, role="input", shape=shape, dtype="int32") for name, shape in shapes.items()],
        outputs=[
            TensorSpec(name=name, role="output", shape=shape, dtype=dtype) for name, (shape, dtype) in output.items()
        ],
    )


class EmptyReader:
    """Of a store without records."""

    def read(self, path: str) -> bytes:
        raise NotFoundError(f"there is no {path}")


class FakeBundle(SimpleNamespace):
    """What ``fetch_bundle`` returns, as far as the plugin uses it."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(
            manifest=manifest, bundle_id=manifest.bundle_id, reference=Reference("fake", "bundle"), store_root="fake",
            reader=EmptyReader(),
        )  # fmt: skip

    def artifact_path(self, program: Program) -> Path:
        return Path("/nonexistent", program.name)


class FakeDevice:
    """See ``neuron_aot_runtime.device.base.Device``. ``executed`` holds the name of every execution."""

    target = "fake"
    loads_while_serving = True
    keeps_params = True

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.params: dict[str, np.ndarray] = {}
        self.executed: list[str] = []
        self.checked: dict | None = None

    def check(self, requires) -> None:
        self.checked = dict(requires)

    def load(self, manifest, program, artifact) -> None:
        self.block = manifest.kv_cache.block_size
        self.programs[program.name] = program

    def put_param(self, spec, array) -> None:
        assert array.shape == spec.shape
        self.params[spec.name] = array

    def allocate_states(self, specs) -> None:
        (spec,) = specs
        self.kv = np.full(spec.shape, -1, np.int32)

    def execute(self, name, inputs) -> dict[str, np.ndarray]:
        program = self.programs[name]
        for spec in program.inputs:
            array = inputs[spec.name]
            assert (array.shape, str(array.dtype)) == (spec.shape, spec.dtype), (name, spec, array.shape)
        if program.phase == "prefill" and not inputs["block_table"].any():
            assert inputs["num_tokens"][0] == 1, "a warm-up"
            return {"tokens": np.zeros(1, np.int32), "logits": np.zeros((1, VOCAB), np.float32)}
        if program.phase == "prefill" or inputs["block_tables"].any():
            self.executed.append(name)
        rows = self._prefill(inputs) if program.phase == "prefill" else self._decode(inputs)
        logits = np.stack([logits_of(row) if row is not None else np.zeros(VOCAB, np.float32) for row in rows])
        if program.outputs[0].name == "tokens":
            return {"tokens": logits.argmax(axis=-1).astype(np.int32)}
        return {"logits": logits}

    def _prefill(self, inputs):
        first, count = int(inputs["num_computed_tokens"][0]), int(inputs["num_tokens"][0])
        table = inputs["block_table"]
        assert 1 <= count <= len(inputs["token_ids"])
        for offset in range(count):
            self._write(table, first + offset, inputs["token_ids"][offset])
        return [self._read(table, first + count)]

    def _decode(self, inputs):
        rows = []
        for token, position, table in zip(
            inputs["token_ids"], inputs["positions"], inputs["block_tables"], strict=True
        ):
            if not table[0]:
                assert not token and not position and not table.any(), "a padding row is all zeros"
                rows.append(None)
                continue
            self._write(table, position, token)
            rows.append(self._read(table, position + 1))
        return rows

    def _write(self, table, position, token) -> None:
        block = table[position // self.block]
        assert block, f"position {position} would be written to the null block"
        self.kv[block * self.block + position % self.block] = token

    def _read(self, table, length) -> np.ndarray:
        slots = table[np.arange(length) // self.block] * self.block + np.arange(length) % self.block
        assert (slots >= self.block).all(), "a sequence reads the null block"
        tokens = self.kv[slots]
        assert (tokens >= 0).all(), "a sequence reads a position that was never written"
        return tokens

    def close(self) -> None:
        self.kv = None
