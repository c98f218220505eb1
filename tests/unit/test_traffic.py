"""Request files: what is read, and an error of its own for each way to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
from neuron_aot_runtime.contract.errors import UsageError

from neuron_aot.plan.traffic import read_traffic

HEADER = "timestamp,prompt_tokens,output_tokens\n"


def write(tmp_path, text: str):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    return path


def refused(tmp_path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read_traffic(write(tmp_path, text), max_model_len=1000)
    return str(caught.value)


def test_requests_come_by_arrival_and_other_columns_are_ignored(tmp_path):
    text = "id,output_tokens,timestamp,prompt_tokens\nb,2,2023-11-16 18:15:47.5000000,20\na,1,2023-11-16 18:15:46.0000000,10\n"
    traffic = read_traffic(write(tmp_path, text), max_model_len=1000)
    assert traffic.arrivals_R.tolist() == [0.0, 1.5] and traffic.prompts_R.tolist() == [10, 20]
    assert traffic.outputs_R.tolist() == [1, 2] and (len(traffic), traffic.seconds, traffic.num_clipped) == (2, 1.5, 0)
    assert [len(half) for half in traffic.halves()] == [1, 1]


def test_seconds_are_timestamps_too_and_empty_lines_are_skipped(tmp_path):
    traffic = read_traffic(write(tmp_path, HEADER + "7,1,0\n\n9.5,3,4\n"), max_model_len=1000)
    assert np.array_equal(traffic.arrivals_R, [0, 2.5])


def test_a_rare_request_over_the_limit_counts_as_long_as_it(tmp_path):
    rows = "".join(f"{second},10,5\n" for second in range(99)) + "99,5000,5\n"
    traffic = read_traffic(write(tmp_path, HEADER + rows), max_model_len=1000)
    assert traffic.num_clipped == 1 and traffic.prompts_R.max() == 1000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (HEADER, "holds no request"),
        (HEADER + "0,10,5\n", "holds a single request"),
        ("timestamp,prompt\n0,1\n", "lacks the columns prompt_tokens, output_tokens"),
        (HEADER + "0,10,5\n1,10\n", "line 3: 2 columns are too few"),
        (HEADER + "0,10,5\n1,ten,5\n", "line 3: prompt_tokens 'ten' is not a whole number from 1 on"),
        (HEADER + "0,0,5\n1,10,5\n", "line 2: prompt_tokens '0'"),
        (HEADER + "0,10,-5\n1,10,5\n", "line 2: output_tokens '-5'"),
        (HEADER + "noon,10,5\n1,10,5\n", "line 2: timestamp 'noon' is neither a date nor seconds"),
        (HEADER + "nan,10,5\n1,10,5\n", "line 2: timestamp 'nan' is not in seconds"),
        (HEADER + "1,10,5\n-inf,10,5\n", "line 3: timestamp '-inf' is not in seconds"),
        (HEADER + "1733333333000,10,5\n1,10,5\n", "line 2: timestamp '1733333333000' is not in seconds"),
        (HEADER + "0,10,5\n1,996,5\n", "1 of 2 requests are longer than max_model_len"),
    ],
)
def test_each_wrong_file_has_its_error(tmp_path, text, words):
    message = refused(tmp_path, text)
    assert words in message and "requests.csv" in message


def test_lengths_over_the_limit_say_which_limit_would_do(tmp_path):
    assert "--max-model-len 1001" in refused(tmp_path, HEADER + "0,10,5\n1,996,5\n")


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(UsageError, match="there is no request file"):
        read_traffic(tmp_path / "absent.csv", max_model_len=10)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="is not a CSV file"):
        read_traffic(tmp_path / "binary.csv", max_model_len=10)
    with pytest.raises(UsageError, match="cannot read"):
        read_traffic(tmp_path, max_model_len=10)
