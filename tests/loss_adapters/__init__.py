"""How each golden `function` is called in rljax: names in, numbers out, and no formula in between.

An adapter takes (hyperparameters, inputs as arrays) and returns {output name: array}. Its `loss` is
what `grad_*` outputs differentiate; another objective of a gradient goes under that gradient's own
name. Adapters of several steps also take and return `state`.
"""

from tests.loss_adapters import base, distillation, grpo, online, pairs, ppo, preferences

ADAPTERS = {}
for module in (base, pairs, preferences, online, grpo, ppo, distillation):
    ADAPTERS |= module.ADAPTERS

# Golden functions that rljax cannot compute yet. This list can only shrink.
NOT_YET_COVERED: set[str] = set()
