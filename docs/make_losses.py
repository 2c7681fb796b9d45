"""Writes docs/losses.md from the docstrings of rljax.losses, and docs/pair_losses.svg.

    python docs/make_losses.py            # write both
    python docs/make_losses.py --check    # exit with 1 if losses.md is out of date

The table of choices is kept by hand in docs/losses_choices.md.
"""

import argparse
import importlib
import inspect
import pathlib
import re
import sys

import jax.numpy as jnp
import numpy as np

from rljax import losses

HERE = pathlib.Path(__file__).parent
SECTIONS = {
    "Log-probabilities, masks, means": ["logprobs", "mean", "masked", "kl", "importance"],
    "Preference pairs": [
        "preference",
        "preference_anchored",
        "preference_margin",
        "preference_sorted",
        "preference_free",
        "preference_online",
        "pairwise",
    ],
    "Single completions and lists": ["preference_unpaired", "listwise"],
    "Policy gradient": [
        "policy",
        "policy_soft",
        "policy_entropy",
        "policy_sequence",
        "trust_region",
    ],
    "Advantages": ["advantage", "group_advantage", "multi_reward", "running", "completions"],
    "Critic, reward models, controllers": ["value", "reward", "reward_regression", "controllers"],
    "Supervised and distillation": [
        "supervised",
        "distill",
        "distill_topk",
        "distill_policy",
        "distill_uld",
    ],
}
# Plumbing that other modules of the package import.
NOT_FOR_CALLERS = {"prepare", "ratio_at", "indicator", "log_ratios", "score", "dot", "log_mixture"}


def functions(module):
    """Public functions that a module defines, in the order of its source."""
    found = []
    for name, thing in vars(module).items():
        plain = inspect.unwrap(thing)
        own = inspect.isfunction(plain) and plain.__module__ == module.__name__
        if own and not name.startswith("_") and name not in NOT_FOR_CALLERS and plain.__doc__:
            found.append((name, plain))
    return sorted(found, key=lambda pair: pair[1].__code__.co_firstlineno)


def signature(name, function):
    parts, star = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        prefix = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        parts.append(f"{prefix}{parameter.name}{default}")
    return f"{name}({', '.join(parts)})"


def paragraphs(doc):
    """A docstring as markdown: its example fenced."""
    text, _, example = inspect.cleandoc(doc).partition("\n>>>")
    out = text.strip()
    if example:
        out += f"\n\n```python\n>>>{example.rstrip()}\n```"
    return out


def text():
    lines = [
        "# Losses",
        "",
        "<!-- Written by docs/make_losses.py from the docstrings; do not edit. -->",
        "",
        inspect.cleandoc(losses.__doc__),
        "",
        "![Pair losses against the margin](pair_losses.svg)",
        "",
    ]
    exported = {id(inspect.unwrap(getattr(losses, name))) for name in losses.__all__}
    modules = {
        name: importlib.import_module(f"rljax.losses.{name}")
        for names in SECTIONS.values()
        for name in names
    }
    lines += ["| what | functions |", "|---|---|"]
    for title, names in SECTIONS.items():
        links = [f"[`{f}`](#{name}{f})" for name in names for f, _ in functions(modules[name])]
        lines.append(f"| {title} | {' · '.join(links)} |")
    lines += ["", (HERE / "losses_choices.md").read_text().strip(), ""]
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"### rljax.losses.{name}", "", inspect.cleandoc(modules[name].__doc__), ""]
            for f, function in functions(modules[name]):
                where = "" if id(function) in exported else f" (`rljax.losses.{name}`)"
                lines += [
                    f'<a id="{name}{f}"></a>',
                    f"#### `{signature(f, function)}`{where}",
                    "",
                    paragraphs(function.__doc__),
                    "",
                ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def plot(path):
    """Every loss of a pair against its margin β h, and the score functions of f-DPO."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rljax"
    import matplotlib.pyplot as plt

    from rljax.losses import pairwise, preference

    x = jnp.linspace(-4, 4, 201)
    zero = jnp.zeros_like(x)
    pair = {"chosen": x, "rejected": zero, "ref_chosen": zero, "ref_rejected": zero, "beta": 1.0}
    curves = {name: preference.gpo(**pair, function=name)[0] for name in preference.GPO_FUNCTIONS}
    curves["DiscoPOP, τ 0.5"] = preference.discopop(**pair, tau=0.5)[0]
    curves["robust, ε 0.1"] = preference.robust_dpo(**pair, label_smoothing=0.1)[0]
    curves["cDPO, ε 0.1"] = preference.dpo(**pair, label_smoothing=0.1)[0]
    scores = {name: pairwise.score(x, name) for name in ("reverse_kl", "forward_kl", "js", "alpha")}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    panels = (
        (axes[0], curves, "loss of a pair", "margin β h", (-0.3, 6)),
        (axes[1], scores, "score of a response", "log π/ref", (-6, 4)),
    )
    for axis, lines, title, label, limits in panels:
        for name, y in lines.items():
            axis.plot(np.asarray(x), np.asarray(y), label=name)
        axis.set(title=title, xlabel=label, ylim=limits)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = HERE / "losses.md"
    if args.check:
        if path.read_text() != text():
            sys.exit("docs/losses.md is out of date: run python docs/make_losses.py")
        return
    path.write_text(text())
    plot(HERE / "pair_losses.svg")


if __name__ == "__main__":
    main()
