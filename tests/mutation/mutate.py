"""Break the losses on purpose and count how many breaks the tests notice.

    python tests/mutation/mutate.py --count 80 --seed 0 --jobs 2

Each mutant is one change to one file of rljax/losses, in a copy of the project: a sign flipped, an
operand or a stop_gradient dropped, min for max, a comparison or a constant shifted, the branches of
a `where` swapped. The file's own tests run first, then the properties, the closed forms and the
golden numbers; a mutant is killed by the first that fails. Prints every survivor with its line.
"""

import argparse
import ast
import concurrent.futures
import copy
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
LOSSES = pathlib.Path("rljax/losses")

# Which golden cases exercise a module; None: all of them.
GOLDENS = {
    "advantage": "ppo",
    "chunked_head": "nothing",
    "completions": "ppo or truncated",
    "controllers": "adaptive",
    "distill": "distill",
    "distill_policy": "iw_opd or minillm",
    "distill_topk": "topk or self_distillation",
    "distill_uld": "gold",
    "group_advantage": "advantages or nan_statistics",
    "importance": "grpo or rloo or self_distillation",
    "kl": "kl or ppo or grpo__grpo",
    "listwise": "nothing",
    "logprobs": "base or sft or cpo__full",
    "masked": "whiten or nan_statistics or ppo or high_entropy",
    "mean": "grpo or sft or reward",
    "multi_reward": "advantages",
    "pairwise": "dpo__ or simpo or reward",
    "policy": "grpo or ppo",
    "policy_entropy": "entropy",
    "policy_sequence": "gmpo or rloo",
    "policy_soft": "sapo or vespo or cispo",
    "preference": "dpo__",
    "preference_anchored": "dpo__",
    "preference_free": "cpo or orpo or simpo or alphapo or tpo",
    "preference_margin": "wpo or ld_alpha",
    "preference_online": "a2po or nash or xpo or online",
    "preference_sorted": "aot",
    "preference_unpaired": "kto or bco",
    "reward": "reward__",
    "reward_regression": "prm",
    "running": "bco",
    "supervised": "sft",
    "trust_region": "nothing",
    "value": "ppo",
}
# Tests of these modules stand under another's name.
TESTED_BY = {
    "chunked_head": "logprobs",
    "completions": "running",
    "distill_policy": "distill",
    "distill_topk": "distill",
    "distill_uld": "distill",
    "listwise": "reward",
    "multi_reward": "group_advantage",
    "pairwise": "preference",
    "policy_entropy": "policy",
    "policy_sequence": "policy",
    "policy_soft": "policy",
    "preference_anchored": "preference",
    "preference_free": "preference",
    "preference_margin": "preference",
    "preference_online": "preference",
    "preference_sorted": "preference",
    "preference_unpaired": "preference",
    "reward_regression": "reward",
}

SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
COMPARISONS = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
CALLS = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "exp": "expm1",
    "log1p": "log",
    "cumsum": "cumprod",
    "mean": "sum",
    "sum": "mean",
    "argmax": "argmin",
    "sort": "argsort",
}


def mutants_of(tree):
    """(line, what, function that makes the change in a copy of the tree) for every place."""
    for index, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield index, "operator", lambda n: setattr(n, "op", SWAPS[type(n.op)]())
            if isinstance(node.op, ast.Mult):
                yield index, "drop left factor", lambda n: become(n, n.right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield index, "drop minus", lambda n: become(n, n.operand)
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield (
                index,
                "comparison",
                lambda n: n.ops.__setitem__(0, COMPARISONS[type(n.ops[0])]()),
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in CALLS:
                yield index, f"{name} -> {CALLS[name]}", rename
            if name == "stop_gradient":
                yield index, "drop stop_gradient", lambda n: become(n, n.args[0])
            if name == "where" and len(node.args) == 3:
                yield index, "swap branches", swap_branches
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield index, "constant", lambda n: setattr(n, "value", n.value + 1)
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield index, "flag", lambda n: setattr(n, "value", not n.value)


def become(node, other):
    node.__class__ = other.__class__
    node.__dict__ = dict(other.__dict__)


def rename(node):
    node.func.attr = CALLS[node.func.attr]


def swap_branches(node):
    node.args[1], node.args[2] = node.args[2], node.args[1]


def in_function(tree):
    """Ids of nodes inside function bodies: signatures, docstrings and constants are left alone."""
    inside = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                # An error's text or condition is not arithmetic.
                raises = any(isinstance(n, ast.Raise) for n in ast.walk(statement))
                if not raises:
                    inside |= {id(n) for n in ast.walk(statement)}
    return inside


def choose(count, seed, only):
    """`count` mutants, spread over the modules; each is (module, line, what, source)."""
    rng, everything = random.Random(seed), []
    for path in sorted((ROOT / LOSSES).glob("*.py")):
        module = path.stem
        if module in ("__init__", "precision") or module.endswith("_test"):
            continue
        if only and module not in only:
            continue
        tree = ast.parse(path.read_text())
        nodes, inside = list(ast.walk(tree)), in_function(tree)
        places = [m for m in mutants_of(tree) if id(nodes[m[0]]) in inside]
        rng.shuffle(places)
        made = []
        for index, what, change in places:
            changed = copy.deepcopy(tree)
            node = list(ast.walk(changed))[index]
            change(node)
            source = ast.unparse(ast.fix_missing_locations(changed))
            if source != ast.unparse(tree):
                made.append((module, nodes[index].lineno, what, source))
        everything.append(made)
    picked = []
    while len(picked) < count and any(everything):
        for made in everything:
            if made and len(picked) < count:
                picked.append(made.pop())
    return picked


def run(mutant, python):
    """ "killed", by which stage, or None for a survivor."""
    module, _, _, source = mutant
    with tempfile.TemporaryDirectory() as folder:
        copy_ = pathlib.Path(folder)
        for name in ("rljax", "tests"):
            shutil.copytree(ROOT / name, copy_ / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, copy_ / name)
        (copy_ / LOSSES / f"{module}.py").write_text(source)
        tests = TESTED_BY.get(module, module)
        stages = [
            [f"{LOSSES}/{tests}_test.py"],
            ["tests/goldens_losses_test.py", "-k", GOLDENS[module]],
            [f"{LOSSES}/properties_test.py"],
            [str(p.relative_to(copy_)) for p in sorted(copy_.glob("tests/identities_*_test.py"))],
        ]
        for stage in stages:
            command = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *stage]
            done = subprocess.run(
                command, cwd=copy_, capture_output=True, text=True, timeout=1200, check=False
            )
            if done.returncode not in (0, 5):  # 5: nothing selected
                return stage[0]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--only", nargs="*", help="modules of rljax/losses")
    args = parser.parse_args()
    mutants = choose(args.count, args.seed, args.only)
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda m: run(m, sys.executable), mutants)
        for (module, line, what, _), by in zip(mutants, results):
            text = (ROOT / LOSSES / f"{module}.py").read_text().splitlines()[line - 1].strip()
            print(f"{by or 'SURVIVED':40} {module}.py:{line} {what}: {text}", flush=True)
            if by is None:
                survivors.append((module, line))
    killed = len(mutants) - len(survivors)
    print(f"{killed} of {len(mutants)} killed ({100 * killed / max(len(mutants), 1):.1f} %)")


if __name__ == "__main__":
    main()
