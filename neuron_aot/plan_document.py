"""A traffic plan as JSON: what ``plan --json`` prints, and what ``report`` reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from neuron_aot_runtime.contract.errors import UsageError
from neuron_aot_runtime.contract.manifest import Bucket
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .plan.choice import Score
from .plan.usage import ProgramUse
from .planning import Planned

PLAN_VERSION = 1

ListName = Literal["num_batched_tokens_buckets", "num_seqs_buckets", "decode_context_length_buckets"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ScoreDocument(_Part):
    """``choice.Score``; ``padding`` by the name of the list."""

    num_batched_tokens_buckets: tuple[int, ...] = Field(min_length=1)
    num_seqs_buckets: tuple[int, ...] = Field(min_length=1)
    decode_context_length_buckets: tuple[int, ...]
    padding: dict[ListName, float] = Field(min_length=3)
    programs: int
    compile_seconds: float = Field(ge=0)
    hbm_bytes: int = Field(ge=0)
    prefill_work: float
    decode_work: float


class UseDocument(_Part):
    """``usage.ProgramUse``."""

    name: str
    phase: Literal["prefill", "decode"]
    size: int = Field(ge=1)
    context: int = Field(ge=1)
    steps: int = Field(ge=0)
    padding: float | None
    seconds: float = Field(ge=0)

    @property
    def bucket(self) -> Bucket:
        """As a bundle's programs have it."""
        return Bucket(size=self.size, context=self.context)


class PlanDocument(ScoreDocument):
    """The choice, and what it is compared with."""

    plan_version: Literal[1]
    recipe: str
    architecture: str
    target: str
    engine: dict[str, int]
    default: ScoreDocument
    uses: tuple[UseDocument, ...] = Field(min_length=1)
    memory: dict[str, int]
    requests: int
    replicas: int
    load: float
    limits: tuple[str, ...]
    binding: tuple[str, ...]
    estimated_from: int
    jobs: int


def plan_document(planned: Planned) -> dict[str, Any]:
    """The result of a planning as plain data."""
    plan, occupancy, limits = planned.plan, planned.plan.occupancy, planned.limits
    held_out = None
    if plan.held_out is not None:
        held_out = {"default": _score(plan.held_out[0]), "chosen": _score(plan.held_out[1])}
    return {
        "plan_version": PLAN_VERSION,
        "recipe": str(planned.recipe.path),
        "architecture": planned.recipe.architecture,
        "target": planned.recipe.target,
        **_score(plan.chosen),
        "engine": planned.engine,
        "default": _score(plan.default),
        "unlimited": None if plan.unlimited is None else _score(plan.unlimited),
        "limits": [limits.told(option) for option in limits.given],
        "binding": list(plan.binding),
        "estimated_from": planned.samples,
        "jobs": limits.jobs,
        "memory": planned.memory,
        "uses": [_use(use) for use in plan.uses],
        "held_out": held_out,
        "requests": len(planned.traffic),
        "clipped": planned.traffic.num_clipped,
        "mean_decode_batch": round(occupancy.mean_batch, 3),
        "replicas": occupancy.replicas,
        "load": round(planned.load, 4),
        "least_decode_work": round(plan.least_decode_work),
    }


def read_plan(path: Path) -> PlanDocument:
    """A plan that ``plan --json`` printed into a file; lines before its last one do not count.

    Raises UsageError: no such file, a directory, not text, no plan, or a plan of another version.
    """
    again = "neuron-aot plan RECIPE --traffic requests.csv --json > plan.json"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror}", next_command=again) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no plan: it is not UTF-8 text", found=str(error), next_command=again) from error
    try:
        # A plan is one line; somebody may have laid it out over many.
        document = json.loads("\n".join(lines)) if lines[0].strip() in ("", "{") else json.loads(_last(lines))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no plan: it is not JSON ({error})", next_command=again) from error
    version = document.get("plan_version") if isinstance(document, dict) else None
    if version != PLAN_VERSION or isinstance(version, bool):
        raise UsageError(
            f"{path} is no plan that this version can read",
            wanted=f"plan_version {PLAN_VERSION}",
            found="no plan_version" if version is None else f"plan_version {version!r}",
            next_command=again,
        )
    try:
        return PlanDocument.model_validate(document)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5]]
        raise UsageError(f"{path} is a damaged plan", details=lines, next_command=again) from error


def _last(lines: list[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "")


def _score(score: Score) -> dict[str, Any]:
    return {
        **{name: list(sizes) for name, sizes in vars(score.buckets).items()},
        "padding": {name: round(share, 6) for name, share in score.padding.items()},
        "programs": score.programs,
        "compile_seconds": round(score.taken.seconds, 1),
        "hbm_bytes": score.taken.hbm_bytes,
        "prefill_work": round(score.prefill_work),
        "decode_work": round(score.decode_work),
    }


def _use(use: ProgramUse) -> dict[str, Any]:
    return asdict(use) | {"padding": use.padding and round(use.padding, 6), "seconds": round(use.seconds, 1)}
