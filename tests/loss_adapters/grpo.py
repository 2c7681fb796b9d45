"""The GRPO family: surrogates, aggregation, corrections, advantages."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import (
    completions,
    controllers,
    group_advantage,
    importance,
    kl,
    mean,
    multi_reward,
    policy,
    policy_entropy,
    policy_sequence,
    policy_soft,
)
from rljax.losses.logprobs import sequence_logprobs, token_logprobs_from_logits


def surrogate(hp, x, mask, old):
    common = {
        "logps": x["token_logps"],
        "old_logps": old,
        "advantages": x["advantages"],
        "mask": mask,
    }
    level = {"level": hp.get("importance_sampling_level", "token")}
    kind = hp["loss_type"]
    if kind == "cispo":
        return policy_soft.cispo(**common, **level, max_ratio=hp["epsilon_high"])
    if kind == "sapo":
        names = {
            "temperature_pos": "sapo_temperature_pos",
            "temperature_neg": "sapo_temperature_neg",
        }
        temperatures = {ours: hp[name] for ours, name in names.items() if name in hp}
        return policy_soft.sapo(**common, **level, **temperatures)
    if kind == "vespo":
        names = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")
        shape = {name: hp[f"vespo_{name}"] for name in names}
        return policy_soft.vespo(
            **common, **shape, sampler_ratio=x.get("importance_sampling_ratio")
        )
    return policy.grpo(
        **common,
        **level,
        clip=hp["epsilon_low"],
        clip_high=hp["epsilon_high"],
        max_ratio=hp.get("delta"),
    )


def aggregate(hp, loss, mask):
    """The peer's mean, over the accumulation window it belongs to."""
    kind = hp["loss_type"]
    window = hp.get("gradient_accumulation_steps", 1) if hp.get("mode") == "train" else 1
    if kind in ("grpo", "sapo"):
        out = mean.sequence_mean(loss, mask, count_empty_rows=True)
    elif kind == "bnpo" or ("num_items_in_batch" not in hp and kind == "dapo"):
        out = mean.token_mean(loss, mask)
    elif kind == "dr_grpo":
        length = hp["max_completion_length"]
        out = mean.constant_length(loss, mask, length=length, count_empty_rows=True)
    elif kind == "luspo":
        out = mean.sequence_sum(loss, mask, count_empty_rows=True)
    else:
        items = max(hp["num_items_in_batch"], 1) / hp.get("steps_per_generation", 1)
        out = mean.token_mean(loss, mask)._replace(weight=jnp.asarray(items, loss.dtype))
    return out._replace(weight=out.weight * window)


def reference_kl(hp, x, mask, old):
    if not hp.get("beta"):
        return None
    if not hp.get("use_bias_correction_kl", True):
        return kl.k3(x["token_logps"], x["ref_token_logps"])
    if hp.get("importance_sampling_level", "token") == "token":
        ratio = importance.token_ratio(x["token_logps"], old, mask)
    else:
        ratio = importance.sequence_ratio(x["token_logps"], old, mask)
        ratio = jnp.broadcast_to(ratio[:, None], mask.shape)
    return kl.off_policy_k3(x["token_logps"], x["ref_token_logps"], ratio)


def full_loss(hp, x):
    mask = x["mask"] * x.get("tool_mask", 1)
    old = x.get("old_token_logps", jax.lax.stop_gradient(x["token_logps"]))
    out, weights = {}, []
    if hp.get("off_policy_mask_threshold") is not None:
        keep = importance.keep_on_policy(
            advantages=x["advantages"],
            logps=x["token_logps"],
            sampler_logps=x.get("sampling_token_logps", old),
            mask=mask,
            threshold=hp["off_policy_mask_threshold"],
        )
        weights.append(keep)
        out["off_policy_mask"] = keep[:, None]
    chosen = mask
    if hp.get("top_entropy_quantile", 1.0) < 1:
        top = hp["top_entropy_quantile"]
        chosen = policy_entropy.high_entropy(x["token_entropies"], mask, top=top)
        weights.append(chosen)
        out["entropy_mask"] = chosen
    if "importance_sampling_ratio" in x and hp["loss_type"] != "vespo":
        ratio = x["importance_sampling_ratio"]
        weights.append(ratio[:, 0] if ratio.shape[1] == 1 else ratio)
    loss, stats = surrogate(hp, x, mask, old)
    for weight in weights:
        loss = policy.regularize(loss, mask=mask, weight=weight)
    penalty = reference_kl(hp, x, mask, old)
    loss = policy.regularize(loss, mask=mask, kl=penalty, kl_coef=hp.get("beta", 0.0))
    total = aggregate(hp, loss, mask)
    terms = [(1, total)]
    if "entropy_coef" in hp:
        terms.append((-hp["entropy_coef"], mean.token_mean(x["token_entropies"], chosen)))
    metrics = {k: average(v, mask) for k, v in stats.items()}
    metrics["policy_loss"] = total.value()
    if penalty is not None:
        metrics["kl"] = mean.token_mean(penalty, mask).value()
        out["per_token_kl_times_mask"] = jnp.where(mask != 0, penalty, 0.0)
    return out | {
        "loss": mean.weighted_sum(*terms),
        "per_token_loss_times_mask": loss,
        "metrics": metrics,
    }


def average(stat, mask):
    return mean.row_mean(stat).value() if stat.ndim == 1 else mean.token_mean(stat, mask).value()


def gspo_token(hp, x):
    out = full_loss(hp | {"beta": 0.0}, x)
    return {k: out[k] for k in ("loss", "per_token_loss_times_mask")}


def gmpo(hp, x):
    old = x.get("old_token_logps", jax.lax.stop_gradient(x["token_logps"]))
    loss, stats = policy_sequence.gmpo(
        logps=x["token_logps"], old_logps=old, advantages=x["advantages"], mask=x["mask"],
        clip=hp["epsilon_low"], clip_high=hp["epsilon_high"],
    )  # fmt: skip
    metrics = {k: average(v, x["mask"]) for k, v in stats.items()}
    terms, out = [(1, mean.row_mean(loss))], {}
    if hp["beta"]:
        penalty = kl.k3(x["token_logps"], x["ref_token_logps"])
        per_row = mean.sequence_mean(penalty, x["mask"], count_empty_rows=True)
        terms.append((hp["beta"], per_row))
        metrics["kl"] = mean.token_mean(penalty, x["mask"]).value()
        out["per_token_kl_times_mask"] = jnp.where(x["mask"] != 0, penalty, 0.0)
    else:
        out["per_sequence_loss"] = loss
    return out | {"loss": mean.weighted_sum(*terms), "metrics": metrics}


def adaptive_entropy(hp, x, state):
    """One microbatch; state: coefficient, the one in force, entropies of the open window."""
    coef, used, window = state or first_entropy_state(hp)
    zeros = jnp.zeros_like(x["token_logps"])
    old = jax.lax.stop_gradient(x["token_logps"])
    loss, _ = surrogate(
        {"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2}, x, x["mask"], old
    )
    steps = hp["gradient_accumulation_steps"]
    total = mean.sequence_mean(loss + zeros, x["mask"], count_empty_rows=True)
    entropy = mean.token_mean(x["token_entropies"], x["mask"])
    each = [(1, total), (-used, entropy)]
    loss = mean.weighted_sum(*((c, m._replace(weight=m.weight * steps)) for c, m in each))
    window = entropy if window is None else window + entropy
    if x["end_of_optimizer_step"]:
        coef, used = controllers.adaptive_entropy(
            coef,
            window.value(),
            target=hp["entropy_target"],
            delta=hp["entropy_coef_delta"],
            low=hp["entropy_coef_min"],
            high=hp["entropy_coef_max"],
        )
        window = None
    return {"loss": loss, "entropy_coef_after": coef}, (coef, used, window)


def first_entropy_state(hp):
    under = hp["initial_last_entropy"] <= hp["entropy_target"]
    return hp["entropy_coef"], hp["entropy_coef"] if under else 0.0, None


def high_entropy_mask(hp, x):
    return {"mask": policy_entropy.high_entropy(x["entropies"], x["mask"], top=1 - hp["threshold"])}


def off_policy_mask(hp, x):
    keep = importance.keep_on_policy(
        advantages=x["advantages"][:, 0],
        logps=x["token_logps"],
        sampler_logps=x["sampling_token_logps"],
        mask=x["mask"],
        threshold=hp["threshold"],
    )
    return {"keep": keep[:, None]}


def vespo_gamma_weights(hp, x):
    log_ratio = importance.log_sequence_weight(
        x["log_ratio"],
        jnp.zeros_like(x["log_ratio"]),
        x["mask"],
        x.get("importance_sampling_ratio"),
    )
    phi = policy_soft.gamma_weight(log_ratio=log_ratio, advantages=x["advantages"][:, 0], **hp)
    return {"phi": phi[:, None]}


def vllm_importance_ratio(hp, x):
    level, action = hp["mode"].split("_")
    ratio = {
        "token": importance.sampler_token_ratio,
        "sequence": importance.sampler_sequence_ratio,
    }[level](x["old_token_logps"], x["sampling_token_logps"], x["mask"])
    bounds = {
        ours: hp[theirs]
        for ours, theirs in (("low", "clip_min"), ("high", "clip_max"))
        if hp[theirs] is not None
    }
    bounds.setdefault("high", jnp.inf)
    out = {"truncate": importance.truncate, "mask": importance.reject}[action](ratio, **bounds)
    return {"importance_sampling_ratio": out[:, None] if level == "sequence" else out}


def mask_truncated_completions(hp, x):
    rows = x["completion_ids"]
    tokens = np.full((len(rows), max(map(len, rows))), hp["pad_token_id"])
    for row, ids in zip(tokens, rows):
        row[: len(ids)] = ids
    tokens = jnp.asarray(tokens)
    lengths = jnp.asarray([len(ids) for ids in rows])
    mask = completions.length_mask(lengths, tokens)
    ended = completions.ends_with(tokens, lengths, jnp.asarray([hp["eos_token_id"]]))
    mask = completions.mask_unfinished(mask, ended)
    return {
        "completion_ids_padded": tokens,
        "completion_mask": mask,
        "num_items_in_batch": mask.sum(),
    }


def grouped(hp, x):
    n = hp["num_generations"]
    rewards = x["rewards_per_func"].reshape(-1, n, x["rewards_per_func"].shape[1])
    weights = hp.get("reward_weights") or [1.0] * rewards.shape[-1]
    return rewards, jnp.asarray(weights, rewards.dtype)


def grpo_advantages(hp, x):
    rewards, weights = grouped(hp, x)
    total = multi_reward.weighted_sum(rewards, weights)
    if hp.get("multi_objective_aggregation") == "normalize_then_sum":
        out = multi_reward.gdpo(rewards, weights)
    elif hp["scale_rewards"] == "none":
        out = group_advantage.center(total)
    else:
        out = group_advantage.standardize(total, over=hp["scale_rewards"])
    metrics = group_advantage.group_stats(total)
    # The peer reports whether the deviation it divides by is zero.
    if hp.get("multi_objective_aggregation") == "normalize_then_sum":
        flat = group_advantage.group_stats(out.reshape(1, -1))
        metrics["frac_reward_zero_std"] = flat["frac_reward_zero_std"]
    elif hp["scale_rewards"] == "batch":
        flat = group_advantage.group_stats(total.reshape(1, -1))
        metrics["frac_reward_zero_std"] = flat["frac_reward_zero_std"]
    return {"advantages": out.ravel(), "metrics": metrics}


def rloo_advantages(hp, x):
    rewards, weights = grouped(hp, x)
    total = multi_reward.weighted_sum(rewards, weights)
    if hp.get("reward_clip_range"):
        total = jnp.clip(total, *hp["reward_clip_range"])
    old, ref = (
        (sequence_logprobs(x[k], x["mask"]) for k in ("old_token_logps", "ref_token_logps"))
        if "ref_token_logps" in x
        else (sequence_logprobs(x["old_token_logps"], x["mask"]), None)
    )
    if hp["beta"]:
        total = total - hp["beta"] * kl.k1(old, ref).reshape(total.shape)
    out = group_advantage.leave_one_out(total, normalize=hp.get("normalize_advantages", False))
    return {"advantages": out.ravel(), "old_sequence_logps": old}


def rloo_loss(hp, x):
    loss, stats = policy_sequence.sequence_clip(
        logps=sequence_logprobs(x["token_logps"], x["mask"]),
        old_logps=x["old_sequence_logps"],
        advantages=x["advantages"],
        clip=hp["epsilon_low"],
        clip_high=hp["epsilon_high"],
    )
    return {
        "loss": mean.row_mean(loss).value(),
        "per_sequence_loss": loss,
        "metrics": {k: mean.row_mean(v).value() for k, v in stats.items()},
    }


def sdpo_policy_loss(hp, x):
    logps, _ = token_logprobs_from_logits(x["logits"], x["completion_ids"], mask=x["mask"])
    return {"loss": full_loss(hp, x | {"token_logps": logps})["loss"]}


SAME = (
    "grpo",
    "sapo",
    "bnpo",
    "dr_grpo",
    "dapo",
    "cispo",
    "vespo",
    "luspo",
    "gspo",
    "two_sided_delta",
    "kl_bias_correction",
    "entropy_mask",
    "off_policy_mask",
    "importance_sampling_correction",
    "entropy_bonus",
    "tool_mask",
    "token_advantages",
)

ADAPTERS = {f"grpo/{name}": full_loss for name in SAME} | {
    "grpo/gspo_token": gspo_token,
    "grpo/gmpo": gmpo,
    "grpo/adaptive_entropy": adaptive_entropy,
    "grpo/high_entropy_mask": high_entropy_mask,
    "grpo/get_off_policy_mask": off_policy_mask,
    "grpo/vespo_gamma_weights": vespo_gamma_weights,
    "grpo/vllm_importance_ratio": vllm_importance_ratio,
    "grpo/mask_truncated_completions": mask_truncated_completions,
    "advantages/grpo": grpo_advantages,
    "advantages/rloo": rloo_advantages,
    "rloo/loss": rloo_loss,
    "sdpo/policy_loss": sdpo_policy_loss,
}
