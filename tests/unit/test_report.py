"""The page of a bundle and of a plan: what it shows, that it needs nothing else, and that a browser lays it out."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import loaded, serve
from commands import answer
from fake_toolchain import write_recipe
from neuron_aot_runtime.store import Provenance

from neuron_aot.report.timeline import makings, runs, timelines

SAMPLE = Path(__file__).parents[1] / "data" / "azure_llm_conv_sample.csv"
EVIL = "\"'><script>window.hacked = 1</script><img src=ADDRESS/leak onerror='window.hacked = 1'>"


class Parsed(HTMLParser):
    """What a page is made of: ``tags``, ``links`` (attributes that load something), ``text``."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.links, self.text, self._hidden = [], [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._hidden = tag == "style"
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]

    def handle_data(self, data):
        self.text += "" if self._hidden else data


@pytest.fixture
def plan(run, tmp_path):
    """A plan's file."""
    write_recipe(tmp_path, config={"max_position_embeddings": 16384}, engine={"block_size": 32})
    told = run("plan", "recipe.yaml", "--traffic", str(SAMPLE), "--max-model-len", "8192", "--json").stdout
    (tmp_path / "plan.json").write_text(told)
    return tmp_path / "plan.json"


def page(run, source: str) -> Parsed:
    path = Path(run("report", source, "--html", "out.html").stdout.strip())
    text = path.read_text()
    assert "@import" not in text and "url(" not in text
    parsed = Parsed(text)
    assert parsed.links == [] and not {"script", "link", "img", "iframe"} & set(parsed.tags)
    return parsed


def test_a_bundle(run):
    run("compile", "recipe.yaml", "--ref", "fake/demo", "--jobs", "1")
    shown = page(run, "store@fake/demo")
    bundle = answer(run("show", "store@fake/demo", "--json"))
    for word in (bundle["bundle"], "FakeForCausalLM", "prefill_s128_c256", "Grid: decode", "max_num_seqs", "KV cache"):
        assert word in shown.text
    assert shown.text.count("Compile of ") == 1 and "4 programs in" in shown.text and "(hit)" not in shown.text
    assert f"peak {bundle['programs'][0]['provenance']['peak_memory_mb']} MB" in shown.text


def test_a_bundle_whose_records_are_gone_is_still_shown(run, tmp_path):
    run("compile", "recipe.yaml", "--ref", "fake/demo", "--jobs", "1")
    for record in (tmp_path / "store" / "programs").glob("*.json"):
        record.unlink()
    shown = page(run, "store@fake/demo").text
    assert "4 programs: when they were made is not known" in shown and "no record" in shown


def test_a_plan(run, plan):
    shown = page(run, str(plan)).text
    data = json.loads(plan.read_text().splitlines()[-1])
    for name in ("num_batched_tokens_buckets", "num_seqs_buckets", "decode_context_length_buckets"):
        assert f"{data['padding'][name]:.1%}" in shown and f"by default {data['default']['padding'][name]:.1%}" in shown
    assert "Padding by bucket: prefill" in shown and all(use["name"] in shown for use in data["uses"])
    assert f"{data['programs']}, by default {data['default']['programs']}" in shown


def made(built_at: str, seconds: int, memory: int = 100) -> Provenance:
    return Provenance(built_at=built_at, lower_ms=0, generate_ms=seconds * 1000, peak_memory_mb=memory, versions={})


def test_a_pause_separates_what_was_compiled_from_what_was_found():
    records = [
        ("late", made("2026-01-02T10:00:00+00:00", 60)),
        ("early", made("2026-01-01T10:00:00+00:00", 3600)),
        # 09:00 to 10:00 is busy, so this one, which ends at 10:01, is of the same compile.
        ("beside", made("2026-01-01T10:01:00+00:00", 90)),
        ("undated", made("yesterday", 1)),
    ]
    assert [[item.name for item in run] for run in runs(makings(records))] == [["late"], ["early", "beside"]]
    latest, earlier = timelines(records)
    assert (latest.hit, earlier.hit) == (False, True) and latest.title == "Compile of 2026-01-02 09:59:00 UTC"
    first, second = earlier.spans
    assert (first.start, round(first.generate, 4)) == (0, round(3600 / 3660, 4))
    assert second.start + second.generate == pytest.approx(1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no plan: it is not JSON"),
        ("nonsense", "is no plan: it is not JSON"),
        ("[1]", "no plan_version"),
        ('{"plan_version": 2}', "plan_version 2"),
        ('{"plan_version": 1}', "is a damaged plan"),
    ],
)
def test_a_file_that_is_no_plan(run, tmp_path, content, words):
    (tmp_path / "plan.json").write_text(content)
    error = run("report", "plan.json", "--html", "out.html", code=2).stderr
    assert words in error and "neuron-aot plan RECIPE" in error and not (tmp_path / "out.html").exists()


def test_what_cannot_be_read_or_written(run, plan):
    run("report", "store@absent", "--html", "out.html", code=4)
    assert "cannot write absent/out.html" in run("report", str(plan), "--html", "absent/out.html", code=11).stderr


#: Opens the pages at a phone's width, and writes down what it sees.
WATCHER = """<!doctype html><body><script>
const seen = [];
for (const name of ["bundle", "plan"]) {
  const frame = document.createElement("iframe");
  frame.style = "width: 390px; height: 800px; border: 0";
  frame.src = `/${name}.html`;
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    const boxes = [...page.querySelectorAll("section")].map((section) => section.getBoundingClientRect());
    const bars = [...page.querySelectorAll(".track i")].map((bar) => bar.getBoundingClientRect().width);
    const cells = [...page.querySelectorAll(".cell")].map((cell) => frame.contentWindow.getComputedStyle(cell));
    seen.push({
      name, title: page.title, width: root.scrollWidth, scripts: page.scripts.length, images: page.images.length,
      hacked: frame.contentWindow.hacked ?? null, sections: boxes.length, lowest: Math.min(...boxes.map((box) => box.height)),
      bar: Math.max(...bars), colours: new Set(cells.map((style) => style.backgroundColor)).size,
    });
    document.getElementById("seen").textContent = JSON.stringify(seen);
  };
  document.body.append(frame);
}
</script><pre id="seen"></pre></body>"""


def test_a_browser_lays_both_out_on_a_phone_and_runs_nothing(run, plan, tmp_path):
    pages = {"/watch.html": WATCHER}
    with serve(pages) as (address, asked):
        evil = EVIL.replace("ADDRESS", address)
        data = json.loads(plan.read_text().splitlines()[-1])
        plan.write_text(json.dumps(data | {"recipe": evil, "architecture": evil, "target": evil, "limits": [evil]}))
        write_recipe(tmp_path, config={"architectures": [evil]})
        run("compile", "recipe.yaml", "--ref", "fake/evil", "--jobs", "1")
        for name, source in (("bundle", "store@fake/evil"), ("plan", str(plan))):
            assert page(run, source).text.count(evil) >= 2
            pages[f"/{name}.html"] = Path("out.html").read_text()
        document = loaded(f"{address}/watch.html", tmp_path / "profile")
    seen = json.loads(unescape(re.search(r'<pre id="seen">(.*)</pre>', document)[1]))
    assert {item["name"] for item in seen} == {"bundle", "plan"}
    for item in seen:
        assert item["title"].startswith(evil) and item["hacked"] is None and item["scripts"] == item["images"] == 0
        assert item["width"] <= 390, "nothing but tables in their boxes is wider than the screen"
        assert item["sections"] >= 6 and item["lowest"] > 40 and item["bar"] > 50
    assert max(item["colours"] for item in seen) > 1, "the plan's; the fake compiler may take equally long for all"
    assert not [path for path in asked if "leak" in path]
