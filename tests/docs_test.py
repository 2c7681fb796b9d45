"""Pages that are written from the code say what the code says."""

import importlib.util
import pathlib

DOCS = pathlib.Path(__file__).parents[1] / "docs"


def test_the_page_of_losses_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_losses", DOCS / "make_losses.py")
    make_losses = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_losses)
    assert (DOCS / "losses.md").read_text() == make_losses.text(), "run python docs/make_losses.py"
