"""The page of a traffic plan: what the recorded requests do with each bucket, and what the choice takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..plan_document import PlanDocument, ScoreDocument, UseDocument
from ..units import duration, size
from .page import SIZES, Bar, Bars, Cell, Heatmap, Page, Section, Table, bars, heatmaps, share

_LISTS = {
    "num_batched_tokens_buckets": "of prompt tokens",
    "num_seqs_buckets": "of decoded rows",
    "decode_context_length_buckets": "of attended context",
}


def plan_page(plan: PlanDocument) -> Page:
    """Everything is in the document; reads nothing else."""
    return Page(
        title=plan.architecture,
        subtitle=f"buckets planned from {plan.requests} recorded requests",
        facts=_facts(plan),
        sections=(
            *_grid(plan),
            _padding(plan),
            _choice(plan),
            *_padding_by_bucket(plan),
            _memory(plan),
            _seconds(plan),
        ),
    )


def _facts(plan: PlanDocument) -> tuple[tuple[str, str], ...]:
    source = f"{plan.estimated_from} past compiles" if plan.estimated_from else "an assumption"
    limits = [f"{limit}{' (binding)' if limit.split()[0] in plan.binding else ''}" for limit in plan.limits]
    return (
        ("recipe", plan.recipe),
        ("target", plan.target),
        *((name, str(value)) for name, value in plan.engine.items()),
        ("servers", f"{plan.replicas}, {plan.load:.0%} busy"),
        ("programs", f"{plan.programs}, by default {plan.default.programs}"),
        ("compile", f"{duration(plan.compile_seconds)} with {plan.jobs} jobs, from {source}"),
        ("limits", ", ".join(limits) or "none given"),
    )


def _grid(plan: PlanDocument) -> list[Heatmap]:
    steps: defaultdict[str, int] = defaultdict(int)
    for use in plan.uses:
        steps[use.phase] += use.steps

    def cell(use: UseDocument) -> Cell:
        part = share(use.steps, steps[use.phase])
        pads = "never runs" if use.padding is None else f"pads {use.padding:.0%}"
        return Cell(part, f"{part:.1%}", pads, f"{use.name}: {use.steps} steps")

    return heatmaps(plan.uses, cell, "The share of the phase's steps that run each program, and its padding rows.")


def _padding(plan: PlanDocument) -> Bars:
    most = max((score.padding[name] for score in (plan, plan.default) for name in _LISTS), default=0)
    made = []
    for name, whole in _LISTS.items():
        chosen, default = plan.padding[name], plan.default.padding[name]
        text = f"{chosen:.1%} {whole}, by default {default:.1%}"
        made.append(Bar(name, share(chosen, most), text, other=share(default, most)))
    return Bars(title="Padding", note="Against the traffic; the pale bar is today's default.", bars=tuple(made))


def _padding_by_bucket(plan: PlanDocument) -> Iterator[Bars]:
    for phase, counted in SIZES.items():
        steps: defaultdict[int, int] = defaultdict(int)
        rows: defaultdict[int, float] = defaultdict(float)
        for use in plan.uses:
            if use.phase == phase:
                steps[use.size] += use.steps
                rows[use.size] += use.steps * use.size / (1 + (use.padding or 0))
        amounts = []
        for bucket in sorted(steps):
            padding = bucket * steps[bucket] - rows[bucket]
            told = f"{share(padding, rows[bucket]):.1%} in {steps[bucket]} steps" if steps[bucket] else "never runs"
            amounts.append((str(bucket), padding, told))
        note = f"By bucket of {counted}. The bar: padding rows that a bucket adds in all; the share: of its real ones."
        yield bars(f"Padding by bucket: {phase}", note, amounts)


def _choice(plan: PlanDocument) -> Section:
    def column(score: ScoreDocument) -> list[str]:
        lists = [", ".join(map(str, getattr(score, name))) or "max_model_len only" for name in _LISTS]
        amounts = [duration(score.compile_seconds), size(score.hbm_bytes)]
        pairs = (
            (score.prefill_work, plan.default.prefill_work),
            (score.decode_work, plan.default.decode_work),
        )
        works = [f"{work / default - 1:+.1%}" if default else "none" for work, default in pairs]
        return [*lists, str(score.programs), *amounts, *works]

    names = (*_LISTS, "programs", "compile", "device memory", "prefill work", "decode work")
    rows = tuple(zip(names, column(plan), column(plan.default), strict=True))
    return Table(
        title="The choice",
        note="Work is that of all recorded requests, padding included, against the default's.",
        columns=("", "chosen", "default"),
        numeric=(),
        rows=rows,
    )


def _memory(plan: PlanDocument) -> Bars:
    parts = [(name.replace("_", " "), amount) for name, amount in plan.memory.items()]
    parts.append(("programs", plan.hbm_bytes - sum(plan.memory.values())))
    source = "" if plan.estimated_from else " Programs are assumed: plan with --store to learn from past compiles."
    note = f"{size(plan.hbm_bytes)} on each rank.{source}"
    return bars("Device memory", note, [(name, amount, size(amount)) for name, amount in parts])


def _seconds(plan: PlanDocument) -> Bars:
    ordered = sorted(plan.uses, key=lambda use: (-use.seconds, use.name))
    note = f"{duration(plan.compile_seconds)} with {plan.jobs} jobs, estimated."
    return bars("Compile of each program", note, [(use.name, use.seconds, duration(use.seconds)) for use in ordered])
