"""Imports point one way: losses know no model, models no training, training no command line."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1] / "rljax"
MAY_IMPORT = {
    "config": set(),
    "sharding": set(),
    "losses": set(),
    "data": set(),
    "rewards": set(),
    "models": {"sharding"},
    "rollout": {"losses", "models", "sharding"},
    "train": {"config", "sharding", "losses", "data", "rewards", "models", "rollout"},
    "cli": {"config", "sharding", "losses", "data", "rewards", "models", "rollout", "train"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("rljax."))


def test_imports_point_one_way():
    wrong = [
        f"{path.relative_to(ROOT)} imports rljax.{name}"
        for path in ROOT.rglob("*.py")
        for part in [path.relative_to(ROOT).parts[0].removesuffix(".py").removesuffix("_test")]
        if part != "__init__"
        for name in imported(path)
        if name not in {part, "__version__"} and name not in MAY_IMPORT[part]
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_files_that_define_modules_import_flax():
    users = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if any(
            line.startswith(("import flax", "from flax")) for line in path.read_text().splitlines()
        )
    }
    assert users <= {"models/layers.py", "models/decoder.py", "models/heads.py"}
