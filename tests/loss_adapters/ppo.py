"""PPO of TRL 1.10, with a score after the last token, and of TRL 0.11, with it on the last one."""

import jax.numpy as jnp

from rljax.losses import advantage, completions, importance, kl, masked, mean, policy, value

ESTIMATORS = {"k1": kl.k1, "k3": kl.k3, "kl": kl.k1, "abs": kl.absolute, "mse": kl.k2}


def truncate_response(hp, x):
    stop = jnp.asarray([hp["stop_token_id"]])
    tokens, _, ended = completions.truncate(x["responses"], stop, hp["pad_token_id"])
    return {
        "truncated": tokens,
        "first_stop_index": completions.first_stop(x["responses"], stop),
        # The peer looks for its padding id, which a real token may equal.
        "last_real_index": completions.first_stop(tokens, jnp.asarray([hp["pad_token_id"]])) - 1,
        "contains_stop": ended,
    }


def rollout_rewards_gae(hp, x):
    ids = x["response_ids"]
    lengths = completions.first_stop(ids, jnp.asarray([hp["pad_token_id"]]))
    policy_mask = completions.length_mask(lengths, ids)
    value_mask = completions.length_mask(lengths + 1, ids)  # where the peer puts the score
    scores = x["scores"]
    if "missing_eos_penalty" in hp:
        ended = completions.first_stop(ids, jnp.asarray([hp["eos_token_id"]])) < ids.shape[1]
        scores = advantage.penalize_missing_end(scores, ended, penalty=hp["missing_eos_penalty"])
    kl_tokens = masked.clean(
        ESTIMATORS[hp["kl_estimator"]](x["logprobs"], x["ref_logprobs"]), policy_mask
    )
    shaping = {"kl": kl_tokens, "kl_coef": hp["kl_coef"], "mask": policy_mask, "after_last": True}
    rewards = advantage.token_rewards(scores=scores, **shaping)
    if hp["whiten_rewards"]:
        rewards = masked.whiten(rewards, value_mask, shift_mean=False)
    advantages, returns = advantage.gae(
        rewards=rewards, values=x["values"], mask=value_mask, gamma=hp["gamma"], lam=hp["lam"]
    )
    return {
        "sequence_lengths": lengths - 1,
        "scores_after_eos_penalty": scores,
        "policy_mask": policy_mask,
        "value_mask": value_mask,
        "kl": kl_tokens,
        "non_score_reward": advantage.token_rewards(scores=scores * 0, **shaping),
        "rewards": rewards,
        "values_masked": masked.clean(x["values"], value_mask),
        "returns": returns,
        "advantages_whitened": masked.whiten(advantages, policy_mask),
        "advantages_before_whitening": masked.clean(advantages, value_mask),
    }


def losses(hp, x, policy_mask, value_mask):
    pg, pg_stats = policy.ppo_clip(
        logps=x["new_logprobs"],
        old_logps=x["old_logprobs"],
        advantages=x["advantages"],
        mask=policy_mask,
        clip=hp["cliprange"],
    )
    vf, vf_stats = value.clipped(
        values=x["value_preds"],
        old_values=x["values"],
        returns=x["returns"],
        mask=value_mask,
        clip=hp["cliprange_value"],
    )
    pg, vf = mean.token_mean(pg, policy_mask), mean.token_mean(vf, value_mask)
    clipped = {
        "pg_clipfrac": mean.token_mean(pg_stats["policy/clipfrac_avg"], policy_mask).value(),
        "vf_clipfrac": mean.token_mean(vf_stats["val/clipfrac_avg"], value_mask).value(),
    }
    return pg, vf, clipped, pg_stats


def loss(hp, x):
    pg, vf, clipped, _ = losses(hp, x, x["policy_mask"], x["value_mask"])
    return clipped | {
        "loss": mean.weighted_sum((1, pg), (hp["vf_coef"], vf)),
        "pg_loss": pg.value(),
        "vf_loss": vf.value(),
    }


def v1_rewards_gae(hp, x):
    mask = x["mask"]
    kl_tokens = ESTIMATORS[hp["kl_penalty"]](x["logprobs"], x["ref_logprobs"])
    shaping = {"kl": kl_tokens, "kl_coef": hp["kl_coef"], "mask": mask}
    rewards = shaped = advantage.token_rewards(scores=x["scores"], **shaping)
    values = masked.clean(x["values"], mask)
    if hp["whiten_rewards"]:
        # The peer's padding gets a reward by this, and its GAE runs over it.
        shaped = masked.whiten(rewards, mask, shift_mean=False, everywhere=True)
    advantages, returns = advantage.gae(
        rewards=shaped, values=values, mask=jnp.ones_like(mask), gamma=hp["gamma"], lam=hp["lam"]
    )
    return {
        "rewards": (rewards, mask),
        "non_score_rewards": (advantage.token_rewards(scores=x["scores"] * 0, **shaping), mask),
        "kls": kl_tokens,
        "values_masked": values,
        "advantages_whitened_times_mask": masked.whiten(advantages, mask),
        "returns": (returns, mask),
    }


def v1_loss(hp, x):
    mask = x["mask"]
    pg, vf, clipped, stats = losses(hp, x, mask, mask)
    ratio = importance.token_ratio(x["new_logprobs"], x["old_logprobs"], mask)
    limit = {"threshold": hp["ratio_threshold"]}
    pg, vf = (policy.unless_ratio_exceeds(part, ratio, mask, **limit) for part in (pg, vf))
    return clipped | {
        "loss": mean.weighted_sum((1, pg), (hp["vf_coef"], vf)),
        "pg_loss": pg.value(),
        "vf_loss_times_vf_coef": mean.weighted_sum((hp["vf_coef"], vf)),
        "approxkl": mean.token_mean(stats["policy/approxkl_avg"], mask).value(),
        "policykl": mean.token_mean(kl.k1(x["old_logprobs"], x["new_logprobs"]), mask).value(),
    }


ADAPTERS = {
    "ppo/truncate_response": truncate_response,
    "ppo/rollout_rewards_gae": rollout_rewards_gae,
    "ppo/loss": loss,
    "ppo_v1/rewards_gae": v1_rewards_gae,
    "ppo_v1/loss": v1_loss,
}
