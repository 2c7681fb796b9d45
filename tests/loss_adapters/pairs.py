"""The DPO family: `DPOTrainer` of TRL 1.16, and what older versions had."""

import jax.numpy as jnp

from rljax.losses import (
    mean,
    preference,
    preference_anchored,
    preference_margin,
    preference_sorted,
    running,
    supervised,
)
from rljax.losses.logprobs import sequence_logprobs
from tests.loss_adapters.base import shifted

DIVERGENCES = {
    "reverse_kl": "reverse_kl",
    "forward_kl": "forward_kl",
    "js_divergence": "js",
    "alpha_divergence": "alpha",
}


def summed(x):
    """The four log-probabilities of whole completions, and the two lengths if known."""
    if "policy_chosen_logps" in x:
        names = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
        values, lengths = [x[f"{name}_logps"] for name in names], None
    else:
        values = [
            sequence_logprobs(x[f"{who}_{side}_token_logps"], x[f"{side}_mask"])
            for who in ("policy", "ref")
            for side in ("chosen", "rejected")
        ]
        lengths = [x[f"{side}_mask"].sum(1) for side in ("chosen", "rejected")]
    ours = dict(zip(("chosen", "rejected", "ref_chosen", "ref_rejected"), values))
    return ours, lengths


def divergence(hp):
    alpha = hp.get("f_alpha_divergence_coef", 0.5)
    if "alpha_divergence_coef" in hp:  # TRL up to 0.28
        alpha = 1 - hp["alpha_divergence_coef"]
    name = DIVERGENCES[hp.get("f_divergence_type", "reverse_kl")]
    return {"divergence": name, "alpha": alpha}


def pair_loss(loss_type, hp, pairs, lengths):
    beta = {"beta": hp["beta"]}
    smoothing = {"label_smoothing": hp.get("label_smoothing", 0.0)}
    f = divergence(hp)
    if loss_type == "sigmoid":
        return preference.dpo(**pairs, **beta, **smoothing, **f)
    if loss_type == "hinge":
        return preference.hinge(**pairs, **beta, **f)
    if loss_type in ("ipo", "sigmoid_norm"):
        length = dict(zip(("chosen_length", "rejected_length"), lengths))
        loss = {"ipo": preference.ipo, "sigmoid_norm": preference.length_normalized_dpo}[loss_type]
        return loss(**pairs, **length, **beta, **f)
    if loss_type == "robust":
        return preference.robust_dpo(**pairs, **beta, **smoothing, **f)
    if loss_type == "exo_pair":
        return preference.exo(**pairs, **beta, **smoothing, **f)
    if loss_type == "discopop":
        return preference.discopop(**pairs, **beta, tau=hp.get("discopop_tau", 0.05), **f)
    if loss_type == "aot":
        return preference_sorted.aot(**pairs, **beta, **smoothing)
    if loss_type == "aot_unpaired":
        return preference_sorted.aot_unpaired(**pairs, **beta, **smoothing)
    return getattr(preference_anchored, loss_type)(**pairs, **beta)


def outputs(loss, stats):
    return {
        "per_sequence_loss": loss,
        "chosen_rewards": stats["rewards/chosen"],
        "rejected_rewards": stats["rewards/rejected"],
        "reward_accuracy": stats["rewards/accuracies"].mean(),
        "reward_margin": stats["rewards/margins"].mean(),
        "loss": mean.row_mean(loss).value(),
    }


def one_loss(hp, x):
    return outputs(*pair_loss(hp["loss_type"], hp, *summed(x)))


def reference_free(hp, x):
    pairs, lengths = summed(x)
    zero = jnp.zeros_like(pairs["chosen"])
    free = pairs | {"ref_chosen": zero, "ref_rejected": zero}
    loss, _ = pair_loss(hp["loss_type"], hp, free, lengths)
    # The peer's logged rewards still subtract the reference.
    _, stats = pair_loss(hp["loss_type"], hp, pairs, lengths)
    return outputs(loss, stats)


def ld_alpha(hp, x):
    sides = ("chosen", "rejected")
    masks = {f"{side}_mask": x[f"{side}_mask"] for side in sides}
    policy, ref = (
        preference_margin.ld_logprobs(
            **{side: x[f"{who}_{side}_token_logps"] for side in sides},
            **masks,
            alpha=hp["ld_alpha"],
        )
        for who in ("policy", "ref")
    )
    names = ("chosen", "rejected", "ref_chosen", "ref_rejected")
    pairs = dict(zip(names, (*policy, *ref)))
    return outputs(*pair_loss(hp["loss_type"], hp, pairs, None))


def wpo(hp, x):
    loss, stats = pair_loss(hp["loss_type"], hp, *summed(x))
    weights = {
        f"{side}_weight": preference_margin.wpo_weights(
            x[f"policy_{side}_token_logps"], x[f"{side}_log_sum_sq_probs"], x[f"{side}_mask"]
        )
        for side in ("chosen", "rejected")
    }
    return outputs(preference_margin.wpo(loss, **weights), stats)


def chosen_nll(x):
    return mean.token_mean(supervised.nll(x["policy_chosen_token_logps"]), x["chosen_mask"])


def combination(hp, x):
    pairs, lengths = summed(x)
    kinds = hp["loss_type"]
    kinds = [kinds] if isinstance(kinds, str) else kinds
    weights = hp.get("loss_weights") or [1.0] * len(kinds)
    terms = [
        (weight, chosen_nll(x))
        if kind == "sft"
        else (weight, mean.row_mean(pair_loss(kind, hp, pairs, lengths)[0]))
        for kind, weight in zip(kinds, weights)
    ]
    _, stats = preference.dpo(**pairs, beta=hp["beta"])
    out = outputs(stats["rewards/margins"], stats)
    del out["per_sequence_loss"]
    return out | {"loss": mean.weighted_sum(*terms)}


def rpo_full(hp, x):
    """From logits over prompt and completion: rows are chosen, then rejected."""
    prompt = jnp.full(x["prompt_ids"].shape, -100)
    average = hp["loss_type"] == "ipo"
    n = x["prompt_ids"].shape[0]
    out, tokens = {}, {}
    for side, logits in (("chosen", x["logits"][:n]), ("rejected", x["logits"][n:])):
        labels = jnp.where(x[f"{side}_mask"] != 0, x[f"{side}_ids"], -100)
        logp, _, mask = shifted(logits, jnp.concatenate([prompt, labels], 1))
        out[side] = sequence_logprobs(logp, mask, average=average)
        tokens[side] = mean.token_mean(supervised.nll(logp), mask)
    pairs = out | {f"ref_{side}": x[f"ref_{side}_logps"] for side in out}
    if average:  # the references are given as averages too
        loss, _ = preference.ipo(**pairs, beta=hp["beta"])
    else:
        loss, _ = pair_loss(hp["loss_type"], hp, pairs, None)
    return {
        "loss": mean.weighted_sum((1, mean.row_mean(loss)), (hp["rpo_alpha"], tokens["chosen"])),
        "chosen_logps": out["chosen"],
        "rejected_logps": out["rejected"],
        "nll_loss": tokens["chosen"].value(),
    }


def bco_pair_running_delta(hp, x, state):
    """One sample per step: the mean reward of the batch's completions, before the loss."""
    pairs, _ = summed(x)
    _, stats = preference_anchored.bco_pair(**pairs, beta=hp["beta"])
    rewards = jnp.concatenate([stats["rewards/chosen"], stats["rewards/rejected"]])
    state = running.update(state or running.empty(), rewards.mean())
    loss, stats = preference_anchored.bco_pair(**pairs, beta=hp["beta"], delta=state.mean)
    return outputs(loss, stats) | {"delta_used": state.mean}, state


def kto_pair(hp, x):
    loss, _ = preference_anchored.kto_pair(**summed(x)[0], beta=hp["beta"])
    return {"loss": mean.row_mean(loss).value()}


SAME = (
    "sigmoid",
    "hinge",
    "ipo",
    "robust",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sigmoid_norm",
    "sigmoid_label_smoothing",
    "f_forward_kl",
    "f_js_divergence",
    "f_alpha_divergence",
    "f_alpha_divergence_old",
)

ADAPTERS = {f"dpo/{name}": one_loss for name in SAME} | {
    "dpo/reference_free": reference_free,
    "dpo/ld_alpha": ld_alpha,
    "dpo/wpo_weighting": wpo,
    "dpo/sft": combination,
    "dpo/combination": combination,
    "dpo/rpo_full": rpo_full,
    "dpo/bco_pair_running_delta": bco_pair_running_delta,
    "dpo/kto_pair": kto_pair,
}
