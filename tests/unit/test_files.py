"""Files that a user asked for: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from neuron_aot_runtime.contract.errors import RecipeError, StorageFaultError, UsageError

from neuron_aot.files import write_text


@pytest.mark.parametrize("path", [".", "..", "/", "", "below"])
def test_a_directory_is_no_file(tmp_path, monkeypatch, path):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is a directory"):
        write_text(Path(path), "text")
    assert [item.name for item in tmp_path.iterdir()] == ["below"]


def test_what_was_there_stays_when_the_new_text_is_refused(tmp_path):
    def refuse(draft: Path) -> None:
        raise RecipeError(draft.read_text())

    path = tmp_path / "recipe.yaml"
    write_text(path, "old")
    with pytest.raises(RecipeError, match="new"):
        write_text(path, "new", check=refuse)
    with pytest.raises(StorageFaultError, match="cannot write"):
        write_text(tmp_path / "nowhere" / "recipe.yaml", "new")
    assert path.read_text() == "old" and [item.name for item in tmp_path.iterdir()] == ["recipe.yaml"]
