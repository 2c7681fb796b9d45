"""Log-probabilities, statistics, supervised and reward losses."""

import jax.numpy as jnp

from rljax.losses import (
    controllers,
    group_advantage,
    kl,
    logprobs,
    masked,
    mean,
    reward,
    reward_regression,
    supervised,
)


def shifted(logits, labels):
    """(log-probs, entropies, mask) of labels[:, 1:] under logits[:, :-1]; -100 is not scored."""
    labels = labels[:, 1:]
    mask = labels != -100
    return *logprobs.token_logprobs_from_logits(logits[:, :-1], labels, mask=mask), mask


def token_loss(hp, loss, mask):
    """A token mean, or over the peer's own count of items."""
    total = mean.token_mean(loss, mask)
    items = hp.get("num_items_in_batch")
    return total if items is None else total._replace(weight=jnp.asarray(items, loss.dtype))


def selective_log_softmax(hp, x):
    if x["index"].ndim == 3:
        logp = logprobs.logprobs_at(
            logprobs.log_softmax(x["logits"], temperature=hp["temperature"]), x["index"]
        )
    else:
        logits = x["logits"]
        if hp.get("input_dtype") == "bfloat16":
            logits = logits.astype(jnp.bfloat16)
        mask = x.get("row_mask")
        if mask is not None and mask.ndim == 1:
            mask = jnp.broadcast_to(mask[:, None], x["index"].shape)
        logp, _ = logprobs.token_logprobs_from_logits(
            logits, x["index"], mask=mask, temperature=hp["temperature"]
        )
    out = {"log_probs": logp}
    if "cotangent" in x:
        out["grad_logits_of_sum_cotangent_times_log_probs"] = (x["cotangent"] * logp).sum()
    return out


def selective_log_softmax_and_entropy(hp, x):
    logp, entropy = logprobs.token_logprobs_from_logits(
        x["logits"], x["index"], temperature=hp["temperature"]
    )
    return {"log_probs": logp, "entropy": entropy}


def entropy_from_logits(hp, x):
    entropy = logprobs.entropy_of(logprobs.log_softmax(x["logits"]))
    return {"entropy": entropy, "grad_logits_of_sum": entropy.sum()}


def sequence_logps(hp, x):
    logp, _, mask = shifted(x["logits"], x["labels"])
    out = logprobs.sequence_logprobs(logp, mask, average=hp["average_log_prob"])
    return {
        "sequence_logps": out,
        "grad_logits_of_sum_cotangent": (x["cotangent"] * out).sum(),
    }


def masked_whiten(hp, x):
    v, m = x["values"], x["mask"]
    white = masked.whiten(v, m)
    return {
        "masked_mean": masked.mean(v, m),
        "masked_mean_axis1": masked.mean(v, m, axis=1),
        "masked_var_ddof1": masked.var(v, m, ddof=1),
        "masked_var_ddof0": masked.var(v, m, ddof=0),
        "whitened_times_mask": white,
        "whitened_keep_mean_times_mask": masked.whiten(v, m, shift_mean=False),
        "grad_values_of_sum_cotangent_whitened_mask": (x["cotangent"] * white).sum(),
    }


def whiten_unmasked(hp, x):
    v, ones = x["values"], jnp.ones(x["values"].shape, bool)
    return {
        f"whiten_ddof{ddof}{name}": masked.whiten(v, ones, ddof=ddof, shift_mean=shift)
        for ddof in (0, 1)
        for name, shift in (("", True), ("_keep_mean", False))
    }


def nan_statistics(hp, x):
    v = x["x"]
    known = group_advantage.scored(v)
    low, high = masked.extrema(v, known)
    return {
        "nanstd_all": masked.std(v, known, ddof=1),
        # A row with fewer than two values has no deviation: the peer says NaN, we say 0.
        "nanstd_dim1": masked.std(v, known, ddof=1, axis=1),
        "nanmean_dim1": masked.mean(v, known, axis=1),
        "nanmin": low,
        "nanmax": high,
    }


def kl_estimators(hp, x):
    lp, ref = x["logprobs"], x["ref_logprobs"]
    out = {
        "k1": kl.k1(lp, ref),
        "k2": kl.k2(lp, ref),
        "k3": kl.k3(lp, ref),
        "abs": kl.absolute(lp, ref),
    }
    return out | {f"grad_{k}_of_sum": out[k].sum() for k in ("k1", "k2", "k3")}


def kl_full(hp, x):
    return {"kl": kl.full(x["log_probs"], x["ref_log_probs"])}


def adaptive_kl(hp, x):
    coef, seen = hp["init_kl_coef"], []
    for value in x["current_kl"]:
        coef = controllers.adaptive_kl(
            coef, value, target=hp["target"], horizon=hp["horizon"], batch=hp["n_steps"]
        )
        seen.append(coef)
    return {"kl_coef_after_each_update": jnp.stack(seen)}


def sft_nll(hp, x):
    logp, _, mask = shifted(x["logits"], x["labels"])
    return {"loss": token_loss(hp, supervised.nll(logp), mask).value()}


def sft_dft(hp, x):
    logp, _, mask = shifted(x["logits"], x["labels"])
    return {"loss": token_loss(hp, supervised.dft(logp), mask).value()}


def sft_label_smoothing(hp, x):
    logp, _, mask = shifted(x["logits"], x["labels"])
    over_vocabulary = logprobs.log_softmax(x["logits"][:, :-1]).mean(-1)
    loss = supervised.label_smoothed_nll(
        logp, over_vocabulary, label_smoothing=hp["label_smoothing_factor"]
    )
    return {"loss": token_loss(hp, loss, mask).value()}


def reward_pairwise(hp, x):
    loss, stats = reward.bradley_terry(
        chosen=x["rewards_chosen"],
        rejected=x["rewards_rejected"],
        margin=x.get("margin"),
        center_coef=hp["center_rewards_coefficient"] or 0.0,
    )
    return {
        "loss": mean.row_mean(loss).value(),
        "accuracy": stats["accuracy"].mean(),
        "margin": stats["margin"].mean(),
    }


def prm(hp, x):
    loss, stats = reward_regression.step_classification(x["logits"], x["labels"])
    known = x["labels"] != -100
    return {
        "loss": token_loss(hp, loss, known).value(),
        "accuracy": mean.token_mean(stats["accuracy"], known).value(),
    }


ADAPTERS = {
    "base/selective_log_softmax": selective_log_softmax,
    "base/selective_log_softmax_and_entropy": selective_log_softmax_and_entropy,
    "base/entropy_from_logits": entropy_from_logits,
    "base/sequence_logps": sequence_logps,
    "base/masked_whiten": masked_whiten,
    "base/whiten_unmasked": whiten_unmasked,
    "base/nan_statistics": nan_statistics,
    "base/kl_estimators": kl_estimators,
    "base/kl_full": kl_full,
    "base/adaptive_kl": adaptive_kl,
    "sft/nll": sft_nll,
    "sft/dft": sft_dft,
    "sft/label_smoothing": sft_label_smoothing,
    "reward/pairwise": reward_pairwise,
    "prm/token_classification": prm,
}
