import gzip
import json
import os
import pathlib

import pytest

from rljax.data import encode, prepare, records, rows

ROWS = [{"prompt": f"p{i} é", "n": i, "meta": {"a": [1, None]}, "empty": None} for i in range(11)]


def jsonl(path, lines):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(
            line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines
        )
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_jsonl_is_read_in_order_blank_lines_apart(tmp_path, name):
    got = records.read(jsonl(tmp_path / name, [*ROWS[:2], "\n", *ROWS[2:]]))
    assert list(got) == ROWS


def test_array_records_give_back_every_row_in_order(tmp_path):
    source = jsonl(tmp_path / "rows.jsonl", ROWS)
    assert prepare.prepare(str(source), str(tmp_path / "out")) == len(ROWS)
    got = records.read(tmp_path / "out")
    assert list(got) == ROWS
    assert got[3] == ROWS[3]
    with pytest.raises(ValueError, match="not 'test'"):
        records.read(tmp_path / "out", split="test")


def test_a_datasets_folder_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    flat = [{"prompt": row["prompt"], "n": row["n"]} for row in ROWS]
    datasets.Dataset.from_list(flat).save_to_disk(str(tmp_path / "disk"))
    assert list(records.read(tmp_path / "disk")) == flat


def test_columns_that_differ_between_rows_are_named(tmp_path):
    source = jsonl(tmp_path / "rows.jsonl", [{"a": "x"}, {"a": "x", "b": "y"}])
    with pytest.raises(ValueError, match="row 1: column 'b' is missing"):
        prepare.prepare(str(source), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "holds no rows"),
        (['{"a": 1}\n', "{\n"], "line 2 is not valid JSON"),
        (["[1]\n"], "line 1 is a list"),
    ],
)
def test_a_bad_file_is_named(tmp_path, lines, says):
    path = jsonl(tmp_path / "rows.jsonl", lines)
    with pytest.raises(ValueError, match=f"{path.name}.*{says}"):
        records.read(path)


def test_a_folder_that_is_no_dataset_is_named(tmp_path):
    with pytest.raises(ValueError, match="not a dataset; wants"):
        records.read(tmp_path)
    with pytest.raises(ValueError, match="no dataset at"):
        records.read(tmp_path / "nothing")


DATA = pathlib.Path(
    os.environ.get("RLJAX_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data")
)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA} (RLJAX_DATA)")
def test_real_rows_of_hh_and_gsm8k_are_understood(tmp_path):
    source = DATA / "hh-rlhf" / "harmless-base-test.jsonl.gz"
    count = prepare.prepare(str(source), str(tmp_path / "hh"), format="hh")
    raw, ready = records.read(source), records.read(tmp_path / "hh")
    assert count == len(raw) == len(ready)
    for a, b in zip(raw, ready):
        assert b["prompt"][-1]["role"] == "user"
        assert a["chosen"].rstrip().endswith(b["chosen"][0]["content"])
        assert a["rejected"].rstrip().endswith(b["rejected"][0]["content"])
    gsm = records.read(DATA / "gsm8k" / "test.jsonl")
    assert all(
        rows.normalise(r, "prompt", where="", rename={"prompt": "question"}).prompt for r in gsm
    )
    assert encode.cut_left([1, 2, 3], 2, 1) == [1, 3]
