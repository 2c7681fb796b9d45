"""What the README shows is run."""

import pathlib
import re

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


def test_the_ten_lines_run_and_print_a_gradient(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code, {})
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d+", capsys.readouterr().out)]
    assert len(numbers) == 2 and all(x < 0 for x in numbers)


def test_every_config_and_folder_that_it_names_exists():
    root = pathlib.Path(__file__).parents[1]
    for name in re.findall(r"`(configs/[\w/.-]+)`", README):
        assert (root / name).is_file(), name
    for name in re.findall(
        r"^(rljax/\w+|configs|launch|notebooks|docs|tests)  ", README, re.MULTILINE
    ):
        assert (root / name).is_dir(), name
